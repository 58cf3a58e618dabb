//! The settings of encryption in transit: certificates, or none.

use crate::failure::Failure;
use crate::output::Shown;
use ebb_certificates::Credentials;
use ebb_cli::args::Tls;
use ebb_os::Security;
use std::path::absolute;
use std::rc::Rc;

/// Reads the certificates that the settings name.
pub fn open(tls: &Tls) -> Result<Security, String> {
    match (&tls.tls, tls.insecure) {
        (Some(dir), _) => {
            let credentials = Credentials::open(dir).map_err(|error| error.to_string())?;
            Ok(Security::Tls(Rc::new(credentials)))
        }
        (None, true) => Ok(Security::Insecure),
        (None, false) => Ok(Security::LoopbackOnly),
    }
}

/// The settings with an absolute path, since the working directory of a daemon may change.
pub fn located(tls: Tls) -> Result<Tls, Failure> {
    let dir = tls.tls.map(|dir| absolute(&dir).map_err(|error| Failure::of(dir.shown(), error)));
    Ok(Tls { tls: dir.transpose()?, ..tls })
}

/// Peers refuse an expired certificate. Not for a daemon that takes over: its mount works without a
/// certificate.
pub fn check_validity(security: &Security) -> Result<(), Failure> {
    match security {
        Security::Tls(credentials) => {
            credentials.check_validity().map_err(|error| Failure::Failed(error.to_string()))
        }
        Security::LoopbackOnly | Security::Insecure => Ok(()),
    }
}

/// Warning for a mount or node that starts with `--insecure`.
pub const INSECURE: &str = "--insecure: connections to and from other machines are neither \
    encrypted nor authenticated";
