//! Encryption settings in every request that creates an object.

use super::{keys, open, wait};
use crate::BucketSettings;
use crate::ServerSideEncryption::{self, Aes256, Kms, KmsDsse};
use crate::http::script::{Script, answer, serve};
use bytes::Bytes;
use ebb_ports::{Bucket, Condition, PartTag, UploadId};

const METHOD: &str = "x-amz-server-side-encryption: ";
const KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id: ";

fn store() -> Script {
    serve(false, |request| {
        if request.starts_with("HEAD") {
            return answer("200 OK", "etag: \"e\"\r\n", "");
        }
        if request.contains("uploads=") {
            return answer(
                "200 OK",
                "",
                "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
            );
        }
        let body = "<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>";
        answer("200 OK", "etag: \"e\"\r\n", body)
    })
}

/// The requests of each kind, those that create an object first.
fn requests(method: Option<ServerSideEncryption>, key: Option<&str>) -> (Vec<String>, Vec<String>) {
    let script = store();
    let settings = BucketSettings {
        server_side_encryption: method,
        kms_key: key.map(str::to_owned),
        ..keys()
    };
    let bucket = open(&script.address, settings, &[]).unwrap();
    let opened = script.seen.lock().unwrap().len();
    wait(async {
        bucket.put("k", Bytes::from_static(b"x"), Condition::Always, vec![]).await.unwrap();
        bucket.copy("a", "b", None, Condition::Always).await.unwrap();
        let upload = bucket.upload_begin("k", vec![]).await.unwrap();
        assert_eq!(upload, UploadId("u".into()));
        bucket.upload_part("k", &upload, 1, Bytes::from_static(b"x")).await.unwrap();
        bucket
            .upload_complete(
                "k",
                &upload,
                vec![PartTag { number: 1, receipt: "e".into() }],
                Condition::Always,
            )
            .await
            .unwrap();
        bucket.delete("k", None).await.unwrap();
    });
    let mut making = script.seen.lock().unwrap()[opened..].to_vec();
    let others = making.split_off(3);
    (making, others)
}

#[test]
fn every_object_is_asked_to_be_encrypted() {
    let arn = "arn:aws:kms:eu-central-1:1:key/2";
    let cases = [
        (Some(Aes256), None, "AES256"),
        (Some(Kms), None, "aws:kms"),
        (Some(Kms), Some(arn), "aws:kms"),
        (Some(KmsDsse), Some(arn), "aws:kms:dsse"),
        (None, Some(arn), "aws:kms"),
    ];
    for (method, key, sent) in cases {
        let (making, others) = requests(method, key);
        for request in &making {
            assert!(request.contains(&format!("{METHOD}{sent}\r\n")), "{request}");
            let signed = request.lines().find(|line| line.starts_with("authorization: ")).unwrap();
            assert!(
                signed.contains(";x-amz-server-side-encryption"),
                "a header that is not signed is refused: {signed}"
            );
            assert_eq!(request.contains(&format!("{KEY}{arn}\r\n")), key.is_some(), "{request}");
        }
        assert!(
            others.len() == 3
                && others.iter().all(|request| !request.contains("server-side-encryption")),
            "{others:?}"
        );
    }
    let (making, _) = requests(None, None);
    assert!(
        making.iter().all(|request| !request.contains("server-side-encryption")),
        "the bucket's own settings are left alone"
    );
}

#[test]
fn a_key_that_would_not_be_used_is_refused() {
    let settings = BucketSettings {
        server_side_encryption: Some(Aes256),
        kms_key: Some("k".into()),
        ..keys()
    };
    let refused = open("http://127.0.0.1:9", settings, &[]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("a KMS key is not for encryption with the store's own"), "{refused}");
}
