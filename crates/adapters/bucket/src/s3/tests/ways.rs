//! How a store is reached: through a proxy, by TLS with a certificate of its own.

use super::{keys, open};
use crate::BucketSettings;
use crate::http::script::{answer, empty_listing, serve};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/trust/server.pem");
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/trust/other.pem");
const KEY: &str = include_str!("../../http/trust/server.key");

/// A store with the certificate of a single server, with nothing to list. Returns its address.
fn tls_store() -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(CERTIFICATE).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap(),
        )
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let config = config.clone();
            // A client that does not trust the certificate disconnects.
            std::thread::spawn(move || answer_once(socket.unwrap(), config).ok());
        }
    });
    address
}

fn answer_once(mut socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
    let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = Stream::new(&mut connection, &mut socket);
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let body = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// A proxy that makes tunnels; returns its address, and the heads of its requests.
fn tunnels() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://user:word@{}", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let heads = seen.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, heads) = (client.unwrap(), heads.clone());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
                let head: Vec<String> = lines
                    .by_ref()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let server = head[0].split(' ').nth(1).unwrap().to_owned();
                heads.lock().unwrap().push(head.join("\n"));
                let server = TcpStream::connect(server).unwrap();
                client.write_all(b"HTTP/1.1 200 Here it is\r\n\r\n").unwrap();
                let (mut up, mut down) = (server.try_clone().unwrap(), server);
                let mut from = client.try_clone().unwrap();
                std::thread::spawn(move || io::copy(&mut from, &mut up).ok());
                io::copy(&mut down, &mut client).ok();
            });
        }
    });
    (address, seen)
}

fn impatient() -> BucketSettings {
    BucketSettings { patience: Some(Duration::from_secs(1)), ..keys() }
}

#[test]
fn server_with_a_named_certificate_is_trusted() {
    let store = tls_store();
    let opened = |variables: &[(&str, &str)]| {
        open(&store, impatient(), variables).map(drop).map_err(|error| error.to_string())
    };
    for variable in ["SSL_CERT_FILE", "AWS_CA_BUNDLE"] {
        assert_eq!(opened(&[(variable, CERTIFICATE)]), Ok(()));
        let other = opened(&[(variable, OTHER)]).unwrap_err();
        assert!(other.contains("certificate"), "{other}");
    }
    assert!(opened(&[]).unwrap_err().contains("certificate"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(CERTIFICATE, dir.path().join("server.pem")).unwrap();
    assert_eq!(opened(&[("SSL_CERT_DIR", dir.path().to_str().unwrap())]), Ok(()));
    let config = dir.path().join("config");
    std::fs::write(&config, format!("[default]\nca_bundle = {CERTIFICATE}\n")).unwrap();
    let given = [
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
    ];
    let settings = BucketSettings { access_key: None, secret_key: None, ..impatient() };
    open(&store, settings, &given).map(drop).unwrap();
    let missing = opened(&[("AWS_CA_BUNDLE", "/no/such/file")]).unwrap_err();
    assert!(missing.contains("AWS_CA_BUNDLE names /no/such/file"), "{missing}");
}

/// An https store is reached by a tunnel, in which its own certificate counts.
#[test]
fn https_store_is_reached_through_a_proxy() {
    let (store, (proxy, seen)) = (tls_store(), tunnels());
    let variables = [("HTTPS_PROXY", &*proxy), ("SSL_CERT_FILE", CERTIFICATE)];
    open(&store, impatient(), &variables).map(drop).unwrap();
    let heads = seen.lock().unwrap().clone();
    let server = store.strip_prefix("https://").unwrap();
    assert!(heads[0].starts_with(&format!("CONNECT {server} HTTP/1.1")), "{heads:?}");
    assert!(heads[0].to_lowercase().contains("proxy-authorization: basic "), "{heads:?}");
    let around = [variables[0], variables[1], ("NO_PROXY", "localhost")];
    open(&store, impatient(), &around).map(drop).unwrap();
    assert_eq!(seen.lock().unwrap().len(), heads.len());
    assert!(open(&store, impatient(), &variables[..1]).is_err());
}

/// Requests to a store at an http URL are sent to the proxy itself.
#[test]
fn http_store_is_asked_for_at_a_proxy() {
    let proxy = serve(true, |_| empty_listing());
    let address = proxy.address.replace("http://", "http://user:word@");
    let store = "http://store.invalid:9000";
    open(store, impatient(), &[("http_proxy", &address)]).map(drop).unwrap();
    let seen = proxy.seen.lock().unwrap().concat();
    assert!(seen.starts_with("GET http://store.invalid:9000/bucket?"), "{seen}");
    assert!(seen.contains("proxy-authorization: Basic "), "{seen}");
    // The message of a refused proxy connection names the proxy.
    let closed = [("HTTP_PROXY", "http://127.0.0.1:9")];
    let error = open(store, impatient(), &closed).map(drop).unwrap_err().to_string();
    assert!(error.contains("proxy 127.0.0.1:9"), "{error}");
}

#[test]
fn requests_name_the_payer() {
    let script = serve(true, |request| match request.starts_with("HEAD") {
        true => answer("404 Not Found", "", ""),
        false => empty_listing(),
    });
    let settings = BucketSettings { request_payer: Some("requester".into()), ..keys() };
    open(&script.address, settings, &[]).map(drop).unwrap();
    let seen = script.seen.lock().unwrap();
    assert!(seen.iter().all(|request| request.contains("x-amz-request-payer: requester\r\n")));
    // The header is signed, as S3 requires of all its headers.
    assert!(seen[0].contains("x-amz-request-payer") && seen[0].contains("SignedHeaders="));
}
