//! Encryption in transit, and the certificates for it.

use crate::detached::serve_with;
use crate::place::Place;
use std::fs;
use std::os::unix::fs::PermissionsExt;

impl Place {
    fn with_ca(&self) {
        self.ebb(&["cert", "init", "--dir", "ca", "--name", "test"]).good();
    }

    /// Certificate, key and CA in a directory of the name.
    fn issue(&self, kind: &str, name: &str) {
        let mut issue = vec!["cert", "issue", "--dir", "ca", "--for", kind];
        issue.extend(["--name", name, "--out", name]);
        if kind == "node" {
            issue.extend(["--address", "127.0.0.1"]);
        }
        self.ebb(&issue).good();
    }
}

/// Situation: node and mounts have certificates. Expectation: everything works as without, also
/// after the node and the daemon of a mount have been killed; the files of a mount serve the tools
/// on it.
#[test]
fn tls_mount_outlives_its_node_and_daemon() {
    let mut place = Place::new();
    place.with_ca();
    place.issue("node", "n1");
    place.issue("mount", "m1");
    place.issue("tool", "t1");
    let (node, address) = serve_with(&mut place, &["--listen", "127.0.0.1:0", "--tls", "n1"]);
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client", "--tls", "m1"]).good();
    let large: Vec<u8> = (0..3_000_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    fs::write(place.path("mnt/before"), &large).unwrap();
    place.signal(node, libc::SIGKILL);
    let path = place.path("mnt/during");
    let writer = std::thread::spawn(move || fs::write(path, "during"));
    let (node, _) = serve_with(&mut place, &["--listen", &address, "--tls", "n1"]);
    writer.join().unwrap().unwrap();
    place.kill_daemon("mnt");
    fs::write(place.path("mnt/after"), "after").unwrap();
    assert!(fs::read(place.path("mnt/before")).unwrap() == large);
    assert_eq!(fs::read_to_string(place.path("mnt/during")).unwrap(), "during");

    place.ebb(&["status", "mnt"]).good();
    place.ebb(&["status", &address, "--tls", "t1"]).good();
    place.ebb(&["flush", "mnt"]).good();
    assert!(fs::read(place.path("backing/before")).unwrap() == large);
    place.umount();
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

/// Each refusal names its cause.
#[test]
fn tls_refusals_name_the_cause() {
    let mut place = Place::new();
    place.with_ca();
    place.issue("node", "n1");
    place.issue("mount", "m1");
    place.ebb(&["cert", "init", "--dir", "other"]).good();
    let other = ["cert", "issue", "--dir", "other", "--for", "mount", "--name", "m2"];
    place.ebb(&[&other[..], &["--out", "m2"]].concat()).good();

    let url = place.url().to_owned();
    let serve = ["serve", "--data", "node", "--backing", &url, "--name", "volume", "--listen"];
    let refused = |more: &[&str], status: i32, text: &str| {
        place.ebb(&[&serve[..], more].concat()).refused(status, text);
    };
    refused(&["0.0.0.0:0"], 1, "not a loopback address, which needs certificates: --tls DIR");
    refused(&["127.0.0.1:0", "--tls", "m1"], 1, "it is the certificate of a mount");
    refused(&["127.0.0.1:0", "--tls", "none"], 1, "none/ca.pem: No such file");
    let both = place.ebb(&[&serve[..], &["127.0.0.1:0", "--tls", "n1", "--insecure"]].concat());
    assert!(both.status == 2 && both.err.contains("cannot be used with"), "{both:?}");

    let (node, address) = serve_with(&mut place, &["--listen", "127.0.0.1:0", "--tls", "n1"]);
    let volume = format!("ebb://{address}/volume");
    let mount = ["mount", &volume, "mnt", "--data", "client"];
    let refused = |more: &[&str], text: &str| {
        place.ebb(&[&mount[..], more].concat()).refused(1, text);
    };
    refused(&[], "uses TLS, this end does not: --tls is missing here");
    refused(&["--tls", "m2"], "the peer's certificate is from no CA of ca.pem");
    fs::copy(place.path("ca/ca.pem"), place.path("m2/ca.pem")).unwrap();
    refused(&["--tls", "m2"], "it is from no CA that the peer trusts");
    place.ebb(&["status", &address]).refused(1, "uses TLS, this end does not");
    place.ebb(&["status", "192.0.2.1:1"]).refused(1, "not a loopback address");
    let to_name = format!("ebb://localhost:{}/volume", address.rsplit_once(':').unwrap().1);
    let by_name = ["mount", &to_name, "mnt", "--data", "client", "--tls", "m1"];
    place.ebb(&by_name).refused(1, "the peer's certificate is not for localhost");
    assert!(!place.is_mounted("mnt") && !place.path("client").exists());
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
}

#[test]
fn insecure_mount_warns() {
    let place = Place::new();
    let done = place.ebb(&["mount", place.url(), "mnt", "--data", "data", "--insecure"]).good();
    assert!(done.err.contains("neither encrypted nor authenticated"), "{done:?}");
    place.umount();
}

#[test]
fn cert_shows_what_was_issued() {
    let place = Place::new();
    let made = place.ebb(&["cert", "init", "--dir", "ca", "--name", "prod"]).good();
    assert!(made.out.contains("kind       CA\nname       prod CA\n"), "{made:?}");
    let issue = [
        "cert",
        "issue",
        "--dir",
        "ca",
        "--for",
        "node",
        "--name",
        "n1",
        "--address",
        "10.0.0.5",
        "--address",
        "fs.example",
        "--days",
        "30",
        "--out",
        "n1",
        "--json",
    ];
    let made = place.ebb(&issue).good().json();
    let shown = place.ebb(&["cert", "show", "n1/cert.pem", "--json"]).good().json();
    assert_eq!(shown, made);
    let one = &shown[0];
    assert_eq!((&one["kind"], &one["name"]), (&"node".into(), &"n1".into()));
    assert_eq!(one["addresses"], serde_json::json!(["n1", "10.0.0.5", "fs.example"]));
    assert_eq!((&one["issuer"], &one["valid"]), (&"prod CA".into(), &true.into()));
    assert_eq!(one["sha256"].as_str().unwrap().len(), 32 * 3 - 1);
    let text = place.ebb(&["cert", "show", "n1/cert.pem"]).good().out;
    for line in ["kind       node", "addresses  n1, 10.0.0.5, fs.example", "issuer     prod CA"] {
        assert!(text.contains(line), "{text}");
    }
    for (file, mode) in [("ca/ca-key.pem", 0o600), ("n1/key.pem", 0o600), ("ca", 0o700)] {
        let permissions = fs::metadata(place.path(file)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o7777, mode, "{file}");
    }
    assert_eq!(
        fs::read(place.path("ca/ca.pem")).unwrap(),
        fs::read(place.path("n1/ca.pem")).unwrap()
    );
    // A renewal.
    let again = place.ebb(&issue).good().json();
    assert_ne!(again[0]["sha256"], made[0]["sha256"]);
}

#[test]
fn cert_refusals_name_the_cause() {
    let place = Place::new();
    place.with_ca();
    place.ebb(&["cert", "init", "--dir", "ca"]).refused(1, "ca/ca.pem: it exists");
    place.issue("node", "n1");
    let refused = |dir: &str, kind: &str, name: &str, more: &[&str], status: i32, text: &str| {
        let issue = ["cert", "issue", "--dir", dir, "--for", kind, "--name", name];
        place.ebb(&[&issue[..], more].concat()).refused(status, text);
    };
    let out = ["--out", "out"];
    refused("none", "node", "n2", &out, 1, "none/ca.pem: No such file");
    refused("n1", "node", "n2", &out, 1, "n1/ca-key.pem: No such file");
    refused("ca", "node", "a/b", &out, 2, "cannot be the name of a node");
    refused("ca", "mount", "n1", &["--out", "n1"], 1, "it is the certificate of node n1");
    refused("ca", "node", "n2", &["--out", "ca"], 1, "the directory of the CA is not for other");
    refused("ca", "tool", "t", &["--address", "x", "--out", "out"], 2, "a tool has no address");
    refused("ca", "node", "n2", &["--address", "x y", "--out", "out"], 2, "no host name");
    refused("ca", "node", "n2", &["--days", "36500", "--out", "out"], 2, "the CA ends at 20");
    let show = |file: &str, text: &str| {
        place.ebb(&["cert", "show", file]).refused(1, text);
    };
    show("n1/key.pem", "it holds a private key, not a certificate");
    show("none", "none: No such file");
    fs::write(place.path("text"), "text").unwrap();
    show("text", "it holds no certificate");
    fs::set_permissions(place.path("ca/ca-key.pem"), fs::Permissions::from_mode(0o640)).unwrap();
    place.issue("node", "n1");
    fs::set_permissions(place.path("ca/ca-key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    refused("ca", "node", "n2", &out, 1, "its permissions 0644 are too open");
    // A certificate that is no CA's.
    fs::copy(place.path("n1/cert.pem"), place.path("ca/ca.pem")).unwrap();
    refused("ca", "node", "n2", &out, 1, "it is the certificate of no CA");
    assert!(!place.path("out").exists());
}
