//! Describes TLS errors: which certificate is refused, and why.

use crate::certificate::shown_time;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};
use std::io;

/// `None` for errors that are not of TLS.
pub fn explain(error: &io::Error) -> Option<String> {
    Some(match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(error) => of_peer(error),
        Error::NoCertificatesPresented => "the peer has sent no certificate".into(),
        Error::AlertReceived(alert) => of_this_end(*alert),
        Error::InvalidMessage(_) => {
            "what the peer sends is not TLS: it may run without --tls".into()
        }
        Error::PeerIncompatible(error) => format!("the peer does not speak TLS 1.3: {error:?}"),
        error => format!("TLS: {error}"),
    })
}

/// The certificate that the peer has sent.
fn of_peer(error: &CertificateError) -> String {
    let at = |time: &UnixTime| shown_time(time.as_secs().try_into().unwrap_or(i64::MAX));
    match error {
        CertificateError::Expired => "the peer's certificate has expired".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the peer's certificate expired at {}", at(not_after))
        }
        CertificateError::NotValidYet => {
            "the peer's certificate is not valid yet: check the clocks".into()
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the peer's certificate is not valid before {}: check the clocks",
            at(not_before)
        ),
        // If CAs have the same name, only the signature tells them apart.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the peer's certificate is from no CA of ca.pem".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the peer's certificate is not for {}, but for {}",
            expected.to_str(),
            match presented.is_empty() {
                true => "no address".into(),
                false => presented.join(", "),
            }
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the peer's certificate is not for this use (extended key usage): a node serves with \
             the certificate of a node"
                .into()
        }
        CertificateError::Other(error) => error.0.to_string(),
        error => format!("the peer's certificate is not accepted: {error}"),
    }
}

/// The reason why the peer refuses the certificate of this process.
fn of_this_end(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "the peer refuses this certificate: it has expired or is not valid yet".into()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the peer refuses this certificate: it is from no CA that the peer trusts".into()
        }
        AlertDescription::CertificateUnknown | AlertDescription::UnsupportedCertificate => {
            "the peer refuses this certificate: it is of the wrong kind (`ebb cert show`)".into()
        }
        AlertDescription::CertificateRequired => "the peer asks for a certificate".into(),
        AlertDescription::BadCertificate => "the peer refuses this certificate".into(),
        alert => format!("the peer has ended TLS: {alert:?}"),
    }
}
