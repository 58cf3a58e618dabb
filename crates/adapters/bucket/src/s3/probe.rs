//! What a bucket says when it is opened: whether it is there, lets us in, and keeps to conditions.

use super::client::{Call, Client, MAX_KEY_BYTES, Outcome};
use super::fault::{Effect, Refusal};
use super::operations::{MAX_OBJECT_BYTES, MAX_PUT_BYTES};
use super::xml::Element;
use crate::OpenError;
use bytes::Bytes;
use ebb_ports::{BucketError, Capabilities, Condition, ETag};

/// Only the volume's prefix is touched: rights may end there. One object in it, `.ebb/probe`,
/// is written and deleted again, except for a read-only use. Its name is fixed, so that one
/// left by a crash is taken away by the next opening.
pub(super) async fn probe(client: &Client, prefix: &str, read_only: bool) -> Result<Capabilities, OpenError> {
    reachable(client, prefix).await?;
    let (conditional_put, conditional_delete) = match read_only {
        true => (false, false),
        false => conditions(client, &format!("{prefix}.ebb/probe")).await.map_err(|error| OpenError::Write { url: url(client), error })?,
    };
    Ok(Capabilities {
        conditional_put,
        conditional_delete,
        min_part_bytes: 5 << 20,
        max_parts: 10_000,
        max_object_bytes: MAX_OBJECT_BYTES,
        max_key_bytes: MAX_KEY_BYTES,
        max_put_bytes: MAX_PUT_BYTES,
    })
}

async fn reachable(client: &Client, prefix: &str) -> Result<(), OpenError> {
    let query = vec![("list-type", "2".to_string()), ("max-keys", "1".to_string()), ("prefix", prefix.to_string())];
    let call = Call { method: "GET", key: None, query, headers: vec![], body: Bytes::new(), effect: Effect::None, slow: false };
    let url = url(client);
    match client.try_call(&call).await {
        Ok(Outcome::Done(answer)) => match Element::parse(&answer.body) {
            Some(root) if root.name == "ListBucketResult" => Ok(()),
            _ => Err(OpenError::Unreachable { url, what: "what answers there does not speak the S3 protocol; check the endpoint".into() }),
        },
        Ok(Outcome::Refused(refusal)) => Err(refused(client, &call, &refusal)),
        Err(BucketError::Forbidden { what }) => Err(OpenError::Forbidden { url, what }),
        Err(error) => Err(OpenError::Unreachable { url, what: format!("{error}; check the endpoint and the network") }),
    }
}

fn refused(client: &Client, call: &Call<'_>, refusal: &Refusal) -> OpenError {
    let url = url(client);
    if refusal.is("NoSuchBucket") || (refusal.status == 404 && refusal.code.is_empty()) {
        return OpenError::NoBucket { url, endpoint: client.endpoint.authority.clone() };
    }
    if let Some(region) = refusal.region.as_ref().filter(|region| **region != client.region) {
        return OpenError::Settings { url, what: format!("the bucket is in region {region}, not {}; set the region", client.region) };
    }
    match client.error(call, refusal) {
        BucketError::Forbidden { what } => OpenError::Forbidden { url, what },
        error => OpenError::Unreachable { url, what: error.to_string() },
    }
}

/// Whether PUT and DELETE keep to their conditions. A store that does not know a
/// condition ignores it, and just does what was not to be done.
async fn conditions(client: &Client, key: &str) -> Result<(bool, bool), BucketError> {
    let put = |condition: Condition| async move {
        match client.put(key, Bytes::from_static(b"ebb"), &condition, &vec![]).await {
            Ok(_) => Ok(true),
            Err(BucketError::Precondition { .. }) => Ok(false),
            // 501: the store says itself that it does not know the condition.
            Err(BucketError::Refused { what }) if condition != Condition::Always => {
                tracing::debug!(what, "the store refuses conditional puts");
                Ok(true)
            }
            Err(other) => Err(other),
        }
    };
    let nobody = ETag("00000000000000000000000000000000".into());
    let ignores_match = put(Condition::Match(nobody.clone())).await?;
    put(Condition::Always).await?;
    let ignores_absent = put(Condition::Absent).await?;
    let guarded = match client.delete(key, Some(&nobody), true).await {
        Err(BucketError::Precondition { .. }) => true,
        Ok(()) | Err(BucketError::Refused { .. }) => false,
        Err(other) => return Err(other),
    };
    client.delete(key, None, false).await?;
    Ok((!ignores_match && !ignores_absent, guarded))
}

fn url(client: &Client) -> String {
    format!("s3://{}", client.endpoint.bucket)
}
