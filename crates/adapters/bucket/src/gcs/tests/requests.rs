//! Requests on the wire, beyond those that the available servers check.

use super::{error, found, json, nobody, open, open_as, store, wait};
use crate::BucketSettings;
use crate::http::script::{Reply, Script, answer};
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, PartTag, UploadId};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The last request, ignoring the concurrent sweep of crashed uploads.
fn last(script: &Script) -> String {
    let seen = script.seen.lock().unwrap();
    seen.iter().rev().find(|request| !request.contains("uploads%2F ")).unwrap().clone()
}

fn written(generation: u64) -> Reply {
    json(&format!(
        r#"{{"generation":"{generation}","done":true,"resource":{{"generation":"{generation}"}}}}"#
    ))
}

fn listed(names: &[String]) -> Reply {
    let items: Vec<String> =
        names.iter().map(|name| format!(r#"{{"name":"{name}","generation":"7","size":"1","updated":"2026-11-21T21:46:25Z"}}"#)).collect();
    json(&format!(r#"{{"items":[{}]}}"#, items.join(",")))
}

fn upload() -> UploadId {
    UploadId("0123456789abcdef0123456789abcdef".into())
}

fn place() -> String {
    crate::http::staging::place("", "k", &upload().0).unwrap()
}

/// Every request that creates an object names its encryption, parts of uploads included.
#[test]
fn objects_are_made_with_the_key() {
    let key = "projects/p/locations/l/keyRings/r/cryptoKeys/k";
    let script = store(|request| match request.split(' ').next().unwrap() {
        "HEAD" => found(7, ""),
        "GET" => listed(&[format!("{}/begun", place()), format!("{}/part-00001", place())]),
        "DELETE" => answer("204 No Content", "", ""),
        _ => written(7),
    });
    let bucket =
        open(&script.address, BucketSettings { kms_key: Some(key.into()), ..nobody() }, &[])
            .unwrap();
    let encoded = "projects%2Fp%2Flocations%2Fl%2FkeyRings%2Fr%2FcryptoKeys%2Fk";
    wait(bucket.put("k", Bytes::new(), Condition::Always, vec![])).unwrap();
    assert!(last(&script).contains(&format!("?kmsKeyName={encoded}&")), "{}", last(&script));
    wait(bucket.copy("a", "b", None, Condition::Always)).unwrap();
    assert!(
        last(&script).contains(&format!("destinationKmsKeyName={encoded}")),
        "{}",
        last(&script)
    );
    let part = wait(bucket.upload_part("k", &upload(), 1, Bytes::from_static(b"x"))).unwrap();
    wait(bucket.upload_complete("k", &upload(), vec![part], Condition::Always)).unwrap();
    let seen = script.seen.lock().unwrap();
    let made: Vec<&String> = seen.iter().filter(|request| request.starts_with("POST")).collect();
    assert!(
        made.len() == 4
            && made.iter().all(|request| request.contains(&format!("msKeyName={encoded}"))),
        "{made:?}"
    );
}

#[test]
fn conditions_are_generations() {
    let script = store(|request| {
        if request.starts_with("GET") {
            answer("200 OK", "x-goog-generation: 7\r\n", "text")
        } else {
            written(8)
        }
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let seven = ETag("7".into());
    wait(bucket.put(
        "a/../b",
        Bytes::from_static(b"123456789"),
        Condition::Absent,
        vec![("t".into(), "v".into())],
    ))
    .unwrap();
    let put = last(&script);
    assert!(
        put.starts_with(
            "POST /upload/storage/v1/b/bucket/o?ifGenerationMatch=0&uploadType=multipart "
        ),
        "{put}"
    );
    // The check value of CRC-32C.
    assert!(
        put.contains(r#""crc32c":"4waSgw==""#)
            && put.contains(r#""name":"a/../b""#)
            && put.contains(r#""metadata":{"t":"v"}"#),
        "{put}"
    );
    wait(bucket.put("k", Bytes::new(), Condition::Match(seven.clone()), vec![])).unwrap();
    assert!(last(&script).contains("ifGenerationMatch=7&"));
    wait(bucket.put("k", Bytes::new(), Condition::Match(ETag("d41d8".into())), vec![])).unwrap();
    assert!(
        last(&script).contains("ifGenerationMatch=1&"),
        "what is no generation is not 0, which means that there is no object"
    );
    wait(bucket.get("a//b", Some(2..5), Some(&seven))).unwrap();
    let get = last(&script);
    assert!(
        get.starts_with("GET /bucket/a%2F%2Fb ")
            && get.contains("x-goog-if-generation-match: 7\r\n"),
        "{get}"
    );
    assert!(
        get.contains("range: bytes=2-4\r\n") && get.contains("accept-encoding: gzip\r\n"),
        "{get}"
    );
}

/// The store keeps conditions on deletions, so that copies and completions are guarded too.
#[test]
fn a_guarded_store_is_trusted_with_every_condition() {
    let script = store(|request| match request.split(' ').next().unwrap() {
        _ if request.contains(".ebb%2Fprobe?ifGenerationMatch=1 ") => {
            error("412 Precondition Failed", "conditionNotMet", "")
        }
        _ if request.contains(".ebb/probe\"") && request.contains("ifGenerationMatch=") => {
            error("412 Precondition Failed", "conditionNotMet", "")
        }
        "HEAD" => found(9, "x-goog-meta-ebb-txn: t\r\n"),
        "GET" if request.contains("uploads%2F ") => json("{}"),
        "GET" => listed(&[format!("{}/begun", place()), format!("{}/part-00001", place())]),
        _ => written(9),
    });
    let settings = BucketSettings { endpoint: Some(script.address.clone()), ..nobody() };
    let bucket = open_as(settings, &[]).unwrap();
    assert!(bucket.capabilities().conditional_put && bucket.capabilities().conditional_delete);
    wait(bucket.delete("k", Some(&ETag("7".into())))).unwrap();
    assert!(last(&script).starts_with("DELETE /storage/v1/b/bucket/o/k?ifGenerationMatch=7 "));
    wait(bucket.copy("a/b", "c/d", Some(&ETag("7".into())), Condition::Absent)).unwrap();
    let copied = last(&script);
    let asked = "POST /storage/v1/b/bucket/o/a%2Fb/rewriteTo/b/bucket/o/c%2Fd?ifGenerationMatch=0&ifSourceGenerationMatch=7 ";
    assert!(copied.starts_with(asked), "{copied}");
    let part = PartTag { number: 1, receipt: "7".into() };
    wait(bucket.upload_complete("k", &upload(), vec![part], Condition::Match(ETag("5".into()))))
        .unwrap();
    let seen = script.seen.lock().unwrap();
    let composed = seen
        .iter()
        .find(|request| {
            request.starts_with("POST /storage/v1/b/bucket/o/k/compose?ifGenerationMatch=5 ")
        })
        .unwrap();
    assert!(
        composed.contains(r#""objectPreconditions":{"ifGenerationMatch":"7"}"#)
            && composed.contains(r#""ebb-txn":"t""#),
        "{composed}"
    );
    assert_eq!(
        seen.iter()
            .filter(|request| request.starts_with("DELETE") && request.contains("uploads%2F"))
            .count(),
        2
    );
}

/// A copy that the store performs in steps continues where it stopped.
#[test]
fn a_long_copy_goes_on() {
    let script = store(|request| match request.contains("rewriteToken=next") {
        true => written(8),
        false => json(r#"{"done":false,"rewriteToken":"next"}"#),
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    assert_eq!(wait(bucket.copy("a", "b", None, Condition::Always)).unwrap(), ETag("8".into()));
}

/// A hundred parts are more than one request composes: they are joined in groups first.
#[test]
fn many_parts_are_joined_in_groups() {
    let parts: Vec<String> =
        (1..=100).map(|number| format!("{}/part-{number:05}", place())).collect();
    let script = store(move |request| match request.split(' ').next().unwrap() {
        "HEAD" if request.contains("begun") => found(7, ""),
        "HEAD" => answer("404 Not Found", "", ""),
        "GET" => listed(&parts),
        "DELETE" => answer("204 No Content", "", ""),
        _ => written(7),
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let tags = (1..=100).map(|number| PartTag { number, receipt: "7".into() }).collect();
    wait(bucket.upload_complete("k", &upload(), tags, Condition::Absent)).unwrap();
    let seen = script.seen.lock().unwrap();
    let sources = |request: &&String| request.matches("objectPreconditions").count();
    let mut composed: Vec<usize> = seen
        .iter()
        .filter(|request| request.contains("/compose"))
        .map(|request| sources(&request))
        .collect();
    composed.sort();
    assert_eq!(composed, [4, 4, 32, 32, 32]);
    assert_eq!(seen.iter().filter(|request| request.starts_with("DELETE")).count(), 104);
}

/// A completion that saw the marker composes parts while the upload is aborted: its result is
/// removed as well.
#[test]
fn an_abort_goes_on_until_nothing_is_left() {
    let rounds = Arc::new(Mutex::new(vec![
        vec![],
        vec![format!("{}/join-0-0000", place())],
        vec![format!("{}/part-00001", place())],
    ]));
    let script = store(move |request| match request.split(' ').next().unwrap() {
        "GET" => listed(&rounds.lock().unwrap().pop().unwrap()),
        _ => answer("204 No Content", "", ""),
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    wait(bucket.upload_abort("k", &upload())).unwrap();
    let seen = script.seen.lock().unwrap();
    let deletions = seen.iter().filter_map(|request| request.strip_prefix("DELETE "));
    let deleted: Vec<&str> =
        deletions.filter_map(|request| request.split([' ', '?']).next()).collect();
    assert!(
        deleted[0].ends_with("begun")
            && deleted[1].ends_with("part-00001")
            && deleted[2].ends_with("join-0-0000"),
        "{deleted:?}"
    );
}

/// A part arrives after its upload is gone: its sender removes it.
#[test]
fn a_late_part_leaves_nothing() {
    let script = store(|request| match request.split(' ').next().unwrap() {
        "HEAD" => answer("404 Not Found", "", ""),
        "DELETE" => answer("204 No Content", "", ""),
        _ => written(7),
    });
    let bucket = open(&script.address, nobody(), &[]).unwrap();
    let sent = wait(bucket.upload_part("k", &upload(), 3, Bytes::from_static(b"x")));
    assert!(matches!(sent, Err(BucketError::NotFound { ref key }) if key == "k"), "{sent:?}");
    assert!(last(&script).contains("part-00003?ifGenerationMatch=7 "));
}

/// Deletes of leftover uploads, after `expected` requests and a short wait for more.
fn swept(script: &Script, expected: usize) -> Vec<String> {
    let of_uploads =
        |request: &&String| request.starts_with("DELETE") && request.contains("uploads");
    let mut patience = 100;
    loop {
        let swept: Vec<String> =
            script.seen.lock().unwrap().iter().filter(of_uploads).cloned().collect();
        let slow = swept.len() < expected && patience > 0;
        patience = if slow { patience - 1 } else { patience.min(2) - 1 };
        if patience == 0 {
            return swept;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Uploads that no crash can have left yesterday are left alone.
#[test]
fn only_old_uploads_are_swept() {
    let script = store(|request| match request.split(' ').next().unwrap() {
        "GET" => json(
            r#"{"items":[{"name":".ebb/uploads/old","generation":"7","size":"1","updated":"2020-01-01T00:00:00Z"},
                {"name":".ebb/uploads/new","generation":"7","size":"1","updated":"2999-01-01T00:00:00Z"}]}"#,
        ),
        "DELETE" => answer("204 No Content", "", ""),
        _ => written(7),
    });
    let settings = BucketSettings { endpoint: Some(script.address.clone()), ..nobody() };
    let _bucket = open_as(settings, &[]).unwrap();
    let swept = swept(&script, 1);
    assert!(
        swept.len() == 1 && swept[0].contains("uploads%2Fold?ifGenerationMatch=7"),
        "{swept:?}"
    );
}

/// A crashed upload of a large file has left more parts than one listing batch holds, and the first
/// batch shows only parts of running uploads.
#[test]
fn all_old_uploads_are_swept() {
    let page = |names: std::ops::Range<u32>, year: u32, next: &str| {
        let item = |name| {
            format!(
                r#"{{"name":".ebb/uploads/{name:05}","generation":"7","size":"1","updated":"{year}-01-01T00:00:00Z"}}"#
            )
        };
        let items: Vec<String> = names.map(item).collect();
        json(&format!(r#"{{"items":[{}]{next}}}"#, items.join(",")))
    };
    let script = store(move |request| match request.split(' ').next().unwrap() {
        "GET" if request.contains("pageToken=b") => page(2000..2500, 2020, ""),
        "GET" if request.contains("pageToken=a") => {
            page(1000..2000, 2020, r#","nextPageToken":"b""#)
        }
        "GET" => page(0..1000, 2999, r#","nextPageToken":"a""#),
        "DELETE" => answer("204 No Content", "", ""),
        _ => written(7),
    });
    let settings = BucketSettings { endpoint: Some(script.address.clone()), ..nobody() };
    let _bucket = open_as(settings, &[]).unwrap();
    let swept = swept(&script, 1500);
    assert_eq!(swept.len(), 1500);
    assert!(swept.iter().all(|request| {
        (1000..2500).any(|name| request.contains(&format!("uploads%2F{name:05}?")))
    }));
}
