//! A certificate as people see it.

use crate::{CertificateError, Identity};
use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::net::IpAddr;
use std::path::Path;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Times are seconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    pub is_ca: bool,
    /// Or why it belongs to no node, mount or tool.
    pub identity: Result<Identity, String>,
    /// The common name, or the whole subject if it has none.
    pub subject: String,
    pub issuer: String,
    /// DNS names and IP addresses.
    pub addresses: Vec<String>,
    pub not_before: i64,
    pub not_after: i64,
    /// SHA-256 of the certificate, in hexadecimal digits with colons.
    pub fingerprint: String,
}

impl Certificate {
    /// All certificates of a PEM file, at least one.
    pub fn read(path: &Path) -> Result<Vec<Certificate>, CertificateError> {
        let ders = read_pem(path)?;
        ders.iter()
            .map(|der| Certificate::parse(der).map_err(|what| CertificateError::file(path, what)))
            .collect()
    }

    pub fn parse(der: &[u8]) -> Result<Certificate, String> {
        let (_, x509) = X509Certificate::from_der(der)
            .map_err(|error| format!("it holds a certificate that cannot be read: {error}"))?;
        let names = x509.subject_alternative_name().ok().flatten();
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let digest = digest::digest(&digest::SHA256, der);
        let pairs: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(Certificate {
            is_ca: x509.is_ca(),
            identity: Identity::among(uris),
            subject: shown_name(x509.subject()),
            issuer: shown_name(x509.issuer()),
            addresses: names.iter().filter_map(address).collect(),
            not_before: x509.validity().not_before.timestamp(),
            not_after: x509.validity().not_after.timestamp(),
            fingerprint: pairs.join(":"),
        })
    }

    /// Why it cannot be used at this time, if so.
    pub fn check_validity(&self, now: i64) -> Result<(), String> {
        if now > self.not_after {
            return Err(format!("it expired at {}", shown_time(self.not_after)));
        }
        if now < self.not_before {
            return Err(format!(
                "it is not valid before {}: check the clock",
                shown_time(self.not_before)
            ));
        }
        Ok(())
    }
}

/// The certificates of a PEM file, at least one.
pub(crate) fn read_pem(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let failed = |what: &dyn std::fmt::Display| CertificateError::file(path, what);
    let text = std::fs::read(path).map_err(|error| failed(&error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| failed(&format!("it is not PEM: {error}")))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let is_key = text.windows(KEY_MARK.len()).any(|window| window == KEY_MARK);
    Err(failed(&if is_key {
        "it holds a private key, not a certificate"
    } else {
        "it holds no certificate in PEM format"
    }))
}

const KEY_MARK: &[u8] = b"PRIVATE KEY-----";

fn shown_name(name: &x509_parser::x509::X509Name<'_>) -> String {
    let common = name.iter_common_name().next().and_then(|name| name.as_str().ok());
    common.map_or_else(|| name.to_string(), str::to_owned)
}

fn address(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let ip = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            ip.ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// RFC 3339, in UTC.
pub fn shown_time(secs: i64) -> String {
    let Ok(time) = OffsetDateTime::from_unix_timestamp(secs) else { return secs.to_string() };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}
