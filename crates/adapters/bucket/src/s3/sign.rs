//! AWS signature version 4 in the Authorization header. The payload's SHA-256 is always
//! signed: every store checks it, so a body damaged on its way is refused, with or without TLS.

use super::credentials::Credentials;
use super::time::basic_iso;
use ring::{digest, hmac};
use std::fmt::Write;

/// What is signed of one request. Path and query are in their encoded form, exactly as sent.
pub(super) struct ToSign<'a> {
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    /// Lower-case names. Those that begin with `x-amz-` are signed.
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
}

/// The headers that make the request authentic.
pub(super) fn sign(request: &ToSign, credentials: &Credentials, region: &str, service: &str, now_secs: i64) -> Vec<(String, String)> {
    let time = basic_iso(now_secs);
    let date = &time[..8];
    let payload = hex(digest::digest(&digest::SHA256, request.body).as_ref());

    let mut added = vec![("x-amz-content-sha256".to_string(), payload.clone()), ("x-amz-date".to_string(), time.clone())];
    if let Some(token) = &credentials.session_token {
        added.push(("x-amz-security-token".to_string(), token.expose().to_string()));
    }
    let mut signed: Vec<(&str, String)> = request
        .headers
        .iter()
        .chain(&added)
        .filter(|(name, _)| name.starts_with("x-amz-"))
        .map(|(name, value)| (name.as_str(), collapse(value)))
        .chain([("host", request.host.to_string())])
        .collect();
    signed.sort();
    let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let headers: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();

    let canonical = format!("{}\n{}\n{}\n{headers}\n{names}\n{payload}", request.method, request.path, request.query);
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref()));

    let mut key = mac(format!("AWS4{}", credentials.secret_key.expose()).as_bytes(), date);
    for part in [region, service, "aws4_request"] {
        key = mac(key.as_ref(), part);
    }
    let signature = hex(mac(key.as_ref(), &to_sign).as_ref());
    added.push((
        "authorization".to_string(),
        format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", credentials.access_key),
    ));
    added
}

/// Percent-encodes all but what RFC 3986 leaves unreserved; that form both travels and is
/// signed. `/` stays in paths.
pub(super) fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            b'/' if keep_slash => out.push('/'),
            _ => write!(out, "%{byte:02X}").expect("writing to a String"),
        }
    }
    out
}

/// Sorted and encoded, as the signature wants it; sent the same way.
pub(super) fn encode_query(pairs: &[(&str, String)]) -> String {
    let mut pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false))).collect();
    pairs.sort();
    pairs.join("&")
}

/// Runs of blanks count as one in a signature.
fn collapse(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn mac(key: &[u8], message: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(out, "{byte:02x}").expect("writing to a String");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::credentials::{Credentials, Secret};
    use super::*;

    /// "GET Bucket Lifecycle" of the S3 API reference.
    #[test]
    fn the_published_example_is_signed_as_published() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            session_token: None,
            expires_secs: None,
        };
        let request =
            ToSign { method: "GET", host: "examplebucket.s3.amazonaws.com", path: "/", query: "lifecycle=", headers: &[], body: b"" };
        let headers = sign(&request, &credentials, "us-east-1", "s3", 1_369_353_600);
        let authorization = &headers.iter().find(|(name, _)| name == "authorization").unwrap().1;
        assert!(authorization.ends_with("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"), "{authorization}");
    }

    #[test]
    fn keys_are_encoded_byte_by_byte() {
        assert_eq!(encode("../a//b c+é/", true), "../a//b%20c%2B%C3%A9/");
        assert_eq!(encode("a/b", false), "a%2Fb");
        assert_eq!(encode_query(&[("prefix", "a b".into()), ("list-type", "2".into())]), "list-type=2&prefix=a%20b");
    }
}
