//! `ebb cert`: a CA and the certificates of nodes, mounts and tools.

use crate::failure::Failure;
use crate::output;
use ebb_certificates::{
    Authority, Certificate, CertificateError, Identity, Kind, Request, now, shown_time,
};
use ebb_cli::args::{Cert, CertificateKind, InitCa, IssueCertificate, Output, ShowCertificate};
use ebb_model::shown_text;
use serde_json::{Value, json};

pub fn run(command: Cert) -> Result<(), Failure> {
    match command {
        Cert::Init(args) => init(&args),
        Cert::Issue(args) => issue(&args),
        Cert::Show(args) => show(&args),
    }
}

fn init(args: &InitCa) -> Result<(), Failure> {
    let made = Authority::create(&args.dir, &args.name, now()).map_err(failed)?;
    print(&[made], args.output)
}

fn issue(args: &IssueCertificate) -> Result<(), Failure> {
    let kind = match args.kind {
        CertificateKind::Node => Kind::Node,
        CertificateKind::Mount => Kind::Mount,
        CertificateKind::Tool => Kind::Tool,
    };
    let identity = Identity::new(kind, &args.name).map_err(Failure::Usage)?;
    let request = Request { identity, addresses: args.address.clone(), days: args.days };
    let authority = Authority::open(&args.dir, now()).map_err(failed)?;
    let made = authority.issue(&request, &args.out, now()).map_err(failed)?;
    print(&[made], args.output)
}

fn show(args: &ShowCertificate) -> Result<(), Failure> {
    print(&Certificate::read(&args.file).map_err(failed)?, args.output)
}

fn failed(error: CertificateError) -> Failure {
    match error {
        CertificateError::Request(what) => Failure::Usage(what),
        error @ CertificateError::File { .. } => Failure::Failed(error.to_string()),
    }
}

fn print(certificates: &[Certificate], output: Output) -> Result<(), Failure> {
    match output.json {
        true => output::json(&json!(certificates.iter().map(document).collect::<Vec<_>>())),
        false => output::print(&certificates.iter().map(text).collect::<Vec<_>>().join("\n")),
    }
}

/// The use of the certificate, in words.
fn role(certificate: &Certificate) -> &'static str {
    match &certificate.identity {
        _ if certificate.is_ca => "CA",
        Ok(identity) => identity.kind.name(),
        Err(_) => "other",
    }
}

fn name(certificate: &Certificate) -> &str {
    certificate.identity.as_ref().map_or(&certificate.subject, |identity| &identity.name)
}

fn text(certificate: &Certificate) -> String {
    let mut lines = vec![("kind", role(certificate).to_owned())];
    lines.push(("name", name(certificate).to_owned()));
    if !certificate.addresses.is_empty() {
        lines.push(("addresses", certificate.addresses.join(", ")));
    }
    lines.push(("issuer", certificate.issuer.clone()));
    let validity = match certificate.check_validity(now()) {
        Ok(()) => "valid".to_owned(),
        Err(why) => why,
    };
    let (from, to) = (shown_time(certificate.not_before), shown_time(certificate.not_after));
    lines.push(("validity", format!("{from} to {to}: {validity}")));
    lines.push(("SHA-256", certificate.fingerprint.clone()));
    if let (Err(why), false) = (&certificate.identity, certificate.is_ca) {
        lines.push(("unusable", why.clone()));
    }
    lines.iter().map(|(label, value)| format!("{label:<10} {}\n", shown_text(value))).collect()
}

fn document(certificate: &Certificate) -> Value {
    json!({
        "kind": role(certificate).to_lowercase(),
        "name": name(certificate),
        "addresses": certificate.addresses,
        "issuer": certificate.issuer,
        "not_before": shown_time(certificate.not_before),
        "not_after": shown_time(certificate.not_after),
        "valid": certificate.check_validity(now()).is_ok(),
        "sha256": certificate.fingerprint,
    })
}
