//! Shared Key authorization: an HMAC over the request.

use crate::http::base64;
use crate::http::client::Outgoing;
use crate::http::credentials::Secret;
use crate::http::encode::decode;
use ring::hmac;

/// Adds the authorization header. The error describes a malformed key without containing it.
pub(super) fn sign(request: &mut Outgoing, account: &str, key: &Secret) -> Result<(), String> {
    let key = base64::decode(key.expose())
        .filter(|key| !key.is_empty())
        .ok_or("the account's key is no Base64")?;
    let text = to_sign(request, account).ok_or("the query is no UTF-8")?;
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes());
    request.headers.push((
        "authorization".into(),
        format!("SharedKey {account}:{}", base64::encode(signature.as_ref())),
    ));
    Ok(())
}

fn to_sign(request: &Outgoing, account: &str) -> Option<String> {
    let header = |name: &str| {
        request
            .headers
            .iter()
            .find(|(there, _)| there == name)
            .map_or("", |(_, value)| value.as_str())
    };
    let length =
        if request.body.is_empty() { String::new() } else { request.body.len().to_string() };
    let mut text = format!("{}\n\n\n{length}\n", request.method);
    // The time is in x-ms-date.
    for name in [
        "content-md5",
        "content-type",
        "date",
        "if-modified-since",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "range",
    ] {
        text += header(name);
        text.push('\n');
    }
    let mut own: Vec<_> =
        request.headers.iter().filter(|(name, _)| name.starts_with("x-ms-")).collect();
    own.sort();
    for (name, value) in own {
        text += &format!("{name}:{}\n", value.trim());
    }
    text += &format!("/{account}{}", request.path);
    // Sorted already, by names that are lower-case.
    for pair in request.query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        text += &format!("\n{}:{}", decode(name, false)?, decode(value, false)?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// The example of "Authorize with Shared Key" (version 2015-02-21 and later).
    #[test]
    fn the_published_example_is_written_as_published() {
        let headers =
            [("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"), ("x-ms-version", "2015-02-21")];
        let mut request = Outgoing {
            method: "GET",
            path: "/mycontainer".into(),
            query: "comp=metadata&restype=container&timeout=20".into(),
            headers: headers.map(|(name, value)| (name.to_string(), value.to_string())).to_vec(),
            body: Bytes::new(),
        };
        let expected = "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 \
            GMT\nx-ms-version:2015-02-21\n/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20";
        assert_eq!(to_sign(&request, "myaccount").unwrap(), expected);
        for bad in ["", "hush!"] {
            assert!(
                !sign(&mut request, "myaccount", &Secret::new(bad)).unwrap_err().contains("hush")
            );
        }
    }
}
