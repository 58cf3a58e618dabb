//! S3 keeps every clause, against an in-process server and, if set, against the one at
//! EBB_TEST_S3_ENDPOINT (existing bucket EBB_TEST_S3_BUCKET, by default `ebb-test`; credentials
//! from the environment).

use bytes::Bytes;
use ebb_bucket::{BucketSettings, suite};
use ebb_ports::{BucketError, Condition};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

fn only() -> Option<String> {
    std::env::var("EBB_TEST_ONLY").ok()
}

fn open(
    url: &str,
    settings: &BucketSettings,
) -> Result<std::rc::Rc<dyn ebb_ports::Bucket>, ebb_bucket::OpenError> {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(ebb_bucket::open(url, settings))
}

#[test]
fn s3_passes_the_suite() {
    let settings = BucketSettings {
        endpoint: Some(ebb_s3_server::start().expect("a server")),
        access_key: Some(ebb_s3_server::ACCESS_KEY.into()),
        secret_key: Some(ebb_s3_server::SECRET_KEY.into()),
        ..BucketSettings::default()
    };
    let bucket = open("s3://bucket", &settings).unwrap();
    println!("{:?}", bucket.capabilities());
    suite::run(&bucket, only().as_deref(), &[]);
}

#[test]
fn another_s3_server_passes_the_suite() {
    let Ok(endpoint) = std::env::var("EBB_TEST_S3_ENDPOINT") else { return };
    let name = std::env::var("EBB_TEST_S3_BUCKET").unwrap_or_else(|_| "ebb-test".into());
    let bucket = open(
        &format!("s3://{name}/suite"),
        &BucketSettings { endpoint: Some(endpoint), ..BucketSettings::default() },
    )
    .unwrap();
    println!("{:?}", bucket.capabilities());
    // Names of clauses that the server is known to break.
    let known = std::env::var("EBB_TEST_S3_KNOWN").unwrap_or_default();
    suite::run(&bucket, only().as_deref(), &known.split(',').collect::<Vec<_>>());
}

/// Bytes that the proxy damages.
const FRAGILE: &[u8] = b"breaks on its way";
const BROKEN: &[u8] = b"broke on its way!";

/// A proxy to the server that damages only these bytes.
fn damaging(server: &str) -> String {
    let (listener, server) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        server.trim_start_matches("http://").to_owned(),
    );
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut &back.0, &mut &back.1));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(len @ 1..) = (&client).read(&mut bytes) {
                    if let Some(at) =
                        bytes[..len].windows(FRAGILE.len()).position(|some| some == FRAGILE)
                    {
                        bytes[at..at + FRAGILE.len()].copy_from_slice(BROKEN);
                    }
                    if (&server).write_all(&bytes[..len]).is_err() {
                        break;
                    }
                }
                drop(server.shutdown(Shutdown::Both));
            });
        }
    });
    address
}

#[test]
fn checksums_reject_bodies_damaged_in_transit() {
    let settings = BucketSettings {
        endpoint: Some(damaging(&ebb_s3_server::start().expect("a server"))),
        access_key: Some(ebb_s3_server::ACCESS_KEY.into()),
        secret_key: Some(ebb_s3_server::SECRET_KEY.into()),
        ..BucketSettings::default()
    };
    let bucket = open("s3://bucket", &settings).unwrap();
    let fragile = || Bytes::from_static(FRAGILE);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let put = bucket.put("k", fragile(), Condition::Always, vec![]).await;
        assert!(matches!(put, Err(BucketError::Unavailable { .. })), "{put:?}");
        assert!(matches!(bucket.head("k").await, Err(BucketError::NotFound { .. })));
        let upload = bucket.upload_begin("k", vec![]).await.unwrap();
        let part = bucket.upload_part("k", &upload, 1, fragile()).await;
        assert!(matches!(part, Err(BucketError::Unavailable { .. })), "{part:?}");
        let part =
            bucket.upload_part("k", &upload, 1, Bytes::from_static(b"arrives")).await.unwrap();
        bucket.upload_complete("k", &upload, vec![part], Condition::Always).await.unwrap();
        assert_eq!(bucket.get("k", None, None).await.unwrap().body, "arrives");
    });
}
