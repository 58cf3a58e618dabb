//! A service account's proof of identity: a JSON Web Token (RFC 7519), signed with its key.

use crate::http::base64;
use crate::http::credentials::Secret;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;

/// The error describes a malformed key without containing it.
pub(super) fn assertion(
    email: &str,
    key_id: Option<&str>,
    key: &Secret,
    audience: &str,
    now_secs: i64,
) -> Result<String, String> {
    let mut header = json!({ "alg": "RS256", "typ": "JWT" });
    if let Some(key_id) = key_id {
        header["kid"] = key_id.into();
    }
    let claims = json!({ "iss": email, "scope": SCOPE, "aud": audience, "iat": now_secs, "exp": now_secs + LIFETIME_SECS });
    signed(header.to_string().as_bytes(), claims.to_string().as_bytes(), &key_pair(key)?)
}

fn signed(header: &[u8], claims: &[u8], key: &RsaKeyPair) -> Result<String, String> {
    let text = format!("{}.{}", base64::encode_url(header), base64::encode_url(claims));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "it does not sign".to_string())?;
    Ok(format!("{text}.{}", base64::encode_url(&signature)))
}

/// PKCS #8 in PEM (RFC 7468), as Google hands keys out.
fn key_pair(pem: &Secret) -> Result<RsaKeyPair, String> {
    let body = pem
        .expose()
        .split_once(&label("BEGIN"))
        .and_then(|(_, rest)| Some(rest.split_once(&label("END"))?.0));
    let der = body.and_then(base64::decode).ok_or("it is no private key in PEM")?;
    RsaKeyPair::from_pkcs8(&der).map_err(|error| format!("it is no RSA key: {error}"))
}

fn label(mark: &str) -> String {
    format!("-----{mark} PRIVATE KEY-----")
}

/// Objects, and nothing else.
const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";
/// The longest that Google takes.
const LIFETIME_SECS: i64 = 3600;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The key of RFC 7515, appendix A.2, as PKCS #8.
    pub fn published_key() -> Secret {
        Secret::new(format!("{}\n{PUBLISHED_KEY}\n{}\n", label("BEGIN"), label("END")))
    }

    #[test]
    fn the_published_example_is_signed_as_published() {
        let claims =
            b"{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}";
        let token =
            signed(br#"{"alg":"RS256"}"#, claims, &key_pair(&published_key()).unwrap()).unwrap();
        assert!(token.starts_with(
            "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
        ));
        assert!(token.ends_with(PUBLISHED_SIGNATURE), "{token}");
    }

    #[test]
    fn a_key_that_is_none_is_said_without_it() {
        for text in [
            "",
            "hush",
            &format!("{}hush!{}", label("BEGIN"), label("END")),
            &format!("{}aHVzaA=={}", label("BEGIN"), label("END")),
        ] {
            let error = assertion("a@b", None, &Secret::new(text), "aud", 0).unwrap_err();
            assert!(error.starts_with("it is no") && !error.contains("hush"), "{error}");
        }
    }

    const PUBLISHED_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQ\
        jbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqt\
        FZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    const PUBLISHED_KEY: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQCh+BYK4uPJtGXOjS1lYmM2K5J9vinh8CR3/BYlzJChNuOL2TSXxbbqY913EeZ8dCn5VrD7\
        io8ImtxLaYk8wTM/U+3QGbh3hCUv7JFP5IV3aVlL6kKA0ywPVb9ilE8TA5a8bpvfbr3SvaNnjuygxmj3AbONv/s4yDQs4v5tJ/reSlpIdJed1LnPmt7Ex1sF\
        hSwsD174pcF1A5L5ROjtZMEQxrZHYJqkeDrrnGya11UxMFBji4NmXG9veoKjlnAqH2QbgtPr8jkiGUkftoaHLFcW9Qr4NY2ai50Xw0Byj3+H2JoY2PyrZ62E\
        WQwuz3WTOTY8BwNNb2BvniHgVFbK5emhAgMBAAECggEAEq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7/GQ5sLKMgvfTeX\
        Zx9SE+7YwVol2NXOoAJe46sui395IW/GO+pWJ1O0BkTGoVEn2bKVRUCgu+GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M/V51gfpRLI9JYanr\
        C4D4qAdGcopV/0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl/x/jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR/RQyGWS\
        eWjnczT0QU91p1DhOVRuOopznQKBgQDgHMQQ60imZV1URk0KpLttoLhyt3SmqdEf/kgHePDdtzEafpAu+cS191R2JiuoF2yzWXnwFDcqGigp5BNr0AHQfD8/\
        Lk8l1Mk09jxxCfui5nYooNyac8YFjm3vItzVCVDnEd3BbVWG8qf6deqElMGAg+C2V0L4oNXnP7LZcPAZRwKBgQC5A8R+CZW2MvRTLLHzwZkUXV866cff7tx6\
        kqa0finGG0KgeqlaZPxgCZnFp7AeAcCMtiynVlJ7vMVgePsLq6XtON4tB5kP9jAPrq3rbAOal78eUH5OcED6eNuCV8ixEu1eWcPNCS/l1OW1EnXUEoEHKl54\
        Xrrz2uNwkgMTP1FZ1wKBgAcCn1dwJKufzBWQxWQp1vsM5fggqPN1qGb5y0MAk3g7/Ls5bkUp5u9SN0Ai3Ya6hNnvWJMb7sXQX6U/zyO2M/hTip7tUeh7CXgw\
        o59dkpN75gJLVds29+DAncu3KXU4f2Fa+7bLNrur53k8KwPOq2bbuTG69QtV7Jr5MR0AHWKNAoGBAIf/evpitUf+4JYbLpvNXWcY052Mpz22aR84mY3nh3F2\
        LF2mjMJDpTg7FmuyPcVw6EcGyoAe9fa65iNqCq+jdw6PVNGo2hxfjSiZ8IIzHdsPXI89//pMjZcQK9r+CCoRjaZjOYiIDktVWZzmevJuv6WywUqd57LE3Zar\
        3dLSIkx1AoGAIYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd+DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd/QJQ3ydy5cY7YIBi87w93IKLEdfnb\
        JtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp/gh6A5603k2+ZQwVK0JKSHuLFkuQ3U=";
}
