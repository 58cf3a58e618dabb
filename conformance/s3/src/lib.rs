//! An S3 server for tests, the demo and developers: `s3s` implements the protocol, an in-memory
//! bucket holds the objects. `s3s-fs` of the same project ignores conditions and rejects unusual
//! keys.

mod operations;

use bytes::Bytes;
use ebb_bucket::Memory;
use ebb_ports::{Bucket, Condition};
use futures_util::FutureExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::sync::Mutex;

/// The only bucket of the server.
pub const BUCKET: &str = "bucket";
pub const ACCESS_KEY: &str = "test-access";
pub const SECRET_KEY: &str = "test-secret";

pub(crate) struct Server {
    objects: Mutex<Memory>,
    /// Checksum of each part, for uploads begun with CRC-32C.
    checked: Mutex<HashMap<String, HashMap<i32, String>>>,
}

/// Serves from its own thread until the process ends; returns the URL.
pub fn start() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    std::thread::Builder::new()
        .name("s3-server".into())
        .spawn(move || run(listener, Memory::new()))?;
    Ok(address)
}

/// Objects in a directory of a filled bucket.
const DIRECTORY: u64 = 100_000;

/// A bucket with `count` objects below `prefix`: `PREFIX/d00/f00000` and so on.
pub fn filled(prefix: &str, count: u64) -> Memory {
    let bucket = Memory::new();
    for number in 0..count {
        let key = format!("{prefix}/d{:02}/f{:05}", number / DIRECTORY, number % DIRECTORY);
        let put =
            bucket.put(&key, Bytes::from_static(b"one of many\n"), Condition::Always, Vec::new());
        put.now_or_never().expect("memory never waits").expect("the key is plain");
    }
    bucket
}

/// Serves until accepting a connection fails.
pub fn run(listener: TcpListener, bucket: Memory) -> io::Result<()> {
    let mut builder =
        S3ServiceBuilder::new(Server { objects: Mutex::new(bucket), checked: Mutex::default() });
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = builder.build();
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (connection, _) = listener.accept().await?;
            // Without TCP_NODELAY each reply waits for the client's delayed acknowledgement.
            connection.set_nodelay(true)?;
            let service = service.clone();
            tokio::spawn(async move {
                // A connection that the client drops is not a server failure.
                drop(
                    Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(connection), service)
                        .await,
                );
            });
        }
    })
}
