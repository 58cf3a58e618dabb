//! Where a bucket is reached, and the address of a key in it.
//!
//! Addresses are text from here to the wire. A URL type would take `a/../b` for `b` and
//! `%2e%2e` for `..`, and the object for another.

use super::sign::encode;

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    scheme: &'static str,
    /// Host and, where it is not the usual one, port; the bucket in front in virtual-host style.
    pub authority: String,
    /// Everything in front of `/key`: empty in virtual-host style.
    root: String,
    pub bucket: String,
}

impl Endpoint {
    /// `address`: `http[s]://host[:port]`, none for AWS. `path_style`: the bucket in the path,
    /// not in the host name; by default so wherever an address is given.
    pub fn new(bucket: &str, address: Option<&str>, region: &str, path_style: Option<bool>) -> Result<Endpoint, String> {
        check_bucket(bucket)?;
        check_region(region)?;
        let amazon = format!("https://s3.{region}.amazonaws.com");
        let text = address.unwrap_or(&amazon);
        let (scheme, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => ("https", rest),
            (None, Some(rest)) => ("http", rest),
            (None, None) => return Err(format!("endpoint {text:?} does not begin with http:// or https://")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let parsed: Option<hyper::http::uri::Authority> = rest.parse().ok();
        let host = parsed.filter(|parsed| !parsed.host().is_empty() && !parsed.as_str().contains('@'));
        let Some(host) = host else {
            return Err(format!("endpoint {text:?} is not http[s]://HOST[:PORT]"));
        };
        // A certificate for *.host does not cover a name with more dots.
        let path_style = path_style.unwrap_or(address.is_some() || bucket.contains('.'));
        let (authority, root) =
            if path_style { (host.to_string(), format!("/{bucket}")) } else { (format!("{bucket}.{host}"), String::new()) };
        let usual_port = if scheme == "https" { ":443" } else { ":80" };
        let authority = authority.strip_suffix(usual_port).unwrap_or(&authority).to_string();
        Ok(Endpoint { scheme, authority, root, bucket: bucket.into() })
    }

    /// The encoded path of a key, or of the bucket itself.
    pub fn path(&self, key: Option<&str>) -> String {
        match key {
            Some(key) => format!("{}/{}", self.root, encode(key, true)),
            None if self.root.is_empty() => "/".into(),
            None => self.root.clone(),
        }
    }

    pub fn address(&self, path: &str, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}://{}{path}{mark}{query}", self.scheme, self.authority)
    }

    /// Of a key as the source of a copy.
    pub fn copy_source(&self, key: &str) -> String {
        format!("/{}/{}", self.bucket, encode(key, true))
    }
}

/// Not AWS's whole rule: other stores allow more. Nothing may change the address, though.
fn check_bucket(bucket: &str) -> Result<(), String> {
    let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if (1..=255).contains(&bucket.len()) && bucket.bytes().all(safe) && !bucket.bytes().all(|b| b == b'.') {
        Ok(())
    } else {
        Err(format!("{bucket:?} is no bucket name: letters, digits, '-', '.' and '_' are"))
    }
}

fn check_region(region: &str) -> Result<(), String> {
    if !region.is_empty() && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        Ok(())
    } else {
        Err(format!("{region:?} is no region: letters, digits and '-' are"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(bucket: &str, endpoint: Option<&str>, style: Option<bool>, key: &str) -> String {
        let endpoint = Endpoint::new(bucket, endpoint, "eu-west-1", style).unwrap();
        endpoint.address(&endpoint.path(Some(key)), "")
    }

    #[test]
    fn keys_reach_the_wire_untouched() {
        assert_eq!(address("b", None, None, "a//../x y"), "https://b.s3.eu-west-1.amazonaws.com/a//../x%20y");
        assert_eq!(address("b.c", None, None, "k"), "https://s3.eu-west-1.amazonaws.com/b.c/k");
        assert_eq!(address("b", Some("http://127.0.0.1:9000/"), None, "/k/"), "http://127.0.0.1:9000/b//k/");
        assert_eq!(address("b", Some("https://s3.local:443"), Some(false), "k"), "https://b.s3.local/k");
    }

    #[test]
    fn what_is_no_endpoint_is_said() {
        for bad in ["", "127.0.0.1:9000", "ftp://x", "http://", "http://a/b", "http://user@host", "http://a b"] {
            assert!(Endpoint::new("b", Some(bad), "us-east-1", None).is_err(), "{bad}");
        }
        for bad in ["", "..", "a/b", "a b", "ü"] {
            assert!(Endpoint::new(bad, None, "us-east-1", None).is_err(), "{bad}");
        }
        assert!(Endpoint::new("b", None, "evil.example/", None).is_err());
    }
}
