//! The peer of a connection: webpki verifies its chain, validity, key usage and name, and these
//! verifiers its kind.

use crate::{Identity, Kind};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;
use webpki::EndEntityCert;

/// The certificate is valid, and of the wrong kind.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongKind(String);

/// Accepts nodes.
#[derive(Debug)]
pub(crate) struct NodeVerifier {
    webpki: Arc<WebPkiServerVerifier>,
}

/// Accepts mounts, tools and other nodes.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
}

impl NodeVerifier {
    pub fn new(roots: Arc<RootCertStore>, crypto: Arc<CryptoProvider>) -> Result<Self, String> {
        let webpki = WebPkiServerVerifier::builder_with_provider(roots, crypto).build();
        Ok(NodeVerifier { webpki: webpki.map_err(|error| error.to_string())? })
    }
}

impl ClientVerifier {
    pub fn new(roots: Arc<RootCertStore>, crypto: Arc<CryptoProvider>) -> Result<Self, String> {
        let webpki = WebPkiClientVerifier::builder_with_provider(roots, crypto).build();
        Ok(ClientVerifier { webpki: webpki.map_err(|error| error.to_string())? })
    }
}

fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, Error> {
    let parsed = EndEntityCert::try_from(certificate);
    let parsed = parsed.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    Identity::among(parsed.valid_uri_names())
        .map_err(|what| wrong_kind(format!("the peer's certificate is not accepted: {what}")))
}

fn wrong_kind(what: String) -> Error {
    let error = OtherError(Arc::new(WrongKind(what)));
    Error::InvalidCertificate(CertificateError::Other(error))
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.webpki.verify_server_cert(
            certificate,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let identity = identity(certificate)?;
        match identity.kind {
            Kind::Node => Ok(verified),
            Kind::Mount | Kind::Tool => {
                Err(wrong_kind(format!("the peer is not a node: its certificate is of {identity}")))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.webpki.verify_client_cert(certificate, intermediates, now)?;
        match identity(certificate)?.kind {
            Kind::Node | Kind::Mount | Kind::Tool => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
