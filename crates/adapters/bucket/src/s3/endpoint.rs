//! The endpoint of a bucket, and the URL of a key.

use crate::http::encode::encode;
use crate::http::origin::Origin;
use ebb_model::redacted;

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// The bucket in front of the host in virtual-host style.
    pub origin: Origin,
    /// Everything in front of `/key`: empty in virtual-host style.
    root: String,
    pub bucket: String,
}

impl Endpoint {
    /// `address`: `http[s]://host[:port]`, none for AWS. `path_style`: the bucket in the path,
    /// not in the host name; by default so wherever an address is given.
    pub fn new(
        bucket: &str,
        address: Option<&str>,
        region: &str,
        path_style: Option<bool>,
    ) -> Result<Endpoint, String> {
        check_region(region)?;
        let amazon = format!("https://s3.{region}.amazonaws.com");
        let text = address.unwrap_or(&amazon);
        let (host, path) = Origin::parse(text)?;
        if !path.is_empty() {
            return Err(format!("endpoint {:?} is not http[s]://HOST[:PORT]", redacted(text)));
        }
        // A certificate for *.host does not cover a name with more dots.
        let path_style = path_style.unwrap_or(address.is_some() || bucket.contains('.'));
        let (origin, root) = if path_style {
            (host, format!("/{bucket}"))
        } else {
            (host.below(bucket), String::new())
        };
        Ok(Endpoint { origin, root, bucket: bucket.into() })
    }

    /// The encoded path of a key, or of the bucket itself.
    pub fn path(&self, key: Option<&str>) -> String {
        match key {
            Some(key) => format!("{}/{}", self.root, encode(key, true)),
            None if self.root.is_empty() => "/".into(),
            None => self.root.clone(),
        }
    }

    /// The value that names a key as the source of a copy.
    pub fn copy_source(&self, key: &str) -> String {
        format!("/{}/{}", self.bucket, encode(key, true))
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
        endpoint.origin.address(&endpoint.path(Some(key)), "")
    }

    #[test]
    fn keys_reach_the_wire_untouched() {
        assert_eq!(
            address("b", None, None, "a//../x y"),
            "https://b.s3.eu-west-1.amazonaws.com/a//../x%20y"
        );
        assert_eq!(address("b.c", None, None, "k"), "https://s3.eu-west-1.amazonaws.com/b.c/k");
        assert_eq!(
            address("b", Some("http://127.0.0.1:9000/"), None, "/k/"),
            "http://127.0.0.1:9000/b//k/"
        );
        assert_eq!(
            address("b", Some("https://s3.local:443"), Some(false), "k"),
            "https://b.s3.local/k"
        );
    }

    #[test]
    fn invalid_endpoints_are_refused() {
        for bad in [
            "",
            "127.0.0.1:9000",
            "ftp://x",
            "http://",
            "http://a/b",
            "http://user@host",
            "http://a b",
        ] {
            assert!(Endpoint::new("b", Some(bad), "us-east-1", None).is_err(), "{bad}");
        }
        assert!(Endpoint::new("b", None, "evil.example/", None).is_err());
    }
}
