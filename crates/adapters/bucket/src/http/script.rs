//! A server that answers by script.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub enum Reply {
    Answer(String),
    /// Writes this and closes the connection.
    ThenClose(String),
    Close,
}

pub struct Script {
    pub address: String,
    /// The heads of all requests.
    pub seen: Arc<Mutex<Vec<String>>>,
}

pub fn answer(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Answer(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    ))
}

pub fn empty_listing() -> Reply {
    answer("200 OK", "", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
}

/// Forwards a request to a server of the test's process, and returns its answer.
pub fn forward(server: &str, request: &str) -> Reply {
    let mut connection = TcpStream::connect(server.strip_prefix("http://").unwrap()).unwrap();
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    connection.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    Reply::ThenClose(text)
}

/// `play` is given each request, head and body; a listing is answered without it unless `whole`.
pub fn serve(whole: bool, play: impl FnMut(&str) -> Reply + Send + 'static) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (play, heads) = (Arc::new(Mutex::new(play)), seen.clone());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (play, heads) = (play.clone(), heads.clone());
            std::thread::spawn(move || {
                let mut connection = connection.unwrap();
                while let Some(request) = read_request(&mut connection) {
                    heads.lock().unwrap().push(request.clone());
                    let opening = !whole && request.contains("max-keys=1&");
                    let reply =
                        if opening { empty_listing() } else { (play.lock().unwrap())(&request) };
                    let (text, last) = match reply {
                        Reply::Answer(text) => (text, false),
                        Reply::ThenClose(text) => (text, true),
                        Reply::Close => (String::new(), true),
                    };
                    if connection.write_all(text.as_bytes()).is_err() || last {
                        return;
                    }
                }
            });
        }
    });
    Script { address, seen }
}

fn read_request(connection: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut some = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let announced = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
            });
            if body.len() >= announced.unwrap_or(0usize) {
                return Some(text);
            }
        }
        match connection.read(&mut some) {
            Ok(0) | Err(_) => return None,
            Ok(len) => bytes.extend_from_slice(&some[..len]),
        }
    }
}
