//! A CA in a directory, and the certificates that it issues.

use crate::certificate::{read_pem, shown_time};
use crate::credentials::{CERTIFICATE_FILE, KEY_FILE, check_key_mode};
use crate::{Certificate, CertificateError, Identity, Kind};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// The certificate of the CA, in its own directory and beside each certificate.
pub const CA_FILE: &str = "ca.pem";

/// The key of the CA, in its own directory alone.
pub const CA_KEY_FILE: &str = "ca-key.pem";

const CA_DAYS: i64 = 3650;

/// Peers whose clocks are behind accept a new certificate.
const BACKDATED: Duration = Duration::HOUR;

pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// A certificate to issue.
pub struct Request {
    pub identity: Identity,
    /// IP addresses and DNS names, for nodes only.
    pub addresses: Vec<String>,
    pub days: u32,
}

impl Authority {
    /// Creates a CA in a directory that has none, and the directory if it is missing.
    pub fn create(dir: &Path, cluster: &str, now: i64) -> Result<Certificate, CertificateError> {
        let (certificate_path, key_path) = (dir.join(CA_FILE), dir.join(CA_KEY_FILE));
        for path in [&certificate_path, &key_path] {
            if path.symlink_metadata().is_ok() {
                let what = "it exists; a CA is never overwritten, choose another directory";
                return Err(CertificateError::file(path, what));
            }
        }
        if !(1..=MAX_CLUSTER_BYTES).contains(&cluster.len())
            || cluster.chars().any(char::is_control)
        {
            return Err(CertificateError::Request(format!(
                "{cluster:?} cannot be the name of a cluster: 1 to {MAX_CLUSTER_BYTES} bytes \
                 without control characters"
            )));
        }
        create_dir(dir)?;
        let mut params = params(&format!("{cluster} CA"), now, CA_DAYS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let certificate = params.self_signed(&key).map_err(|error| broken(&error))?;
        write_new(&key_path, &key.serialize_pem(), 0o600)?;
        write_new(&certificate_path, &certificate.pem(), 0o644)?;
        Certificate::parse(certificate.der()).map_err(CertificateError::Request)
    }

    pub fn open(dir: &Path, now: i64) -> Result<Authority, CertificateError> {
        let (certificate_path, key_path) = (dir.join(CA_FILE), dir.join(CA_KEY_FILE));
        let ders = read_pem(&certificate_path)?;
        let of_ca = |what: String| CertificateError::file(&certificate_path, what);
        // Further ones are those of earlier CAs, which peers still trust.
        let certificate = Certificate::parse(&ders[0]).map_err(of_ca)?;
        if !certificate.is_ca {
            return Err(of_ca("it is the certificate of no CA".into()));
        }
        certificate.check_validity(now).map_err(of_ca)?;
        check_key_mode(&key_path)?;
        let of_key = |what: &dyn std::fmt::Display| CertificateError::file(&key_path, what);
        let text = fs::read_to_string(&key_path).map_err(|error| of_key(&error))?;
        let key = KeyPair::from_pem(&text)
            .map_err(|error| of_key(&format!("it holds no usable private key: {error}")))?;
        if !has_public_key(&ders[0], key.public_key_raw()) {
            return Err(of_key(&format!("it is not the key of {CA_FILE}")));
        }
        let issuer = Issuer::from_ca_cert_der(&ders[0], key).map_err(|e| of_ca(e.to_string()))?;
        Ok(Authority { dir: dir.to_owned(), issuer, certificate })
    }

    /// Writes certificate, key and the certificate of the CA to a directory. A certificate of the
    /// same owner is renewed, with a new key; any other is refused.
    pub fn issue(
        &self,
        request: &Request,
        out: &Path,
        now: i64,
    ) -> Result<Certificate, CertificateError> {
        let identity = &request.identity;
        let path = out.join(CERTIFICATE_FILE);
        if same_directory(out, &self.dir) {
            return Err(CertificateError::file(
                out,
                "the directory of the CA is not for other certificates: its key stays there",
            ));
        }
        if path.symlink_metadata().is_ok() {
            let former = Certificate::read(&path)?.swap_remove(0);
            if former.identity.as_ref() != Ok(identity) {
                let owner = former.identity.map_or(former.subject, |owner| owner.to_string());
                return Err(CertificateError::file(
                    &path,
                    format!("it is the certificate of {owner}, and is not overwritten"),
                ));
            }
        }
        let mut params = params(&identity.name, now, request.days.into())?;
        if params.not_after.unix_timestamp() > self.certificate.not_after {
            return Err(CertificateError::Request(format!(
                "the CA ends at {}, before this certificate would: choose fewer days",
                shown_time(self.certificate.not_after)
            )));
        }
        params.subject_alt_names = alternative_names(identity, &request.addresses)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match identity.kind {
            Kind::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Kind::Mount | Kind::Tool => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| broken(&error))?;
        let ca_path = self.dir.join(CA_FILE);
        let ca = fs::read_to_string(&ca_path)
            .map_err(|error| CertificateError::file(&ca_path, error))?;
        create_dir(out)?;
        replace(&out.join(CA_FILE), &ca, 0o644)?;
        replace(&out.join(KEY_FILE), &key.serialize_pem(), 0o600)?;
        replace(&path, &certificate.pem(), 0o644)?;
        Certificate::parse(certificate.der()).map_err(CertificateError::Request)
    }
}

const MAX_CLUSTER_BYTES: usize = 60;

fn params(name: &str, now: i64, days: i64) -> Result<CertificateParams, CertificateError> {
    let range = || CertificateError::Request(format!("{days} days from now are out of range"));
    let begin = OffsetDateTime::from_unix_timestamp(now).map_err(|_| range())?;
    let mut params = CertificateParams::default();
    params.not_before = begin - BACKDATED;
    params.not_after = begin.checked_add(Duration::days(days)).ok_or_else(range)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// The identity, and for a node the names under which it is reached, its own name included.
fn alternative_names(
    identity: &Identity,
    addresses: &[String],
) -> Result<Vec<SanType>, CertificateError> {
    let wrong = |what: String| CertificateError::Request(what);
    let dns = |name: &str| {
        name.try_into().map(SanType::DnsName).map_err(|_| format!("{name:?} is no host name"))
    };
    let uri = identity.uri();
    let uri = uri.as_str().try_into().map_err(|error: rcgen::Error| wrong(error.to_string()))?;
    let mut names = vec![SanType::URI(uri)];
    if identity.kind != Kind::Node {
        return match addresses.is_empty() {
            true => Ok(names),
            false => Err(wrong(format!("a {} has no address", identity.kind))),
        };
    }
    names.push(dns(&identity.name).map_err(wrong)?);
    for address in addresses.iter().filter(|address| **address != identity.name) {
        names.push(match address.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) if is_host_name(address) => dns(address).map_err(wrong)?,
            Err(_) => {
                return Err(wrong(format!("{address:?} is no IP address and no host name")));
            }
        });
    }
    Ok(names)
}

/// Wildcards included.
fn is_host_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let text = text.strip_prefix("*.").unwrap_or(text);
    (1..=253).contains(&text.len())
        && text.bytes().all(fits)
        && text.split('.').all(|label| !label.is_empty())
}

fn has_public_key(der: &[u8], key: &[u8]) -> bool {
    let parsed = x509_parser::parse_x509_certificate(der);
    parsed.is_ok_and(|(_, x509)| *x509.public_key().subject_public_key.data == *key)
}

fn same_directory(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn create_dir(dir: &Path) -> Result<(), CertificateError> {
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.map_err(|error| CertificateError::file(dir, error))
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error: std::io::Error| CertificateError::file(path, error))
}

/// A process that reads the file at the same time gets the old or the new one whole.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let draft = path.with_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(CertificateError::file(&draft, error));
        }
        _ => {}
    }
    write_new(&draft, text, mode)?;
    fs::rename(&draft, path).map_err(|error| CertificateError::file(path, error))
}

fn broken(error: &rcgen::Error) -> CertificateError {
    CertificateError::Request(format!("no certificate can be made: {error}"))
}
