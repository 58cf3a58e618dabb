//! TLS between a node and its clients: accepted and refused certificates, with the reasons given.

use crate::{run, temporary};
use bytes::Bytes;
use ebb_certificates::{Authority, CA_FILE, Credentials, Identity, Kind, Request, now};
use ebb_os::{OsNet, Security};
use ebb_ports::{MAX_FRAME_BYTES, Net, NetError};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

const DAY_SECS: i64 = 24 * 3600;

/// A CA, and directories with certificates of it.
struct Certificates {
    dir: TempDir,
    authority: Authority,
}

impl Certificates {
    fn new() -> Certificates {
        let dir = temporary();
        let ca = dir.path().join("ca");
        Authority::create(&ca, "test", now() - 100 * DAY_SECS).expect("a CA is made");
        let authority = Authority::open(&ca, now()).expect("it opens");
        Certificates { dir, authority }
    }

    fn issue_at(&self, kind: Kind, name: &str, address: Option<&str>, at: i64) -> PathBuf {
        let request = Request {
            identity: Identity::new(kind, name).expect("a name"),
            addresses: address.map(str::to_owned).into_iter().collect(),
            days: 30,
        };
        let out = self.dir.path().join(format!("{kind}-{name}"));
        self.authority.issue(&request, &out, at).expect("issued");
        out
    }

    fn node(&self, name: &str) -> PathBuf {
        self.issue_at(Kind::Node, name, Some("127.0.0.1"), now())
    }

