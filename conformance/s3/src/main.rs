//! `ebb-s3-server [HOST:PORT]`: says where it listens, and serves until it is killed.

use std::io::Write;
use std::net::TcpListener;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".into());
    let listener = TcpListener::bind(address)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{}", listener.local_addr()?)?;
    out.flush()?;
    drop(out);
    ebb_s3_server::run(listener)
}
