//! Stands before an S3 server, and answers some of the requests in its place.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// Begins with method and target, then has the headers, their names in lower case.
pub struct Request {
    pub head: String,
    body: Vec<u8>,
}

pub enum Instead {
    Refuse {
        status: u16,
        code: &'static str,
    },
    /// The connection stays open, without an answer.
    Silence,
}

/// Returns the endpoint to use instead of `endpoint`.
pub fn before(
    endpoint: &str,
    rule: impl Fn(&Request) -> Option<Instead> + Send + Sync + 'static,
) -> String {
    let server = endpoint.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let rule = Arc::new(rule);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server, rule) = (client.unwrap(), server.clone(), rule.clone());
            // A client that goes away is no failure.
            std::thread::spawn(move || serve(client, &server, &*rule).ok());
        }
    });
    address
}

impl Request {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn read(client: &mut TcpStream) -> io::Result<Request> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let announced =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; announced.unwrap_or(0)];
        client.read_exact(&mut body)?;
        Ok(Request { head, body })
    }
}

/// One request and its answer.
fn serve(
    mut client: TcpStream,
    server: &str,
    rule: &dyn Fn(&Request) -> Option<Instead>,
) -> io::Result<()> {
    let request = Request::read(&mut client)?;
    match rule(&request) {
        None => {
            let mut server = TcpStream::connect(server)?;
            server.set_nodelay(true)?;
            let head = request.head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            server.write_all(&[head.as_bytes(), &request.body].concat())?;
            io::copy(&mut server, &mut client)?;
        }
        Some(Instead::Refuse { status, code }) => {
            let body = match request.method() {
                "HEAD" => String::new(),
                _ => {
                    format!("<Error><Code>{code}</Code><Message>as the test says</Message></Error>")
                }
            };
            write!(
                client,
                "HTTP/1.1 {status} No\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )?;
        }
        Some(Instead::Silence) => {
            // Ends with the client.
            client.read_exact(&mut [0])?;
        }
    }
    Ok(())
}
