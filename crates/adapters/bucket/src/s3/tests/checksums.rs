//! The checksum of an uploaded body, by the detected capabilities of the store.

use super::{keys, open_as, wait};
use crate::BucketSettings;
use crate::http::remote::Remote;
use crate::http::script::{Reply, Script, answer, serve};
use crate::s3::S3;
use bytes::Bytes;
use ebb_ports::{Bucket, BucketError, Condition, ETag, PartTag, Piece, UploadId};

/// The CRC of "123456789", as listed in catalogues of CRCs.
const BODY: &str = "123456789";
const CRC: &str = "4waSgw==";

/// A store's support for CRC-32C.
#[derive(Clone, Copy, PartialEq)]
enum Store {
    Checks,
    /// Verifies uploads, and reports no checksum for copies.
    ChecksWhatIsSent,
    /// The same, and rejects copies of objects without a checksum.
    WantsAll,
    /// The same, and reports for the source of a copy the checksum of a two-part object.
    TellsAnother,
    RefusesCompletions,
    /// It names the algorithm, and does not check the checksums.
    NamesIt,
    ChecksPuts,
    RefusesUploads,
    TakesNoNotice,
    RefusesPuts,
}
use Store::*;

fn play(store: Store, request: &str) -> Reply {
    let asked = request.contains("x-amz-checksum-algorithm: CRC32C\r\n");
    let says = |given: &str| request.contains(&format!("x-amz-checksum-crc32c: {given}\r\n"));
    let error = |status: &str, code: &str| {
        answer(status, "", &format!("<Error><Code>{code}</Code></Error>"))
    };
    let etag = "etag: \"e\"\r\n";
    if request.contains("uploads=") {
        let (id, header) = match (store, asked) {
            (RefusesUploads, true) => return error("501 Not Implemented", "NotImplemented"),
            (
                Checks | ChecksWhatIsSent | WantsAll | TellsAnother | RefusesCompletions | NamesIt,
                true,
            ) => ("checked", "x-amz-checksum-algorithm: CRC32C\r\n"),
            _ => ("plain", ""),
        };
        return answer(
            "200 OK",
            header,
            &format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ),
        );
    }
    if request.contains("x-amz-copy-source: ") {
        if store == WantsAll && request.contains("uploadId=checked") {
            return error("400 Bad Request", "InvalidArgument");
        }
        let crc = match store {
            Checks | ChecksPuts => "<ChecksumCRC32C>Y29weQ==</ChecksumCRC32C>",
            TellsAnother => "<ChecksumCRC32C>Y29weQ==-2</ChecksumCRC32C>",
            _ => "",
        };
        return answer(
            "200 OK",
            "",
            &format!("<CopyPartResult><ETag>&quot;c&quot;</ETag>{crc}</CopyPartResult>"),
        );
    }
    if store == RefusesCompletions && request.contains("<ChecksumCRC32C>") {
        return error("400 Bad Request", "MalformedXML");
    }
    if request.starts_with("POST") {
        return answer(
            "200 OK",
            "",
            "<CompleteMultipartUploadResult><ETag>&quot;e&quot;</ETag></CompleteMultipartUploadResult>",
        );
    }
    let is_probe = request.starts_with("PUT /bucket/.ebb/probe ");
    match store {
        RefusesPuts if request.contains("x-amz-checksum-crc32c") => {
            error("400 Bad Request", "InvalidRequest")
        }
        TakesNoNotice => answer("200 OK", etag, ""),
        NamesIt if !is_probe => answer("200 OK", etag, ""),
        // Of nothing, while three bytes came.
        _ if says("AAAAAA==") => error("400 Bad Request", "BadDigest"),
        _ => answer("200 OK", etag, ""),
    }
}

fn opened(store: Store) -> (Script, Remote<S3>) {
    let script = serve(false, move |request| play(store, request));
    let bucket =
        open_as(BucketSettings { endpoint: Some(script.address.clone()), ..keys() }, &[]).unwrap();
    script.seen.lock().unwrap().clear();
    (script, bucket)
}

/// The requests since the last ones.
fn sent(script: &Script) -> Vec<String> {
    std::mem::take(&mut script.seen.lock().unwrap())
}

fn body() -> Bytes {
    Bytes::from_static(BODY.as_bytes())
}

fn is_by_crc(request: &str) -> bool {
    let has = |line: &str| request.contains(&format!("{line}\r\n"));
    let by_crc = has("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    assert_eq!(
        by_crc,
        has(&format!("x-amz-checksum-crc32c: {CRC}")),
        "one of the two checks the body: {request}"
    );
    let signed = request.lines().find(|line| line.starts_with("authorization: ")).unwrap();
    assert_eq!(by_crc, signed.contains(";x-amz-checksum-crc32c;x-amz-content-sha256;"), "{signed}");
    by_crc
}

#[test]
fn a_put_is_checked_by_crc_only_where_the_store_refused_a_wrong_one() {
    for (store, by_crc) in
        [(Checks, true), (ChecksPuts, true), (TakesNoNotice, false), (RefusesPuts, false)]
    {
        let (script, bucket) = opened(store);
        wait(bucket.put("k", body(), Condition::Always, vec![])).unwrap();
        assert_eq!(is_by_crc(&sent(&script)[0]), by_crc);
    }
}

fn piece() -> Piece {
    Piece { key: "from".into(), etag: ETag("e".into()), range: 0..9 }
}

