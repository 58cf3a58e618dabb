use super::*;
use std::collections::BTreeMap;

fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, String> {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Proxies::named(&(Arc::new(move |name: &str| variables.get(name).cloned()) as Environment))
}

/// The proxy for this server, where these variables are set.
fn proxy_of(variables: &[(&str, &str)], server: &str) -> String {
    let found = proxies(variables).unwrap().of(&server.parse().unwrap());
    found.map(|found| found.uri().to_string()).unwrap_or_default()
}

#[test]
fn each_variable_is_for_its_servers() {
    let [plain, tls] = ["http://store.example/b", "https://store.example/b"];
    assert_eq!(proxy_of(&[("HTTP_PROXY", "http://p:1")], plain), "http://p:1/");
    assert_eq!(proxy_of(&[("HTTP_PROXY", "http://p:1")], tls), "");
    assert_eq!(proxy_of(&[("HTTPS_PROXY", "p:2")], tls), "http://p:2/");
    assert_eq!(
        proxy_of(&[("https_proxy", "https://p:2"), ("HTTPS_PROXY", "q:1")], tls),
        "https://p:2/"
    );
    assert_eq!(proxy_of(&[("ALL_PROXY", "http://p:3")], plain), "http://p:3/");
    for no in ["store.example", ".example", "*", "10.0.0.0/8,store.example"] {
        assert_eq!(proxy_of(&[("HTTPS_PROXY", "p:2"), ("NO_PROXY", no)], tls), "", "{no}");
        assert_eq!(proxy_of(&[("HTTPS_PROXY", "p:2"), ("no_proxy", no)], tls), "", "{no}");
    }
    assert_eq!(
        proxy_of(&[("HTTPS_PROXY", "p:2"), ("NO_PROXY", "other.example")], tls),
        "http://p:2/"
    );
    // Credentials do not leave the machine.
    let agents = ["http://169.254.169.254/latest", "http://169.254.170.2:80/x"];
    for agent in agents {
        assert_eq!(proxy_of(&[("HTTP_PROXY", "p:1")], agent), "");
    }
}

#[test]
fn proxy_of_another_kind_is_told() {
    for value in ["socks5://p:1080", "ftp://p", "http://", "a b"] {
        let error = proxies(&[("HTTPS_PROXY", value)]).map(drop).unwrap_err();
        assert!(error.starts_with("HTTPS_PROXY names no proxy"), "{error}");
    }
}

/// Only its own proxy is shown the password, not a server that is reached through a tunnel.
#[test]
fn password_is_for_the_proxy() {
    let proxies = proxies(&[("ALL_PROXY", "http://user:word@p:1")]).unwrap();
    let header = |server: &str| proxies.authorization(&server.parse().unwrap());
    assert_eq!(header("http://store.example/").unwrap(), "Basic dXNlcjp3b3Jk");
    assert_eq!(header("https://store.example/"), None);
}
