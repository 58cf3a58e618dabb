//! Maps failures to errors by the action that a caller can take.

use super::json;
use super::time::{now_secs, parse_http};
use super::transport::{Answer, Lost};
use super::xml::Element;
use ebb_model::Planted;
use ebb_ports::BucketError;
use hyper::StatusCode;
use std::time::Duration;

/// The effect that a request could have had: it decides the meaning of a lost answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    None,
    Mutation,
}

/// A refused request, as the store reports it.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    pub status: u16,
    /// Empty where the answer had no body (HEAD).
    pub code: String,
    pub message: String,
    pub region: Option<String>,
    /// The location of the bucket according to the store.
    pub moved_to: Option<String>,
    pub retry_after: Option<Duration>,
}

/// The body of a refusal: XML of S3, Azure and Google, JSON of Google.
#[derive(Default)]
struct Said {
    code: String,
    message: String,
    region: Option<String>,
    endpoint: Option<String>,
}

impl Said {
    fn in_xml(body: &[u8]) -> Option<Said> {
        let error = Element::parse(body).filter(|root| root.name == "Error")?;
        let text = |name| error.text_of(name).unwrap_or_default().to_string();
        Some(Said {
            code: text("Code"),
            message: text("Message"),
            region: Some(text("Region")).filter(|region| !region.is_empty()),
            endpoint: Some(text("Endpoint")).filter(|endpoint| !endpoint.is_empty()),
        })
    }

    fn in_json(body: &[u8]) -> Option<Said> {
        let json = json::parse(body)?;
        let error = json.get("error")?;
        let message = error
            .get("message")
            .and_then(|message| message.as_str())
            .unwrap_or_default()
            .to_string();
        let reason = error
            .get("errors")
            .and_then(|errors| errors.get(0)?.get("reason")?.as_str())
            .unwrap_or_default();
        // A bucket that is not there and an object that is not there have one reason.
        let code = if reason == "notFound" && message.contains("bucket does not exist") {
            "NoSuchBucket"
        } else {
            reason
        };
        Some(Said { code: code.into(), message, region: None, endpoint: None })
    }
}

impl Refusal {
    /// None for a success. A success may carry an error in its body: completion and copy
    /// answer 200 before they know how it ends.
    pub fn of(answer: &Answer, success_may_carry_error: bool) -> Option<Refusal> {
        let success = answer.status.is_success() || answer.status == StatusCode::NOT_MODIFIED;
        if success && !success_may_carry_error {
            return None;
        }
        let said = Said::in_xml(&answer.body).or_else(|| Said::in_json(&answer.body));
        if success && said.is_none() {
            return None;
        }
        let said = said.unwrap_or_default();
        // Azure sends the code here as well, and for HEAD only here.
        let header = answer.header("x-ms-error-code").filter(|_| said.code.is_empty());
        Some(Refusal {
            status: if success { 0 } else { answer.status.as_u16() },
            code: header.map_or(said.code, str::to_string),
            message: said.message,
            region: answer.header("x-amz-bucket-region").map(str::to_string).or(said.region),
            moved_to: answer.header("location").map(str::to_string).or(said.endpoint),
            retry_after: answer.header("retry-after").and_then(parse_retry_after),
        })
    }

    /// The store rejected the signature or the credentials, as opposed to their permissions.
    pub fn doubts_credentials(&self) -> bool {
        const CODES: [&str; 10] = [
            "AuthenticationFailed",
            "AuthenticationRequired",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "InvalidToken",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
            "authError",
        ];
        let unsaid = self.code.is_empty() && matches!(self.status, 400 | 403);
        self.status == 401 || unsaid || CODES.contains(&self.code.as_str())
    }

