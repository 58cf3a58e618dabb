//! AWS signature version 4 in the Authorization header. It covers the payload's SHA-256, which
//! every store verifies, so a body damaged in transit is rejected even without TLS; or the request
//! carries another checksum for that (`checksums.rs`).

use super::credentials::Credentials;
use crate::http::client::Outgoing;
use crate::http::encode::hex;
use crate::http::time::basic_iso;
use ring::{digest, hmac};

pub(super) const CONTENT_SHA256: &str = "x-amz-content-sha256";
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Adds the headers that make the request authentic. Headers that begin with `x-amz-` are signed.
pub(super) fn sign(
    request: &mut Outgoing,
    host: &str,
    credentials: &Credentials,
    region: &str,
    service: &str,
    now_secs: i64,
) {
    let time = basic_iso(now_secs);
    let date = &time[..8];
    let said = request
        .headers
        .iter()
        .find(|(name, _)| name == CONTENT_SHA256)
        .map(|(_, said)| said.clone());
    let payload = said
        .clone()
        .unwrap_or_else(|| hex(digest::digest(&digest::SHA256, &request.body).as_ref()));

    let mut add = |name: &str, value: &str| request.headers.push((name.into(), value.into()));
    if said.is_none() {
        add(CONTENT_SHA256, &payload);
    }
    add("x-amz-date", &time);
    if let Some(token) = &credentials.session_token {
        add("x-amz-security-token", token.expose());
    }
    let mut signed: Vec<(&str, String)> = request
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-amz-"))
        .map(|(name, value)| (name.as_str(), collapse(value)))
        .chain([("host", host.to_string())])
        .collect();
    signed.sort();
    let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let headers: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();

    let canonical = format!(
        "{}\n{}\n{}\n{headers}\n{names}\n{payload}",
        request.method, request.path, request.query
    );
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref())
    );

    let mut key = mac(format!("AWS4{}", credentials.secret_key.expose()).as_bytes(), date);
    for part in [region, service, "aws4_request"] {
        key = mac(key.as_ref(), part);
    }
    let signature = hex(mac(key.as_ref(), &to_sign).as_ref());
    request.headers.push((
        "authorization".to_string(),
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            credentials.access_key
        ),
    ));
}

/// Runs of blanks count as one in a signature.
fn collapse(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn mac(key: &[u8], message: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::credentials::Secret;
    use bytes::Bytes;

    /// "GET Bucket Lifecycle" of the S3 API reference.
    #[test]
    fn the_published_example_is_signed_as_published() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            session_token: None,
            expires_secs: None,
        };
        let (path, query) = ("/".to_string(), "lifecycle=".to_string());
        let mut request =
            Outgoing { method: "GET", path, query, headers: vec![], body: Bytes::new() };
        sign(
            &mut request,
            "examplebucket.s3.amazonaws.com",
            &credentials,
            "us-east-1",
            "s3",
            1_369_353_600,
        );
        let authorization =
            &request.headers.iter().find(|(name, _)| name == "authorization").unwrap().1;
        assert!(
            authorization
                .ends_with("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            "{authorization}"
        );
    }
}
