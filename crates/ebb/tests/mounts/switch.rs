//! A way to a server that can be closed and opened again.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub struct Switch {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    server: String,
    closed: bool,
    connections: Vec<TcpStream>,
}

impl Switch {
    /// Stands before `endpoint`; returns the endpoint to use instead.
    pub fn before(&self, endpoint: &str) -> String {
        let server = endpoint.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = self.state.clone();
        state.lock().unwrap().server = endpoint.into();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut state = state.lock().unwrap();
                if state.closed {
                    continue;
                }
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                    state.connections.push(stream.try_clone().unwrap());
                }
                pass(client.try_clone().unwrap(), server.try_clone().unwrap());
                pass(server, client);
            }
        });
        address
    }

    /// The server behind it.
    pub fn server(&self) -> String {
        self.state.lock().unwrap().server.clone()
    }

    pub fn close(&self) {
        let mut state = self.state.lock().unwrap();
        state.closed = true;
        for connection in state.connections.drain(..) {
            // Either end may have closed already.
            connection.shutdown(Shutdown::Both).ok();
        }
    }

    pub fn open(&self) {
        self.state.lock().unwrap().closed = false;
    }
}

/// Passes bytes on until one end closes.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        io::copy(&mut from, &mut to).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}
