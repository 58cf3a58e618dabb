//! Checks when a bucket is opened: whether it exists, grants access, and honours conditions.

use super::operations::{MAX_OBJECT_BYTES, MAX_PUT_BYTES};
use super::{MAX_KEY_BYTES, S3};
use crate::OpenError;
use crate::http::client::{Call, Outcome, Service};
use crate::http::fault::Refusal;
use crate::http::remote::{conditions, probe_key};
use crate::http::xml::Element;
use ebb_ports::Capabilities;

/// Only the volume's prefix is touched: rights may end there.
pub(crate) async fn probe(
    client: &S3,
    prefix: &str,
    read_only: bool,
) -> Result<Capabilities, OpenError> {
    reachable(client, prefix).await?;
    if !read_only {
        client
            .learn_checksums(&probe_key(prefix))
            .await
            .map_err(|error| OpenError::unwritten(client.service.url(), error))?;
    }
    let kept = conditions(client, prefix, read_only).await?;
    Ok(Capabilities {
        conditional_put: kept.put,
        conditional_delete: kept.delete,
        copies_parts: true,
        copies_remotely: true,
        min_part_bytes: 5 << 20,
        max_parts: 10_000,
        max_object_bytes: MAX_OBJECT_BYTES,
        max_key_bytes: MAX_KEY_BYTES,
        max_put_bytes: MAX_PUT_BYTES,
    })
}

async fn reachable(client: &S3, prefix: &str) -> Result<(), OpenError> {
    let path = client.service.endpoint.path(None);
    let call = Call::read("GET", None, path)
        .query("list-type", "2")
        .query("max-keys", "1")
        .query("prefix", prefix);
    let url = client.service.url();
    match client.try_call(&call).await {
        Ok(Outcome::Done(answer)) => match Element::parse(&answer.body) {
            Some(root) if root.name == "ListBucketResult" => Ok(()),
            _ => Err(OpenError::stranger(url, "S3")),
        },
        Ok(Outcome::Refused(refusal)) => Err(refused(client, &call, &refusal)),
        Err(error) => Err(client.not_open(error)),
    }
}

fn refused(client: &S3, call: &Call<'_>, refusal: &Refusal) -> OpenError {
    let (url, region) = (client.service.url(), &client.service.region);
    if refusal.is("NoSuchBucket") || (refusal.status == 404 && refusal.code.is_empty()) {
        return OpenError::NoBucket {
            url,
            endpoint: client.service.endpoint.origin.authority.clone(),
        };
    }
    if let Some(other) = refusal.region.as_ref().filter(|other| *other != region) {
        return OpenError::Settings {
            url,
            what: format!("the bucket is in region {other}, not {region}; set the region"),
        };
    }
    if refusal.is_redirect() {
        let elsewhere = match &refusal.moved_to {
            Some(place) => format!("the store says that the bucket is at {place}"),
            None => "the store says that the bucket is elsewhere, and not where".into(),
        };
        return OpenError::Settings {
            url,
            what: format!("{elsewhere}; set the endpoint, or the region, which is {region} now"),
        };
    }
    client.not_open(client.error(call, refusal))
}
