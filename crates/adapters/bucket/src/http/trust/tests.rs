use super::*;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeMap;
use std::time::Duration;

// As `openssl req -x509` makes them: self-signed, CA:TRUE, for localhost and 127.0.0.1, good from
// November 2026 on for a hundred years. The leaf is for leaf.example, signed by the first.
const SERVER: &str = include_str!("server.pem");
const OTHER: &str = include_str!("other.pem");
const LEAF: &str = include_str!("leaf.pem");
const IN_2030: u64 = 1_893_456_000;

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// The verification of a server that shows the first of these, where `trusted` is named.
fn verified(trusted: &str, shown: &str, name: &str, secs: u64) -> Result<(), Error> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(trusted)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pinned = Pinned::new(roots, vec![certificate(trusted)], provider).unwrap();
    let name = ServerName::try_from(name).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(secs));
    pinned.verify_server_cert(&certificate(shown), &[], &name, &[], now).map(drop)
}

#[test]
fn named_certificate_of_an_authority_is_trusted_for_its_server() {
    assert_eq!(verified(SERVER, SERVER, "localhost", IN_2030), Ok(()));
    assert_eq!(verified(SERVER, SERVER, "127.0.0.1", IN_2030), Ok(()));
    assert_eq!(verified(SERVER, LEAF, "leaf.example", IN_2030), Ok(()));
    // A certificate of an unknown authority, which is named itself.
    assert_eq!(verified(LEAF, LEAF, "leaf.example", IN_2030), Ok(()));
}

/// Danger: a certificate that is trusted by itself is accepted for any name, at any time, or in
/// place of another one.
#[test]
fn named_certificate_is_checked_like_any_other() {
    let fault = |trusted, shown, name, secs| match verified(trusted, shown, name, secs) {
        Err(Error::InvalidCertificate(fault)) => format!("{fault:?}"),
        other => panic!("{other:?}"),
    };
    for (trusted, name) in [(SERVER, "localhost"), (LEAF, "leaf.example")] {
        let early = fault(trusted, trusted, name, 1_000_000_000);
        assert!(early.starts_with("NotValidYet"), "{early}");
        let late = fault(trusted, trusted, name, 6_000_000_000);
        assert!(late.starts_with("Expired"), "{late}");
        let elsewhere = fault(trusted, trusted, "example.com", IN_2030);
        assert!(elsewhere.starts_with("NotValidForName"), "{elsewhere}");
    }
    let other = fault(SERVER, OTHER, "localhost", IN_2030);
    assert!(other.contains("CaUsedAsEndEntity"), "{other}");
    // Its issuer has the name of the other, and another key.
    assert_eq!(fault(OTHER, LEAF, "leaf.example", IN_2030), "BadSignature");
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Arc::new(move |name| variables.get(name).cloned())
}

#[test]
fn files_that_are_of_no_use_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("empty.pem"), "no certificate").unwrap();
    std::fs::create_dir(path("certificates")).unwrap();
    std::fs::write(path("certificates/one.pem"), SERVER).unwrap();
    std::fs::write(path("certificates/README"), "not this").unwrap();
    for setting in [CERT_FILE, CERT_DIR] {
        let error = |name: &str| tls(&environment(&[(setting, &path(name))]), None).unwrap_err();
        assert!(error("none").starts_with(setting), "{}", error("none"));
        assert!(error("empty.pem").starts_with(setting), "{}", error("empty.pem"));
        assert!(tls(&environment(&[(setting, &path("certificates"))]), None).is_ok());
    }
    let bundle = |path| Some(Bundle { setting: "AWS_CA_BUNDLE", path });
    // Both count.
    let with_none = environment(&[(CERT_FILE, &path("none"))]);
    assert!(tls(&with_none, bundle(path("certificates/one.pem"))).is_err());
    assert!(tls(&environment(&[]), bundle(path("none"))).unwrap_err().starts_with("AWS_CA_BUNDLE"));
    assert!(tls(&environment(&[]), None).is_ok());
}