    /// The body arrived damaged, or its checksum was wrong.
    pub fn is_of_damage(&self) -> bool {
        ["BadDigest", "Md5Mismatch", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"]
            .contains(&self.code.as_str())
    }

    /// The store answers elsewhere.
    pub fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 307 | 308)
    }

    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// `what` names operation and object; `key` is the one that a missing or changed object is
    /// reported for.
    pub fn error(&self, what: &str, key: &str, effect: Effect) -> BucketError {
        let said = match (self.code.as_str(), self.message.as_str()) {
            ("", _) => format!("HTTP status {}", self.status),
            (code, "") => code.to_string(),
            (code, message) => format!("{code}: {message}"),
        };
        let what = format!("{what}: {said}");
        let unavailable = |what| BucketError::Unavailable { what, retry_after: self.retry_after };
        match self.code.as_str() {
            "NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" | "BlobNotFound" => {
                return BucketError::NotFound { key: key.into() };
            }
            // A vanished bucket must not look like a deleted file.
            "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" | "ResourceNotFound" => {
                return BucketError::Refused { what };
            }
            "PreconditionFailed"
            | "ConditionalRequestConflict"
            | "ConditionNotMet"
            | "conditionNotMet"
            | "BlobAlreadyExists" => {
                return BucketError::Precondition { key: key.into() };
            }
            "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "RequestTimeTooSkewed" => {
                return BucketError::Forbidden { what };
            }
            "SlowDown"
            | "ServiceUnavailable"
            | "RequestLimitExceeded"
            | "TooManyRequests"
            | "OperationAborted"
            | "KMS.ThrottlingException"
            | "ThrottlingException"
            | "RequestThrottled" => {
                return unavailable(what);
            }
            "rateLimitExceeded"
            | "userRateLimitExceeded"
            | "conflict"
            | "ServerBusy"
            | "PendingCopyOperation" => return unavailable(what),
            // Codes of gateways to file systems.
            "ObjectParentIsFile"
            | "ExistingObjectIsDirectory"
            | "XMinioParentIsObject"
            | "XMinioObjectExistsAsDirectory" => {
                return BucketError::Nested { what };
            }
            // The body did not arrive whole, so nothing was stored.
            "RequestTimeout" | "IncompleteBody" | "BadDigest" | "Md5Mismatch" => {
                return unavailable(what);
            }
            "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => {
                return unavailable(what);
            }
            "InternalError" | "internalError" | "backendError" | "OperationTimedOut" => {
                return broken(effect, what);
            }
            // The object exists, and nobody can read it before it is restored.
            "InvalidObjectState" | "BlobArchived" => return BucketError::Refused { what },
            // Leases of other programs, and legal holds, are no conditions of ours.
            code if code.starts_with("LeaseId") || code.starts_with("BlobImmutable") => {
                return BucketError::Forbidden { what };
            }
            _ if self.doubts_credentials() && !self.code.is_empty() => {
                return BucketError::Forbidden { what };
            }
            _ => {}
        }
        match self.status {
            404 => BucketError::NotFound { key: key.into() },
            412 => BucketError::Precondition { key: key.into() },
            // A conflict with a code is another one.
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
        _ if Planted::UnknownIsUnavailable.is_on() => {
            BucketError::Unavailable { what, retry_after: None }
        }
        Effect::None => BucketError::Unavailable { what, retry_after: None },
        Effect::Mutation => BucketError::Unknown { what },
    }
}

pub(crate) fn lost(what: &str, lost: Lost, effect: Effect) -> BucketError {
    match lost {
        Lost::NotSent(reason) | Lost::Unfit(reason) => {
            BucketError::Unavailable { what: format!("{what}: {reason}"), retry_after: None }
        }
        Lost::Sent(reason) => broken(effect, format!("{what}: {reason}")),
    }
}

