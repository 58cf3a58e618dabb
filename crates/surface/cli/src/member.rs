//! The tables `[[bucket]]` of a configuration file (O-24).

use crate::args::{Addressing, Member, ServerSideEncryption};
use clap::ValueEnum;
use ebb_model::{MemberDir, redacted};
use toml::{Table, Value};

pub const KEY: &str = "bucket";

/// Every key of a table, with its description: the source of `docs/configuration.md`.
pub const KEYS: [(&str, &str); 10] = [
    (
        "dir",
        "Directory of the root for the bucket: one name, not `.ebb` and not beginning with \
         `.ebb%`. Required.",
    ),
    (
        "url",
        "s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX] or \
         file:///DIRECTORY. Required. Two buckets of a volume cannot share objects.",
    ),
    ("endpoint", "URL of the server, if it is not the cloud's own."),
    ("region", "Region of the bucket (S3)."),
    ("profile", "Profile of the credentials files (S3): gives the bucket its own credentials."),
    ("addressing", "Bucket name in the host name (`virtual`) or in the path (`path`) (S3)."),
    (
        "server-side-encryption",
        "Server-side encryption of objects (S3): `aes256`, `aws:kms` or `aws:kms:dsse`.",
    ),
    ("kms-key", "Key for server-side encryption (S3, Google Cloud Storage)."),
    ("request-payer", "Payer of requests: `requester` (S3), a project id (Google)."),
    ("anonymous", "`true`: send requests unsigned."),
];

/// An error says in words which key or value is wrong.
pub fn parse(value: Value) -> Result<Vec<Member>, String> {
    let Value::Array(tables) = value else {
        return Err(format!("{KEY} is to be tables, [[{KEY}]]"));
    };
    let mut members: Vec<Member> = Vec::new();
    for (index, table) in tables.into_iter().enumerate() {
        let at = format!("[[{KEY}]] number {}", index + 1);
        let Value::Table(table) = table else { return Err(format!("{at} is to be a table")) };
        let member = one(table).map_err(|what| format!("{at}: {what}"))?;
        if members.iter().any(|other| other.dir == member.dir) {
            return Err(format!(
                "{at}: {:?} is the directory of another bucket",
                member.dir.as_str()
            ));
        }
        if let Some(other) = members
            .iter()
            .find(|other| overlap((&other.url, &other.endpoint), (&member.url, &member.endpoint)))
        {
            return Err(format!(
                "{at}: {} and {} at {:?} have objects in common",
                redacted(&member.url),
                redacted(&other.url),
                other.dir.as_str()
            ));
        }
        members.push(member);
    }
    Ok(members)
}

fn one(mut table: Table) -> Result<Member, String> {
    if let Some(unknown) = table.keys().find(|key| !KEYS.iter().any(|(known, _)| known == key)) {
        let known = KEYS.map(|(key, _)| key).join(", ");
        return Err(format!("unknown key {unknown:?}: there are {known}"));
    }
    let anonymous = match table.remove("anonymous") {
        None => false,
        Some(Value::Boolean(flag)) => flag,
        Some(_) => return Err("anonymous is to be true or false".into()),
    };
    let mut text = |key: &str| match table.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key} is to be a text")),
    };
    let dir = text("dir")?.ok_or("dir is missing: the directory that shows the bucket")?;
    Ok(Member {
        dir: MemberDir::new(&dir).map_err(|error| error.to_string())?,
        url: text("url")?.ok_or("url is missing: what the directory shows")?,
        endpoint: text("endpoint")?,
        region: text("region")?,
        profile: text("profile")?,
        addressing: match text("addressing")? {
            None => None,
            Some(text) => Some(
                Addressing::from_str(&text, false)
                    .map_err(|_| "addressing is to be path or virtual")?,
            ),
        },
        server_side_encryption: match text("server-side-encryption")? {
            None => None,
            Some(text) => {
                Some(ServerSideEncryption::from_str(&text, false).map_err(
                    |_| "server-side-encryption is to be aes256, aws:kms or aws:kms:dsse",
                )?)
            }
        },
        kms_key: text("kms-key")?,
        request_payer: text("request-payer")?,
        anonymous,
    })
}

/// Two volumes in one place would each treat the other's files as its own. This compares addresses
/// only: a bucket with several addresses is detected when its head is taken.
pub fn overlap(
    (a, a_endpoint): (&str, &Option<String>),
    (b, b_endpoint): (&str, &Option<String>),
) -> bool {
    let place = |url: &str| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        format!("{}://{}/", scheme.to_ascii_lowercase(), rest.trim_end_matches('/'))
    };
    let (a, b) = (place(a), place(b));
    a_endpoint == b_endpoint && (a.starts_with(&b) || b.starts_with(&a))
}
