//! The certificate, key and CA of this process.

use crate::certificate::read_pem;
use crate::verify::{ClientVerifier, NodeVerifier};
use crate::{CA_FILE, Certificate, CertificateError, Kind, now};
use rustls::client::Resumption;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::cell::RefCell;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The certificate of the process, followed by those between it and the CA.
pub const CERTIFICATE_FILE: &str = "cert.pem";

pub const KEY_FILE: &str = "key.pem";

/// The files of a directory as they are now: new connections use changed files.
pub struct Credentials {
    dir: PathBuf,
    kind: Kind,
    current: RefCell<Current>,
}

struct Current {
    /// Of the last attempt to load, also of a failed one: that is not repeated before a file
    /// changes again.
    stamps: Option<[Stamp; 3]>,
    loaded: Loaded,
}

struct Loaded {
    certificate: Certificate,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Changes with the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified: (i64, i64),
}

impl Credentials {
    /// Loads the files. Validity is not checked: see [`Credentials::check_validity`].
    pub fn open(dir: &Path) -> Result<Credentials, CertificateError> {
        let stamps = stamps(dir);
        let loaded = load(dir)?;
        let path = dir.join(CERTIFICATE_FILE);
        let identity = loaded.certificate.identity.as_ref();
        let kind = identity.map_err(|what| CertificateError::file(&path, what))?.kind;
        let current = RefCell::new(Current { stamps, loaded });
        Ok(Credentials { dir: dir.to_owned(), kind, current })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An error for a certificate that has expired or is not valid yet.
    pub fn check_validity(&self) -> Result<(), CertificateError> {
        let certificate = &self.current.borrow().loaded.certificate;
        let path = self.dir.join(CERTIFICATE_FILE);
        certificate.check_validity(now()).map_err(|what| CertificateError::file(&path, what))
    }

    /// An error if peers would refuse this certificate as that of a node.
    pub fn check_serves(&self) -> Result<(), CertificateError> {
        match self.kind {
            Kind::Node => Ok(()),
            kind => Err(CertificateError::file(
                &self.dir.join(CERTIFICATE_FILE),
                format!(
                    "it is the certificate of a {kind}; only a node's can serve (`ebb cert issue \
                     --for node`)"
                ),
            )),
        }
    }

    pub fn client(&self) -> Arc<ClientConfig> {
        self.refresh();
        self.current.borrow().loaded.client.clone()
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        self.refresh();
        self.current.borrow().loaded.server.clone()
    }

    /// Loads changed files. If they cannot be used the previous ones stay.
    fn refresh(&self) {
        let found = stamps(&self.dir);
        if found == self.current.borrow().stamps {
            return;
        }
        let mut current = self.current.borrow_mut();
        current.stamps = found;
        match load(&self.dir).and_then(|loaded| self.same_kind(loaded)) {
            Ok(loaded) => {
                tracing::info!(
                    dir = %self.dir.display(),
                    fingerprint = loaded.certificate.fingerprint,
                    "new connections use the changed certificate"
                );
                current.loaded = loaded;
            }
            Err(error) => {
                tracing::warn!(%error, "the changed certificate is not used, the previous one is")
            }
        }
    }

    fn same_kind(&self, loaded: Loaded) -> Result<Loaded, CertificateError> {
        match &loaded.certificate.identity {
            Ok(identity) if identity.kind == self.kind => Ok(loaded),
            _ => Err(CertificateError::file(
                &self.dir.join(CERTIFICATE_FILE),
                format!("it is no longer the certificate of a {}", self.kind),
            )),
        }
    }
}

fn stamps(dir: &Path) -> Option<[Stamp; 3]> {
    let stamp = |name: &str| fs::metadata(dir.join(name)).ok().map(|about| Stamp::of(&about));
    Some([stamp(CA_FILE)?, stamp(CERTIFICATE_FILE)?, stamp(KEY_FILE)?])
}

impl Stamp {
    fn of(about: &Metadata) -> Stamp {
        Stamp {
            device: about.dev(),
            inode: about.ino(),
            len_bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
        }
    }
}

fn load(dir: &Path) -> Result<Loaded, CertificateError> {
    let (ca_path, path, key_path) =
        (dir.join(CA_FILE), dir.join(CERTIFICATE_FILE), dir.join(KEY_FILE));
    let of_ca = |what: String| CertificateError::file(&ca_path, what);
    let mut roots = RootCertStore::empty();
    for der in read_pem(&ca_path)? {
        let ca = Certificate::parse(&der).map_err(of_ca)?;
        if !ca.is_ca {
            return Err(of_ca(format!("the certificate of {} is of no CA", ca.subject)));
        }
        roots.add(der).map_err(|error| of_ca(error.to_string()))?;
    }
    let chain = read_pem(&path)?;
    let of_file = |what: String| CertificateError::file(&path, what);
    let certificate = Certificate::parse(&chain[0]).map_err(of_file)?;
    check_key_mode(&key_path)?;
    let of_key = |what: &dyn std::fmt::Display| CertificateError::file(&key_path, what);
    let pem = fs::read(&key_path).map_err(|error| of_key(&error))?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| of_key(&format!("it holds no private key in PEM format: {error}")))?;

    let roots = Arc::new(roots);
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let nodes = NodeVerifier::new(roots.clone(), crypto.clone()).map_err(of_ca)?;
    let clients = ClientVerifier::new(roots, crypto.clone()).map_err(of_ca)?;
    let unusable = |error: rustls::Error| match error {
        rustls::Error::InconsistentKeys(_) => {
            of_key(&format!("it is not the key of {CERTIFICATE_FILE}"))
        }
        error => of_key(&error),
    };
    let mut client = ClientConfig::builder_with_provider(crypto.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(nodes))
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(unusable)?;
    let mut server = ServerConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(Arc::new(clients))
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    // A resumed session would skip the check of the certificates.
    client.resumption = Resumption::disabled();
    server.send_tls13_tickets = 0;
    Ok(Loaded { certificate, client: Arc::new(client), server: Arc::new(server) })
}

/// The group may read a key, as it must in containers that do not run as root.
pub(crate) fn check_key_mode(path: &Path) -> Result<(), CertificateError> {
    let about = fs::metadata(path).map_err(|error| CertificateError::file(path, error))?;
    let mode = about.mode() & 0o7777;
    if mode & 0o037 != 0 {
        return Err(CertificateError::file(
            path,
            format!("its permissions {mode:04o} are too open for a private key: chmod 600"),
        ));
    }
    Ok(())
}
