//! `ebb-s3-server [HOST:PORT] [--fill PREFIX COUNT]`: prints its URL and serves until it is killed.
//! `--fill` first creates COUNT small objects, 100,000 per directory.

use std::io::{Error, Write};
use std::net::TcpListener;

fn main() -> std::io::Result<()> {
    let mut address = "127.0.0.1:0".to_owned();
    let mut fill = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--fill" {
            let (prefix, count) =
                args.next().zip(args.next()).ok_or_else(|| Error::other("--fill PREFIX COUNT"))?;
            fill = Some((prefix, count.parse().map_err(Error::other)?));
        } else {
            address = arg;
        }
    }
    let listener = TcpListener::bind(address)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{}", listener.local_addr()?)?;
    out.flush()?;
    drop(out);
    let (prefix, count) = fill.unwrap_or_default();
    ebb_s3_server::run(listener, ebb_s3_server::filled(&prefix, count))
}
