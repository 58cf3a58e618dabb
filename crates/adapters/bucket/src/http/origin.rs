//! Where a store is reached.
//!
//! Addresses are text from here to the wire. A URL type would take `a/../b` for `b` and
//! `%2e%2e` for `..`, and the object for another.

use ebb_model::redacted;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    scheme: &'static str,
    /// Host and, where it is not the usual one, port.
    pub authority: String,
}

impl Origin {
    /// Parses `http[s]://host[:port][/path]`; returns the path without the slash at its end.
    pub fn parse(text: &str) -> Result<(Origin, String), String> {
        let (scheme, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => ("https", rest),
            (None, Some(rest)) => ("http", rest),
            (None, None) => {
                return Err(format!(
                    "endpoint {:?} does not begin with http:// or https://",
                    redacted(text)
                ));
            }
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let parsed: Option<hyper::http::uri::Authority> = host.parse().ok();
        let good = parsed
            .is_some_and(|parsed| !parsed.host().is_empty() && !parsed.as_str().contains('@'));
        let plain = path
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'.' | b'_'));
        if !good || !plain {
            return Err(format!("endpoint {:?} is not http[s]://HOST[:PORT]", redacted(text)));
        }
        Ok((Origin::new(scheme, host), path.trim_end_matches('/').to_string()))
    }

    pub fn new(scheme: &'static str, authority: &str) -> Origin {
        let usual_port = if scheme == "https" { ":443" } else { ":80" };
        Origin { scheme, authority: authority.strip_suffix(usual_port).unwrap_or(authority).into() }
    }

    /// Requests go without TLS.
    pub fn is_plain(&self) -> bool {
        self.scheme == "http"
    }

    /// The same service under a name below its own.
    pub fn below(&self, name: &str) -> Origin {
        Origin { scheme: self.scheme, authority: format!("{name}.{}", self.authority) }
    }

    pub fn address(&self, path: &str, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}://{}{path}{mark}{query}", self.scheme, self.authority)
    }
}

/// Whether it is the name of a bucket or an account. No store's whole rule: each allows its own.
/// Nothing may change the address, though.
pub(crate) fn is_name(name: &str) -> bool {
    let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (1..=255).contains(&name.len()) && name.bytes().all(safe) && !name.bytes().all(|b| b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_origin_and_path() {
        let parse = |text| {
            Origin::parse(text).map(|(origin, path)| (origin.address("", ""), path)).unwrap()
        };
        assert_eq!(parse("https://h"), ("https://h".into(), "".into()));
        assert_eq!(
            parse("http://127.0.0.1:10000/account/"),
            ("http://127.0.0.1:10000".into(), "/account".into())
        );
        assert_eq!(parse("https://h:443/"), ("https://h".into(), "".into()));
        assert_eq!(Origin::parse("http://[::1]:80").unwrap().0.authority, "[::1]");
        for bad in [
            "",
            "127.0.0.1:9000",
            "ftp://x",
            "http://",
            "http://user@host",
            "http://a b",
            "http://a/?x",
            "http://a/%2e",
            "http:///x",
        ] {
            assert!(Origin::parse(bad).is_err(), "{bad}");
        }
    }
}