/// Seconds or a date. If a store requests more than an hour, it is retried after an hour.
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
        Refusal {
            status,
            code: code.into(),
            retry_after: Some(Duration::from_secs(7)),
            ..Refusal::default()
        }
    }

    #[test]
    fn refusals_map_to_bucket_errors() {
        let error = |status, code, effect| refusal(status, code).error("PUT k", "k", effect);
        let key = || "k".to_string();
        assert_eq!(error(404, "NoSuchKey", Effect::None), BucketError::NotFound { key: key() });
        assert_eq!(error(404, "", Effect::None), BucketError::NotFound { key: key() });
        assert_eq!(error(412, "", Effect::Mutation), BucketError::Precondition { key: key() });
        assert_eq!(
            error(409, "ConditionalRequestConflict", Effect::Mutation),
            BucketError::Precondition { key: key() }
        );
        assert!(matches!(
            error(409, "ObjectParentIsFile", Effect::Mutation),
            BucketError::Nested { .. }
        ));
        assert!(matches!(error(404, "NoSuchBucket", Effect::None), BucketError::Refused { .. }));
        assert!(matches!(
            error(403, "AccessDenied", Effect::Mutation),
            BucketError::Forbidden { .. }
        ));
        assert!(matches!(
            error(400, "ExpiredToken", Effect::Mutation),
            BucketError::Forbidden { .. }
        ));
        assert!(matches!(
            error(400, "KeyTooLongError", Effect::Mutation),
            BucketError::Refused { .. }
        ));
        assert!(matches!(
            error(400, "EntityTooLarge", Effect::Mutation),
            BucketError::Refused { .. }
        ));
        for (status, code) in [
            (503, "SlowDown"),
            (429, ""),
            (503, ""),
            (400, "RequestTimeout"),
            (400, "XAmzContentChecksumMismatch"),
            (0, "SlowDown"),
        ] {
            let expected = Some(Duration::from_secs(7));
            assert!(
                matches!(error(status, code, Effect::Mutation), BucketError::Unavailable { retry_after, .. } if retry_after == expected)
            );
        }
        for (status, code) in
            [(500, "InternalError"), (502, ""), (504, ""), (0, "InternalError"), (0, "")]
        {
            assert!(
                matches!(error(status, code, Effect::None), BucketError::Unavailable { .. }),
                "{status} {code}"
            );
            assert!(
                matches!(error(status, code, Effect::Mutation), BucketError::Unknown { .. }),
                "{status} {code}"
            );
        }
        assert_eq!(error(404, "BlobNotFound", Effect::None), BucketError::NotFound { key: key() });
        assert_eq!(
            error(409, "BlobAlreadyExists", Effect::Mutation),
            BucketError::Precondition { key: key() }
        );
        assert!(matches!(
            error(404, "ContainerNotFound", Effect::None),
            BucketError::Refused { .. }
        ));
        assert!(matches!(
            error(412, "LeaseIdMissing", Effect::Mutation),
            BucketError::Forbidden { .. }
        ));
        assert!(matches!(
            error(403, "AuthenticationFailed", Effect::Mutation),
            BucketError::Forbidden { .. }
        ));
        assert!(matches!(
            error(403, "rateLimitExceeded", Effect::Mutation),
            BucketError::Unavailable { .. }
        ));
        assert!(matches!(
            error(500, "OperationTimedOut", Effect::Mutation),
            BucketError::Unknown { .. }
        ));
    }

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &[u8]) -> Answer {
        let mut answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: Default::default(),
            body: body.to_vec().into(),
        };
        for (name, value) in headers {
            answer.headers.insert(*name, value.parse().unwrap());
        }
        answer
    }

    #[test]
    fn each_store_says_it_in_its_own_way() {
        let code = |answer: Answer| Refusal::of(&answer, false).unwrap().code;
        assert_eq!(code(answer(404, &[], b"<Error><Code>NoSuchKey</Code></Error>")), "NoSuchKey");
        assert_eq!(code(answer(404, &[("x-ms-error-code", "BlobNotFound")], b"")), "BlobNotFound");
        let google = |message: &str| {
            format!(
                "{{\"error\":{{\"errors\":[{{\"reason\":\"notFound\"}}],\"message\":\"{message}\"}}}}"
            )
        };
        assert_eq!(code(answer(404, &[], google("No such object: b/k").as_bytes())), "notFound");
        assert_eq!(
            code(answer(404, &[], google("The specified bucket does not exist.").as_bytes())),
            "NoSuchBucket"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_a_success_or_a_refusal(status in 100u16..1000, slow: bool, body: Vec<u8>) {
            let refusal = Refusal::of(&answer(status, &[], &body), slow);
            if let Some(refusal) = refusal {
                refusal.error("PUT k", "k", Effect::Mutation);
            }
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
