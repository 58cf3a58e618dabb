//! Entry points of the fuzz targets.

use crate::directory::{notes, uploads};
use crate::http::client::{Client, Service};
use crate::http::credentials::Environment;
use crate::http::page::page;
use crate::http::remote::{Got, Operations};
use crate::http::transport::{Answer, Transport};
use crate::location::Location;
use crate::tags::checked;
use crate::{BucketSettings, azure, gcs, s3};
use bytes::Bytes;
use ebb_ports::{Condition, ETag, ListRequest, PartTag, Piece, UploadId};
use futures_util::FutureExt;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use std::future::Future;
use std::sync::{Arc, LazyLock};
use tokio::runtime::{Builder, Runtime};

/// A body that any of the stores might have sent as a page of a listing.
pub fn listing(body: &[u8]) {
    let request = ListRequest {
        prefix: "d/".into(),
        by_directory: true,
        after: Some("d/b".into()),
        limit: 10,
    };
    s3::listing::read_uploads(body);
    for read in [s3::listing::read, gcs::listing::read, azure::listing::read] {
        let Some(listed) = read(body) else { continue };
        let page = page(listed.entries, listed.more, &request);
        let keys: Vec<&str> = page.entries.iter().map(|entry| entry.key()).collect();
        assert!(keys.len() <= request.limit && keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert!(keys.iter().all(|key| key.starts_with("d/") && *key > "d/b"), "{keys:?}");
    }
}

/// Arbitrary answers of a store: one byte selects the store, one the first operation, and each zero
/// is followed by an answer: `STATUS`, lines `NAME: VALUE`, an empty line and a body.
pub fn answers(bytes: &[u8]) {
    let Some((&[store, first], rest)) = bytes.split_first_chunk() else { return };
    let said = |name: &str| {
        let value = match name {
            "AWS_ACCESS_KEY_ID" => "key",
            "AWS_SECRET_ACCESS_KEY" => "secret",
            "AZURE_STORAGE_KEY" => "c2VjcmV0",
            "STORAGE_EMULATOR_HOST" => "127.0.0.1:1",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let operations = (0..OPERATIONS).map(|at| first.wrapping_add(at) % OPERATIONS);
    at_once(async {
        match client(store, Arc::new(said), script(rest)) {
            Some(Store::S3(store)) => {
                if first >= OPERATIONS {
                    drop(s3::probe::probe(&store, "p/", false).await);
                }
                ask(&store, operations).await;
            }
            Some(Store::Google(mut store)) => {
                if first >= OPERATIONS {
                    drop(gcs::probe(&mut store, false).await);
                }
                ask(&store, operations).await;
            }
            Some(Store::Azure(store)) => {
                if first >= OPERATIONS {
                    drop(azure::probe(&store, false).await);
                }
                ask(&store, operations).await;
            }
            None => {}
        }
    });
}

/// Arbitrary credentials of one of the stores, from an environment, the files that it names and the
/// services of a cloud. `answers` are as those of [`answers`].
pub fn credentials(store: u8, environment: Environment, answers: &[u8]) {
    at_once(async {
        match client(store, environment, script(answers)) {
            Some(Store::S3(store)) => one_request(&store).await,
            Some(Store::Google(store)) => one_request(&store).await,
            Some(Store::Azure(store)) => one_request(&store).await,
            None => {}
        }
    });
}

/// Arbitrary text as the URL of a bucket.
pub fn location(text: &str) {
    if let Ok(
        Location::S3 { prefix, .. }
        | Location::Google { prefix, .. }
        | Location::Azure { prefix, .. },
    ) = Location::parse(text)
    {
        assert!(prefix.is_empty() || prefix.ends_with('/'), "{prefix:?}");
    }
}

/// Arbitrary bytes as the stored tags of an object, and as the stored description of an upload.
pub fn notes(bytes: &[u8]) {
    let etag = ETag("1-2-3".into());
    // Other tags are not valid.
    if let Ok(tags) = checked(notes::tags_in(bytes, &etag)) {
        assert_eq!(notes::tags_in(notes::text_of(&tags, &etag).as_bytes(), &etag), tags);
    }
    if let Some(tags) = uploads::tags_told(bytes, "k") {
        assert_eq!(
            uploads::tags_told(uploads::description("k", &tags).as_bytes(), "k"),
            Some(tags)
        );
    }
}

enum Store {
    S3(s3::S3),
    Google(gcs::Gcs),
    Azure(azure::Blobs),
}

fn client(store: u8, environment: Environment, answers: Vec<Answer>) -> Option<Store> {
    let settings = BucketSettings::default();
    let transport = |_: &Environment, _| Ok(Transport::scripted(answers));
    match store % 3 {
        0 => s3::client("bucket", &settings, environment, transport).ok().map(Store::S3),
        1 => gcs::client("bucket", "p/", &settings, environment, transport).ok().map(Store::Google),
        _ => azure::client("container", "account", "p/", &settings, environment, transport)
            .ok()
            .map(Store::Azure),
    }
}

async fn one_request<S: Service>(client: &Client<S>)
where
    Client<S>: Operations,
{
    drop(client.head("k").await);
}

const OPERATIONS: u8 = 13;

/// Each operation consumes as many answers as it needs; requests after the last answer fail.
async fn ask(store: &impl Operations, operations: impl Iterator<Item = u8>) {
    let etag = ETag("1700000000000000".into());
    let upload = UploadId("0123456789abcdef0123456789abcdef".into());
    let body = Bytes::from_static(b"ebb");
    let tags = vec![("ebb-object".to_owned(), "1/1.1".to_owned())];
    let parts = [
        PartTag { number: 1, receipt: "r 6Le+Qw==".into() },
        PartTag { number: 2, receipt: etag.0.clone() },
    ];
    let request = ListRequest { prefix: "d/".into(), by_directory: true, after: None, limit: 10 };
    for operation in operations {
        let told = match operation {
            0 | 1 => match store.get("k", (operation == 0).then_some(1..3), Some(&etag)).await {
                Ok(Got::Object(object)) => Some(object.meta.etag),
                Ok(Got::NothingThere) | Err(_) => None,
            },
            2 => store.head("k").await.ok().map(|meta| meta.etag),
            3 => store.put("k", body.clone(), &Condition::Match(etag.clone()), &tags).await.ok(),
            4 => store.copy("k", "l", Some(&etag), &Condition::Always).await.ok(),
            5 => store.upload_begin("k", &tags).await.ok().map(|upload| ETag(upload.0)),
            6 => store
                .upload_part("k", &upload, 1, body.clone())
                .await
                .ok()
                .map(|part| ETag(part.receipt)),
            7 => {
                let from = Piece { key: "l".into(), etag: etag.clone(), range: 0..9 };
                store
                    .upload_part_copy("k", &upload, 2, &from)
                    .await
                    .ok()
                    .map(|part| ETag(part.receipt))
            }
            8 => store.upload_complete("k", &upload, &parts, &Condition::Absent).await.ok(),
            9 => store.delete("k", Some(&etag)).await.err().map(|error| ETag(error.to_string())),
            10 => store.upload_abort("k", &upload).await.err().map(|error| ETag(error.to_string())),
            11 => store.uploads("k").await.ok().map(|uploads| ETag(format!("{uploads:?}"))),
            _ => {
                if let Ok(listed) = store.list(&request, None).await {
                    page(listed.entries, listed.more, &request);
                }
                None
            }
        };
        assert!(
            told.is_none_or(|told| !told.0.is_empty()),
            "what operation {operation} gives cannot be asked for again"
        );
    }
}

fn script(bytes: &[u8]) -> Vec<Answer> {
    bytes.split(|byte| *byte == 0).filter_map(answer).take(MOST_ANSWERS).collect()
}

/// Further answers do not improve the search.
const MOST_ANSWERS: usize = 32;

fn answer(text: &[u8]) -> Option<Answer> {
    let end = text.windows(2).position(|end| end == b"\n\n");
    let (head, body) = end.map_or((text, &[][..]), |end| (&text[..end], &text[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = StatusCode::from_bytes(lines.next()?).ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (
            HeaderName::from_bytes(&line[..colon]),
            HeaderValue::from_bytes(line[colon + 1..].trim_ascii()),
        );
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    Some(Answer { status, headers, body: Bytes::copy_from_slice(body) })
}

/// Drops work that waits for time to pass.
fn at_once(work: impl Future<Output = ()>) {
    static TIME: LazyLock<Runtime> = LazyLock::new(|| {
        Builder::new_current_thread().enable_time().build().expect("a runtime of one thread")
    });
    let _entered = TIME.enter();
    work.now_or_never();
}
