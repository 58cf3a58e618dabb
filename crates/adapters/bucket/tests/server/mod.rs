//! An S3 server inside the test's process, on a thread of its own: the protocol by
//! `s3s`, the objects in the bucket in memory. `s3s-fs`, which comes with it, takes
//! conditions for granted and no odd keys.

mod operations;

use ebb_bucket::Memory;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::sync::Mutex;

pub const BUCKET: &str = "bucket";
pub const ACCESS_KEY: &str = "test-access";
pub const SECRET_KEY: &str = "test-secret";

/// One bucket, [`BUCKET`].
pub struct Server(Mutex<Memory>);

/// Serves until the process ends; gives its address.
pub fn serve() -> String {
    let mut builder = S3ServiceBuilder::new(Server(Mutex::default()));
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = builder.build();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a non-blocking listener");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an executor for the server");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((connection, _)) = listener.accept().await {
                // Else each answer waits for the client's delayed acknowledgement.
                connection.set_nodelay(true).expect("a connection");
                let service = service.clone();
                tokio::spawn(async move {
                    // A connection that the client drops is no failure of the test.
                    drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(connection), service).await);
                });
            }
        });
    });
    address
}
