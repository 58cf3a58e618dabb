//! From what went wrong to what a caller can do about it.

use super::time::{now_secs, parse_http};
use super::transport::{Answer, Lost};
use super::xml::Element;
use ebb_ports::BucketError;
use hyper::StatusCode;
use std::time::Duration;

/// What a request would have done: decides what its loss means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    Mutation,
}

/// The store's own word on a refused request.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    pub status: u16,
    /// Empty where the answer had no body (HEAD).
    pub code: String,
    pub message: String,
    pub region: Option<String>,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// None for a success. A success may carry an error in its body: completion and copy
    /// answer 200 before they know how it ends.
    pub fn of(answer: &Answer, success_may_carry_error: bool) -> Option<Refusal> {
        let success = answer.status.is_success() || answer.status == StatusCode::NOT_MODIFIED;
        if success && !success_may_carry_error {
            return None;
        }
        let error = Element::parse(&answer.body).filter(|root| root.name == "Error");
        if success && error.is_none() {
            return None;
        }
        let text = |name| error.as_ref().and_then(|error| error.text_of(name)).unwrap_or_default().to_string();
        let region =
            answer.header("x-amz-bucket-region").map(str::to_string).or_else(|| Some(text("Region")).filter(|region| !region.is_empty()));
        Some(Refusal {
            status: if success { 0 } else { answer.status.as_u16() },
            code: text("Code"),
            message: text("Message"),
            region,
            retry_after: answer.header("retry-after").and_then(parse_retry_after),
        })
    }

    /// The store did not take the signature or its credentials, as opposed to the rights they give.
    pub fn doubts_credentials(&self) -> bool {
        const CODES: [&str; 7] = [
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "InvalidToken",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ];
        let unsaid = self.code.is_empty() && matches!(self.status, 400 | 401 | 403);
        unsaid || CODES.contains(&self.code.as_str())
    }

    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// `what` names operation and object; `key` is the one that a missing or changed object is reported for.
    pub fn error(&self, what: &str, key: &str, effect: Effect) -> BucketError {
        let said = match (self.code.as_str(), self.message.as_str()) {
            ("", _) => format!("HTTP status {}", self.status),
            (code, "") => code.to_string(),
            (code, message) => format!("{code}: {message}"),
        };
        let what = format!("{what}: {said}");
        let unavailable = |what| BucketError::Unavailable { what, retry_after: self.retry_after };
        match self.code.as_str() {
            "NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" => return BucketError::NotFound { key: key.into() },
            // A vanished bucket must not look like a deleted file.
            "NoSuchBucket" => return BucketError::Refused { what },
            "PreconditionFailed" | "ConditionalRequestConflict" => return BucketError::Precondition { key: key.into() },
            "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "RequestTimeTooSkewed" => return BucketError::Forbidden { what },
            "SlowDown" | "ServiceUnavailable" | "RequestLimitExceeded" | "TooManyRequests" | "OperationAborted" => {
                return unavailable(what);
            }
            // The body did not arrive whole, so nothing was stored.
            "RequestTimeout" | "IncompleteBody" | "BadDigest" | "XAmzContentSHA256Mismatch" => return unavailable(what),
            "InternalError" => return broken(effect, what),
            _ if self.doubts_credentials() && !self.code.is_empty() => return BucketError::Forbidden { what },
            _ => {}
        }
        match self.status {
            404 => BucketError::NotFound { key: key.into() },
            412 => BucketError::Precondition { key: key.into() },
            // With a code it is another conflict: a file where a directory is to be, say.
            409 if self.code.is_empty() => BucketError::Precondition { key: key.into() },
            401 | 403 => BucketError::Forbidden { what },
            408 | 429 | 503 => unavailable(what),
            501 | 505 => BucketError::Refused { what },
            // An error without a known code inside a success.
            0 | 500.. => broken(effect, what),
            _ => BucketError::Refused { what },
        }
    }
}

/// A server or gateway that broke in the middle: a mutation may have gone through behind it.
fn broken(effect: Effect, what: String) -> BucketError {
    match effect {
        Effect::None => BucketError::Unavailable { what, retry_after: None },
        Effect::Mutation => BucketError::Unknown { what },
    }
}

pub(super) fn lost(what: &str, lost: Lost, effect: Effect) -> BucketError {
    match lost {
        Lost::NotSent(reason) => BucketError::Unavailable { what: format!("{what}: {reason}"), retry_after: None },
        Lost::Sent(reason) => broken(effect, format!("{what}: {reason}")),
    }
}

/// Seconds or a date; a store that asks for more than an hour is asked again after one.
fn parse_retry_after(text: &str) -> Option<Duration> {
    let secs = match text.trim().parse::<u64>() {
        Ok(secs) => secs,
        Err(_) => u64::try_from(parse_http(text)? - now_secs()).unwrap_or(0),
    };
    Some(Duration::from_secs(secs.min(3600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str) -> Refusal {
        Refusal { status, code: code.into(), retry_after: Some(Duration::from_secs(7)), ..Refusal::default() }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let error = |status, code, effect| refusal(status, code).error("PUT k", "k", effect);
        let key = || "k".to_string();
        assert_eq!(error(404, "NoSuchKey", Effect::None), BucketError::NotFound { key: key() });
        assert_eq!(error(404, "", Effect::None), BucketError::NotFound { key: key() });
        assert_eq!(error(412, "", Effect::Mutation), BucketError::Precondition { key: key() });
        assert_eq!(error(409, "ConditionalRequestConflict", Effect::Mutation), BucketError::Precondition { key: key() });
        assert!(matches!(error(409, "ObjectParentIsFile", Effect::Mutation), BucketError::Refused { .. }));
        assert!(matches!(error(404, "NoSuchBucket", Effect::None), BucketError::Refused { .. }));
        assert!(matches!(error(403, "AccessDenied", Effect::Mutation), BucketError::Forbidden { .. }));
        assert!(matches!(error(400, "ExpiredToken", Effect::Mutation), BucketError::Forbidden { .. }));
        assert!(matches!(error(400, "KeyTooLongError", Effect::Mutation), BucketError::Refused { .. }));
        assert!(matches!(error(400, "EntityTooLarge", Effect::Mutation), BucketError::Refused { .. }));
        for (status, code) in [(503, "SlowDown"), (429, ""), (503, ""), (400, "RequestTimeout"), (0, "SlowDown")] {
            let expected = Some(Duration::from_secs(7));
            assert!(
                matches!(error(status, code, Effect::Mutation), BucketError::Unavailable { retry_after, .. } if retry_after == expected)
            );
        }
        for (status, code) in [(500, "InternalError"), (502, ""), (504, ""), (0, "InternalError"), (0, "")] {
            assert!(matches!(error(status, code, Effect::None), BucketError::Unavailable { .. }), "{status} {code}");
            assert!(matches!(error(status, code, Effect::Mutation), BucketError::Unknown { .. }), "{status} {code}");
        }
    }

    #[test]
    fn retry_after_is_bounded() {
        assert_eq!(parse_retry_after("5"), Some(Duration::from_secs(5)));
        assert_eq!(parse_retry_after("99999999"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_retry_after("Sat, 21 Nov 1998 21:46:25 GMT"), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("soon"), None);
    }
}