    /// A certificate with these URIs for 127.0.0.1, as another program makes it.
    fn other_issuer(&self, uris: &[&str]) -> PathBuf {
        let (ca, out) = (self.dir.path().join("ca"), self.dir.path().join("other"));
        let key = fs::read_to_string(ca.join("ca-key.pem")).unwrap();
        let issuer = fs::read_to_string(ca.join(CA_FILE)).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(
            &issuer,
            rcgen::KeyPair::from_pem(&key).expect("a key"),
        );
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let uris = uris.iter().map(|uri| rcgen::SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer.expect("a CA")).unwrap();
        fs::create_dir_all(&out).unwrap();
        fs::copy(ca.join(CA_FILE), out.join(CA_FILE)).unwrap();
        fs::write(out.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(out.join("key.pem"), key.serialize_pem()).unwrap();
        fs::set_permissions(out.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        out
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.issue_at(Kind::Mount, name, None, now())
    }
}

fn net(dir: &Path) -> OsNet {
    OsNet::new(Security::Tls(Rc::new(Credentials::open(dir).expect("loaded"))))
}

/// A listener with a task that returns each frame to its sender.
async fn echo(net: &OsNet) -> String {
    let mut listener = net.listen("127.0.0.1:0").await.expect("a port is free");
    let address = listener.address();
    tokio::task::spawn_local(async move {
        while let Ok(connection) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let (mut sender, mut receiver) = connection.split();
                while let Ok(Some(frame)) = receiver.receive().await {
                    if sender.send(vec![frame]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A client's exchange of one frame.
async fn exchange(net: &OsNet, address: &str, frame: Bytes) -> Result<Option<Bytes>, NetError> {
    let (mut sender, mut receiver) = net.connect(address).await?.split();
    sender.send(vec![frame.slice(..frame.len() / 3), frame.slice(frame.len() / 3..)]).await?;
    receiver.receive().await
}

#[track_caller]
fn assert_says(result: Result<Option<Bytes>, NetError>, what: &str) {
    let error = result.expect_err("refused").to_string();
    assert!(error.contains(what), "{error:?} does not contain {what:?}");
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

const HELLO: Bytes = Bytes::from_static(b"hello");

#[test]
fn tls_carries_frames_of_all_sizes_for_all_kinds() {
    run(async {
        let made = Certificates::new();
        let node = net(&made.node("n1"));
        let address = echo(&node).await;
        let tool = made.issue_at(Kind::Tool, "t1", None, now());
        for client in [&node, &net(&made.mount("m1")), &net(&tool)] {
            for len in [0, 1, 5000, 300_000, MAX_FRAME_BYTES] {
                let frame: Bytes = (0..len).map(|at| (at * 31) as u8).collect::<Vec<_>>().into();
                assert_eq!(exchange(client, &address, frame.clone()).await, Ok(Some(frame)));
            }
        }
    });
}

/// Dropping the sender closes one direction, as without TLS.
#[test]
fn tls_close_is_good_order() {
    run(async {
        let made = Certificates::new();
        let (node, mount) = (net(&made.node("n1")), net(&made.mount("m1")));
        let mut listener = node.listen("127.0.0.1:0").await.expect("a port is free");
        let address = listener.address();
        let (ours, theirs) = tokio::join!(mount.connect(&address), listener.accept());
        let (mut sender, mut answers) = ours.expect("connected").split();
        let (mut answer, mut receiver) = theirs.expect("accepted").split();
        sender.send(vec![HELLO]).await.expect("sent");
        drop(sender);
        assert_eq!(receiver.receive().await, Ok(Some(HELLO)));
        assert_eq!(receiver.receive().await, Ok(None));
        answer.send(vec![HELLO]).await.expect("the other direction is open");
        assert_eq!(answers.receive().await, Ok(Some(HELLO)));
    });
}

#[test]
fn tls_expired_certificates_are_refused() {
    run(async {
        let made = Certificates::new();
        let before = now() - 40 * DAY_SECS;
        let node = net(&made.node("n1"));
        let mount = net(&made.issue_at(Kind::Mount, "old", None, before));
        let result = exchange(&mount, &echo(&node).await, HELLO).await;
        assert_says(result, "the peer refuses this certificate: it has expired");

        let node = net(&made.issue_at(Kind::Node, "old", Some("127.0.0.1"), before));
        let result = exchange(&net(&made.mount("m1")), &echo(&node).await, HELLO).await;
        assert_says(result, "the peer's certificate expired at 20");
    });
}

/// Both CAs have the same name, which is no proof.
#[test]
fn tls_certificates_of_another_ca_are_refused() {
    run(async {
        let (made, other) = (Certificates::new(), Certificates::new());
        let address = echo(&net(&made.node("n1"))).await;
        let result = exchange(&net(&other.mount("m1")), &address, HELLO).await;
        assert_says(result, "from no CA of ca.pem");

        // The client trusts the node, and is not trusted.
        let client = other.mount("m1");
        let ca = fs::read(made.dir.path().join("ca").join(CA_FILE)).unwrap();
        fs::write(client.join(CA_FILE), ca).unwrap();
        let result = exchange(&net(&client), &address, HELLO).await;
        assert_says(result, "it is from no CA that the peer trusts");
    });
}

/// Danger: an attacker with the certificate of a mount poses as a node to other mounts.
#[test]
fn tls_mount_certificate_cannot_serve() {
    run(async {
        let made = Certificates::new();
        let mount = made.mount("m1");
        let error = net(&mount).listen("127.0.0.1:0").await.map(|_| ()).expect_err("refused");
        assert!(error.to_string().contains("it is the certificate of a mount"), "{error}");

        // A program that does not check that.
        let address = serve_unchecked(&mount).await;
        let result = exchange(&net(&made.mount("m2")), &address, HELLO).await;
        assert_says(result, "the peer's certificate is not for this use");
    });
}

/// Certificates of other issuers, without limits on their use, have their kind in their URI.
#[test]
fn tls_kind_is_in_the_certificate() {
    run(async {
        let made = Certificates::new();
        let mount = net(&made.mount("m1"));
        let node = made.other_issuer(&["ebb:node/n1", "https://example"]);
        assert_eq!(exchange(&mount, &echo(&net(&node)).await, HELLO).await, Ok(Some(HELLO)));
        let address = serve_unchecked(&made.other_issuer(&["ebb:mount/m2"])).await;
        let result = exchange(&mount, &address, HELLO).await;
        assert_says(result, "the peer is not a node: its certificate is of mount m2");

        let address = echo(&net(&made.node("n1"))).await;
        for uris in [&["ebb:node/n1", "ebb:mount/m1"][..], &["ebb:king/k1"], &["ebb:node/"], &[]] {
            let dir = made.other_issuer(uris);
            assert!(Credentials::open(&dir).is_err(), "{uris:?}");
            // A program that does not check that.
            let stream = TcpStream::connect(&address).await.unwrap();
            let (chain, key) = (dir.join("cert.pem"), dir.join("key.pem"));
            let chain = CertificateDer::pem_file_iter(chain).unwrap().map(Result::unwrap).collect();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
                .unwrap();
            let name = "127.0.0.1".try_into().unwrap();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let mut stream = connector.connect(name, stream).await.expect("the node is known");
            let error = stream.read(&mut [0; 16]).await.expect_err("refused").to_string();
            assert!(error.contains("CertificateUnknown"), "{uris:?}: {error}");
        }
    });
}

/// One handshake of a server that does not look at its own certificate.
async fn serve_unchecked(dir: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = Credentials::open(dir).expect("loaded").server();
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        drop(tokio_rustls::TlsAcceptor::from(config).accept(stream).await);
    });
    address
}

#[test]
fn tls_node_of_another_address_is_refused() {
    run(async {
        let made = Certificates::new();
        let node = net(&made.issue_at(Kind::Node, "far", Some("10.1.2.3"), now()));
        let result = exchange(&net(&made.mount("m1")), &echo(&node).await, HELLO).await;
        assert_says(result, "not for 127.0.0.1, but for");
    });
}

#[test]
fn tls_and_plain_peers_name_the_cause() {
    run(async {
        let made = Certificates::new();
        let (node, mount) = (net(&made.node("n1")), net(&made.mount("m1")));
        let plain = OsNet::default();
        let result = exchange(&plain, &echo(&node).await, HELLO).await;
        assert_says(result, "uses TLS, this end does not");
        let result = exchange(&mount, &echo(&plain).await, HELLO).await;
        assert_says(result, "it may run without --tls");

        let mut listener = plain.listen("127.0.0.1:0").await.expect("a port is free");
        let address = listener.address();
        let (_client, accepted) = tokio::join!(mount.connect(&address), async {
            let (_sender, mut receiver) = listener.accept().await.expect("accepted").split();
            receiver.receive().await
        });
        assert_says(accepted, "uses TLS, this end does not");
    });
}

/// Danger: peers that send garbage, or nothing, hold up clients that do as they should.
#[test]
fn tls_hostile_peers_cost_their_connections() {
    run(async {
        let made = Certificates::new();
        let (node, mount) = (net(&made.node("n1")), net(&made.mount("m1")));
        let address = echo(&node).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        let record = |kind: u8, len: u16| [&[kind, 3, 1][..], &len.to_be_bytes()[..]].concat();
        let garbage: [Vec<u8>; 5] = [
            vec![0; 1 << 16],
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            [record(0x16, 4), vec![1, 0xff, 0xff, 0xff]].concat(),
            [record(0x16, 0x3fff), vec![0xff; 0x3fff]].concat(),
            [record(0x15, 2), vec![2, 80]].concat(),
        ];
        for bytes in &garbage {
            let mut peer = TcpStream::connect(&address).await.unwrap();
            // The node may have closed before it gets all.
            peer.write_all(bytes).await.ok();
            let mut answer = Vec::new();
            let end = timeout(Duration::from_secs(5), peer.read_to_end(&mut answer)).await;
            assert!(end.is_ok(), "{:?} is not ended", &bytes[..5]);
        }
        let result = timeout(Duration::from_secs(5), exchange(&mount, &address, HELLO)).await;
        assert_eq!(result, Ok(Ok(Some(HELLO))));
    });
}

/// Time is the test's: the wait for the time-out takes none.
#[test]
fn tls_slow_handshake_is_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime starts");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let made = Certificates::new();
        let (node, mount) = (net(&made.node("n1")), net(&made.mount("m1")));
        let mut peer = TcpStream::connect(echo(&node).await).await.unwrap();
        peer.write_all(&[0x16, 3, 1]).await.unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(peer.read(&mut [0; 16]).await.expect("closed"), 0);
        assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());

        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap().to_string();
        assert_says(exchange(&mount, &address, HELLO).await, "no TLS handshake within 10 s");
    });
}

/// Renewed files count for new connections, without a restart; those that do not fit are passed
/// over, and connections go on.
#[test]
fn tls_changed_files_count_for_new_connections() {
    run(async {
        let made = Certificates::new();
        let before = now() - 40 * DAY_SECS;
        let dir = made.issue_at(Kind::Node, "n1", Some("127.0.0.1"), before);
        let (node, mount) = (net(&dir), net(&made.mount("m1")));
        let address = echo(&node).await;
        assert_says(exchange(&mount, &address, HELLO).await, "expired at");
        made.node("n1");
        assert_eq!(exchange(&mount, &address, HELLO).await, Ok(Some(HELLO)));

        let (mut sender, mut receiver) = mount.connect(&address).await.expect("connected").split();
        fs::copy(made.node("n2").join("key.pem"), dir.join("key.pem")).unwrap();
        assert_eq!(exchange(&mount, &address, HELLO).await, Ok(Some(HELLO)), "the previous one");
        fs::remove_file(dir.join("cert.pem")).unwrap();
        assert_eq!(exchange(&mount, &address, HELLO).await, Ok(Some(HELLO)), "the previous one");
        sender.send(vec![HELLO]).await.expect("an open connection stays");
        assert_eq!(receiver.receive().await, Ok(Some(HELLO)));
    });
}

#[test]
fn plain_connections_stay_on_this_machine() {
    run(async {
        let refused = |error: Option<NetError>| {
            let error = error.expect("refused").to_string();
            assert!(error.contains("not a loopback address"), "{error}");
        };
        let plain = OsNet::default();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            refused(plain.listen(address).await.map(|_| ()).err());
            refused(plain.connect(address).await.map(|_| ()).err());
        }
        let insecure = OsNet::new(Security::Insecure);
        let listener = insecure.listen("0.0.0.0:0").await.expect("it is allowed");
        let port = listener.address().rsplit_once(':').expect("a port").1.to_owned();
        plain.connect(&format!("127.0.0.1:{port}")).await.map(|_| ()).expect("it is loopback");
    });
}

#[test]
fn tls_files_that_cannot_be_used_are_named() {
    let made = Certificates::new();
    let refused = |change: &dyn Fn(&Path), what: &str| {
        let dir = made.node("n1");
        change(&dir);
        let error = Credentials::open(&dir).map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains(what), "{error:?} does not contain {what:?}");
        fs::remove_dir_all(&dir).unwrap();
    };
    let other = made.node("other");
    refused(&|dir| fs::remove_file(dir.join("ca.pem")).unwrap(), "ca.pem: No such file");
    refused(&|dir| fs::write(dir.join("cert.pem"), "text").unwrap(), "holds no certificate");
    refused(&|dir| fs::write(dir.join("key.pem"), "text").unwrap(), "holds no private key");
    refused(
        &|dir| copy(&dir.join("key.pem"), &dir.join("cert.pem")),
        "it holds a private key, not a certificate",
    );
    refused(
        &|dir| copy(&other.join("key.pem"), &dir.join("key.pem")),
        "it is not the key of cert.pem",
    );
    refused(&|dir| copy(&other.join("cert.pem"), &dir.join("ca.pem")), "is of no CA");
    refused(
        &|dir| {
            let open = fs::Permissions::from_mode(0o644);
            fs::set_permissions(dir.join("key.pem"), open).unwrap();
        },
        "its permissions 0644 are too open",
    );
    refused(
        &|dir| {
            let ca = made.dir.path().join("ca");
            fs::copy(ca.join("ca.pem"), dir.join("cert.pem")).unwrap();
            fs::copy(ca.join("ca-key.pem"), dir.join("key.pem")).unwrap();
        },
        "it names neither node, mount nor tool",
    );
}
