//! URLs without credentials.

/// A URL for messages, without a password or query, which can contain credentials.
pub fn redacted(address: &str) -> String {
    let (scheme, rest) =
        address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    if !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return HIDDEN.into();
    }
    let (rest, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    // A password can contain slashes.
    let (user, host) = rest.rsplit_once('@').map_or(("", rest), |(user, host)| (user, host));
    let shown = match user.split_once(':') {
        _ if user.is_empty() => String::new(),
        Some((name, _)) if !scheme.starts_with("http") => format!("{name}:{HIDDEN}@"),
        None if !scheme.starts_with("http") => format!("{user}@"),
        _ => format!("{HIDDEN}@"),
    };
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    let query = if query.is_empty() { String::new() } else { format!("{}{HIDDEN}", &query[..1]) };
    format!("{scheme}{shown}{host}{query}")
}

const HIDDEN: &str = "(hidden)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_redacted() {
        for (address, shown) in [
            ("https://host:9000/path", "https://host:9000/path"),
            ("s3://bucket/a/prefix", "s3://bucket/a/prefix"),
            ("az://container@account/p", "az://container@account/p"),
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("", ""),
            ("http://user:SECRET@host/p", "http://(hidden)@host/p"),
            ("http://SECRET@host", "http://(hidden)@host"),
            ("s3://AKID:SEC/RET@b", "s3://AKID:(hidden)@b"),
            ("AKID:SECRET@b", "AKID:(hidden)@b"),
            ("https://acc.blob.x/?sv=1&sig=SECRET", "https://acc.blob.x/?(hidden)"),
            ("https://h/x#SECRET", "https://h/x#(hidden)"),
            ("https,AccountKey=SECRET://h", "(hidden)"),
        ] {
            assert_eq!(redacted(address), shown);
        }
    }
}