#[test]
fn an_upload_that_is_checked_is_completed_with_the_checksums_of_all_parts() {
    let (script, bucket) = opened(Checks);
    wait(async {
        let upload = bucket.upload_begin("k", vec![]).await.unwrap();
        let parts = vec![
            bucket.upload_part("k", &upload, 1, body()).await.unwrap(),
            bucket.upload_part_copy("k", &upload, 2, piece()).await.unwrap(),
        ];
        bucket.upload_complete("k", &upload, parts, Condition::Always).await.unwrap();
        // Another client's upload, begun in an unknown way.
        bucket.upload_part("k", &UploadId("strange".into()), 1, body()).await.unwrap();
    });
    let sent = sent(&script);
    assert!(sent[0].contains("x-amz-checksum-algorithm: CRC32C\r\n"), "{}", sent[0]);
    assert!(
        sent[1].contains("x-amz-checksum-crc32c: AAAAAA==\r\n"),
        "a wrong one, to see whether it is refused: {}",
        sent[1]
    );
    assert!(is_by_crc(&sent[2]));
    let part = |number, etag, crc| {
        format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag><ChecksumCRC32C>{crc}</ChecksumCRC32C></Part>"
        )
    };
    assert!(sent[4].contains(&(part(1, "e", CRC) + &part(2, "c", "Y29weQ=="))), "{}", sent[4]);
    assert!(!is_by_crc(&sent[5]));
}

#[test]
fn a_store_that_checks_no_parts_gets_uploads_without() {
    for (store, requests, ended) in [(ChecksPuts, 3, 1), (RefusesUploads, 2, 0), (NamesIt, 4, 1)] {
        let (script, bucket) = opened(store);
        let upload = wait(bucket.upload_begin("k", vec![])).unwrap();
        assert_eq!(upload, UploadId("plain".into()));
        let begun = sent(&script);
        assert_eq!(
            begun.len(),
            requests,
            "with, a wrong part and its end if there was one, and without: {begun:?}"
        );
        assert_eq!(begun.iter().filter(|request| request.starts_with("DELETE")).count(), ended);
        let part = wait(bucket.upload_part("k", &upload, 1, body())).unwrap();
        assert_eq!(part, PartTag { number: 1, receipt: "e".into() });
        let copied = wait(bucket.upload_part_copy("k", &upload, 2, piece())).unwrap();
        assert_eq!(
            copied.receipt, "c",
            "a checksum would be refused in the end, though the store tells it"
        );
        wait(bucket.upload_begin("k", vec![])).unwrap();
        let later = sent(&script);
        assert!(!is_by_crc(&later[0]));
        assert!(
            later.len() == 3 && !later[2].contains("checksum"),
            "it is not asked again: {later:?}"
        );
    }
}

#[test]
fn an_upload_that_could_not_be_completed_is_to_be_begun_anew() {
    [ChecksWhatIsSent, WantsAll, TellsAnother].into_iter().for_each(is_begun_anew);
}

fn is_begun_anew(store: Store) {
    let (script, bucket) = opened(store);
    let upload = wait(bucket.upload_begin("k", vec![])).unwrap();
    let copied = wait(bucket.upload_part_copy("k", &upload, 1, piece()));
    assert!(matches!(copied, Err(BucketError::NotFound { .. })), "{copied:?}");
    wait(bucket.upload_abort("k", &upload)).unwrap();
    let upload = wait(bucket.upload_begin("k", vec![])).unwrap();
    wait(bucket.upload_part_copy("k", &upload, 1, piece())).unwrap();
    wait(bucket.upload_part("k", &upload, 2, body())).unwrap();
    let sent = sent(&script);
    assert!(!sent[4].contains("checksum") && !is_by_crc(&sent[6]), "{sent:?}");
}

#[test]
fn after_an_upload_that_was_refused_the_next_one_has_no_checksums() {
    let (_script, bucket) = opened(RefusesCompletions);
    let upload = async || {
        let upload = bucket.upload_begin("k", vec![]).await.unwrap();
        let part = bucket.upload_part("k", &upload, 1, body()).await.unwrap();
        bucket.upload_complete("k", &upload, vec![part], Condition::Always).await
    };
    let refused = wait(upload());
    assert!(matches!(refused, Err(BucketError::Refused { .. })), "{refused:?}");
    wait(upload()).unwrap();
}

/// An upload is begun and the reply is lost: the caller looks for it, unless it could not abort it
/// anyway.
#[test]
fn an_upload_that_is_not_wanted_is_looked_for_if_its_end_is_not_clear() {
    let begun = |method: &'static str, reply: fn() -> Reply| {
        let script = serve(false, move |request| {
            match request.starts_with(method) && request.contains("uploadId=checked") {
                true => reply(),
                false => play(NamesIt, request),
            }
        });
        let bucket =
            open_as(BucketSettings { endpoint: Some(script.address.clone()), ..keys() }, &[])
                .unwrap();
        wait(bucket.upload_begin("k", vec![]))
    };
    for (method, reply) in [
        ("DELETE", (|| answer("503 Service Unavailable", "", "")) as fn() -> Reply),
        ("PUT", || Reply::Close),
    ] {
        let doubtful = begun(method, reply);
        assert!(matches!(doubtful, Err(BucketError::Unknown { .. })), "{method}: {doubtful:?}");
    }
    let forbidden = || answer("403 Forbidden", "", "<Error><Code>AccessDenied</Code></Error>");
    assert_eq!(begun("DELETE", forbidden), Ok(UploadId("plain".into())));
}
