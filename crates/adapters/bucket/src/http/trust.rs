//! Which servers are trusted: by all certificates that settings name, else by the system's, else by
//! the built-in ones.

use super::credentials::{Environment, variable};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_native_certs::load_certs_from_paths;
use std::path::Path;
use std::sync::Arc;

/// Certificates to trust, and the setting that names them.
pub(crate) struct Bundle {
    pub setting: &'static str,
    pub path: String,
}

/// An error names the setting of an unusable file.
pub(crate) fn tls(
    environment: &Environment,
    bundle: Option<Bundle>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3");
    let Some(named) = named(environment, bundle)? else {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            // An image without certificates.
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        return Ok(config.with_root_certificates(roots).with_no_client_auth());
    };
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(named.certificates.iter().cloned());
    if usable == 0 {
        return Err(format!("{} names no usable certificate", named.settings));
    }
    let verifier = Pinned::new(roots, named.certificates, provider)?;
    Ok(config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

struct Named {
    settings: String,
    certificates: Vec<CertificateDer<'static>>,
}

/// The certificates that the settings name; `None` if there are no such settings.
fn named(environment: &Environment, bundle: Option<Bundle>) -> Result<Option<Named>, String> {
    let mut paths: Vec<(&str, String)> =
        bundle.into_iter().map(|Bundle { setting, path }| (setting, path)).collect();
    paths.extend(variable(environment, CERT_FILE).map(|path| (CERT_FILE, path)));
    let dirs = variable(environment, CERT_DIR).unwrap_or_default();
    let dirs = dirs.split(':').filter(|dir| !dir.is_empty());
    paths.extend(dirs.map(|dir| (CERT_DIR, dir.to_owned())));
    if paths.is_empty() {
        return Ok(None);
    }
    let mut certificates = Vec::new();
    for (setting, path) in &paths {
        let found = match Path::new(path) {
            dir if dir.is_dir() => load_certs_from_paths(None, Some(dir)),
            file => load_certs_from_paths(Some(file), None),
        };
        // A directory may hold other files besides.
        if let (true, Some(error)) = (found.certs.is_empty(), found.errors.first()) {
            return Err(format!("{setting} names {path}: {error}"));
        }
        certificates.extend(found.certs);
    }
    let mut settings: Vec<&str> = paths.iter().map(|(setting, _)| *setting).collect();
    settings.dedup();
    Ok(Some(Named { settings: settings.join(" and "), certificates }))
}

/// Trusts certificates that are signed by the named certificates, and these certificates
/// themselves, also where they are those of authorities: as `openssl req -x509` makes them for a
/// single server.
///
/// webpki does not accept an authority as a server, and reports so after it has checked the dates
/// and before it looks for an issuer. For a server that shows a named certificate only the issuer
/// remains to be checked: the handshake's signature proves that the server has the key, as always.
#[derive(Debug)]
struct Pinned {
    chains: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Pinned {
    fn new(
        roots: RootCertStore,
        certificates: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Pinned, String> {
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Pinned { chains, certificates })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chains.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            Err(error) if is_of_issuer(&error) && self.certificates.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// The certificate's only fault is its issuer.
fn is_of_issuer(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}

const CERT_FILE: &str = "SSL_CERT_FILE";
const CERT_DIR: &str = "SSL_CERT_DIR";

#[cfg(test)]
mod tests;
