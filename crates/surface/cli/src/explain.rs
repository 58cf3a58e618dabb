//! The output of `ebb explain`.

use crate::quota;
use crate::render::{age, with_path};
use crate::units::{Bytes, Span};
use ebb_model::{Explained, FileKind, MissingObject, Time, shown_path};
use serde_json::{Value, json};
use std::fmt::{Result, Write};
use std::time::Duration;

pub(crate) fn write(out: &mut String, explained: &Explained, now: Time) -> Result {
    writeln!(out, "path      /{}", shown_path(&explained.path))?;
    writeln!(
        out,
        "inode     {}, {}, {}",
        explained.ino,
        kind(explained.kind),
        Bytes(explained.size_bytes)
    )?;
    writeln!(
        out,
        "log       names, attributes and where bytes are, in {}; {} operations on the volume are \
         not forced yet",
        explained.log, explained.unforced_operations
    )?;
    match &explained.store_file {
        Some((file, 0)) => writeln!(out, "cache     {} in {file}", Bytes(explained.cached_bytes))?,
        Some((file, start)) => writeln!(
            out,
            "cache     {} in {file}, from byte {start} on",
            Bytes(explained.cached_bytes)
        )?,
        None if has_bytes(explained) => writeln!(out, "cache     nothing")?,
        None => {}
    }
    if let Some(since) = explained.dirty_since {
        writeln!(out, "dirty     {}, for {}", Bytes(explained.dirty_bytes), age(since, now))?;
    }
    for (offset, len_bytes) in &explained.dirty_runs {
        writeln!(out, "          {offset} to {}", offset + len_bytes)?;
    }
    for (offset, len_bytes) in &explained.damaged_runs {
        writeln!(out, "damaged   {offset} to {}: these bytes are nowhere", offset + len_bytes)?;
    }
    if let Some(error) = &explained.force_failed {
        writeln!(out, "force     has failed: {error}")?;
    }
    if let Some(sent) = explained.sent_bytes.filter(|_| has_bytes(explained)) {
        writeln!(
            out,
            "sending   {} of {} have been sent",
            Bytes(sent),
            Bytes(explained.size_bytes)
        )?;
    }
    match (&explained.bucket, &explained.object, explained.missing) {
        (None, ..) => writeln!(out, "object    none: the volume has no bucket")?,
        (_, _, Some(MissingObject::Lost)) => {
            writeln!(out, "object    none: a node was lost with its bytes, and they are nowhere")?
        }
        (_, Some(object), Some(MissingObject::Removed)) => writeln!(
            out,
            "object    {} is gone: others have removed it",
            shown_path(object.key.as_bytes())
        )?,
        (Some(bucket), Some(object), None) => {
            let key = shown_path(object.key.as_bytes());
            writeln!(
                out,
                "object    {key}, {}, ETag {}, in {bucket}",
                Bytes(object.len_bytes),
                object.etag
            )?;
        }
        (Some(bucket), None, _) if has_bytes(explained) => {
            writeln!(out, "object    none in {bucket}")?
        }
        (Some(bucket), None, _) if explained.pages.is_empty() => {
            writeln!(out, "object    none in {bucket}: the keys of others tell of it")?
        }
        (Some(_), None, _) => {}
    }
    for reason in &explained.refused {
        writeln!(out, "refused   {reason}")?;
    }
    if let Some(prefix) = &explained.prefix {
        let prefix = shown_path(prefix.as_bytes());
        writeln!(out, "objects   below {prefix}, not below its path")?;
    }
    let (not_shown, keys) = &explained.not_shown;
    if *not_shown > 0 {
        writeln!(out, "not shown {not_shown} keys of the bucket that cannot be names here:")?;
        for key in keys {
            writeln!(out, "          {}", shown_path(key.as_bytes()))?;
        }
    }
    for page in &explained.pages {
        let etag = page.etag.as_ref().map(|etag| format!(", ETag {etag}")).unwrap_or_default();
        let state = match (page.there, page.since) {
            (true, None) => "with names and attributes".into(),
            (true, Some(since)) => format!("to be written anew, for {}", age(since, now)),
            (false, Some(since)) => {
                format!("not in the bucket yet, to be written for {}", age(since, now))
            }
            (false, None) => "not in the bucket yet".into(),
        };
        writeln!(out, "page      {}{etag}, {state}", page.key)?;
    }
    if let Some(status) = &explained.quota {
        writeln!(out, "quota     {}", quota::line(status))?;
    }
    if let Some(path) = &explained.pinned_by {
        writeln!(out, "pinned    by /{}", shown_path(path))?;
    }
    if let Some((path, keep_secs)) = &explained.kept {
        let keep = Span(Duration::from_secs(*keep_secs));
        writeln!(
            out,
            "trash     kept for {keep} once it is removed, as /{} has it",
            shown_path(path)
        )?;
    }
    if explained.exposed {
        writeln!(
            out,
            "exposed   it can be stored into through a mapping: that is found at intervals, and \
             once nobody has it"
        )?;
    } else if explained.open && has_bytes(explained) {
        writeln!(
            out,
            "open      somebody has it: what is stored through a mapping counts once the kernel \
             has written it back"
        )?;
    }
    for (failure, outcome) in outcomes(explained) {
        writeln!(out, "{failure:<9} {outcome}")?;
    }
    Ok(())
}

pub(crate) fn json(explained: &Explained) -> Value {
    let outcomes = outcomes(explained);
    let fields = json!({
        "inode": explained.ino.to_string(),
        "kind": kind(explained.kind),
        "size_bytes": explained.size_bytes,
        "store_file": explained.store_file.as_ref().map(|(file, _)| file),
        "store_file_start": explained.store_file.as_ref().map(|(_, start)| start),
        "cached_bytes": explained.cached_bytes,
        "dirty_bytes": explained.dirty_bytes,
        "dirty_runs": runs(&explained.dirty_runs),
        "damaged_runs": runs(&explained.damaged_runs),
        "dirty_since_secs": explained.dirty_since.map(|time| time.secs),
        "page_since_secs": explained.page_since.map(|time| time.secs),
        "sent_bytes": explained.sent_bytes,
        "pages": explained.pages.iter().map(|page| json!({
            "key": page.key,
            "there": page.there,
            "etag": page.etag,
            "since_secs": page.since.map(|time| time.secs),
        })).collect::<Vec<_>>(),
        "log": explained.log,
        "forced": explained.forced,
        "force_failed": explained.force_failed,
        "unforced_operations": explained.unforced_operations,
        "bucket": explained.bucket,
        "object": explained.object.as_ref().map(|object| json!({
            "key": object.key,
            "etag": object.etag,
            "len_bytes": object.len_bytes,
        })),
        "refused": explained.refused,
        "prefix": explained.prefix,
        "not_shown": explained.not_shown.0,
        "keys_not_shown": explained.not_shown.1,
        "missing_object": explained.missing.map(|missing| match missing {
            MissingObject::Removed => "removed",
            MissingObject::Lost => "lost",
        }),
        "open": explained.open,
        "quota": explained.quota.as_ref().map(quota::json),
        "pinned_by": explained.pinned_by.as_ref().map(|path| with_path(path, json!({}))),
        "exposed": explained.exposed,
        "kept": explained.kept.as_ref().map(|(path, keep_secs)| with_path(path, json!({ "secs": keep_secs }))),
        "survives": outcomes.iter().map(|(failure, outcome)| (failure.to_string(), outcome.clone().into())).collect::<serde_json::Map<_, _>>(),
    });
    with_path(&explained.path, fields)
}

fn runs(runs: &[(u64, u64)]) -> Vec<Value> {
    runs.iter()
        .map(|(offset, len_bytes)| json!({ "offset": offset, "len_bytes": len_bytes }))
        .collect()
}

/// The cost of each failure, if it happened right now.
fn outcomes(explained: &Explained) -> [(&'static str, String); 3] {
    let lost = lost_already(explained);
    let beside = |outcome: String| match &lost {
        Some(lost) if outcome == NOTHING => lost.clone(),
        Some(lost) => format!("{lost}; {outcome}"),
        None => outcome,
    };
    [
        ("kill -9", beside(killed(explained))),
        ("power cut", beside(power_cut(explained))),
        ("disk lost", disk_lost(explained)),
    ]
}

const NOTHING: &str = "nothing is lost";

/// Bytes that are lost already, so that no failure can cost them.
fn lost_already(explained: &Explained) -> Option<String> {
    match (explained.missing, &explained.damaged_runs[..]) {
        (Some(MissingObject::Lost), _) if explained.cached_bytes == 0 => {
            Some("nothing more than is lost already: its bytes are nowhere".into())
        }
        (Some(MissingObject::Removed), _) if explained.cached_bytes < explained.size_bytes => {
            Some("what is not cached of it is lost already: others have removed its object".into())
        }
        (_, [(offset, len_bytes), more @ ..]) => {
            let more = if more.is_empty() { "" } else { " and others" };
            Some(format!(
                "bytes {offset} to {}{more} are lost already: they are damaged on the node's disk",
                offset + len_bytes
            ))
        }
        _ => None,
    }
}

fn killed(explained: &Explained) -> String {
    match explained.force_failed {
        // The next process uses the bytes that the system still has.
        Some(_) => {
            "what was written to it since it was last forced may be lost: the disk has not taken it"
                .into()
        }
        None => NOTHING.into(),
    }
}

fn power_cut(explained: &Explained) -> String {
    match (explained.forced, explained.unforced_operations) {
        (true, 0) => NOTHING.into(),
        (true, operations) if !has_bytes(explained) => {
            format!("the last {operations} operations on the volume may be lost")
        }
        (true, operations) => format!(
            "its bytes are safe; the last {operations} operations on the volume may be lost"
        ),
        (false, operations) => {
            format!(
                "bytes written since they were last forced may be lost, and the last {operations} \
                 operations on the volume"
            )
        }
    }
}

fn disk_lost(explained: &Explained) -> String {
    let has_object = explained.object.is_some() && explained.missing.is_none();
    match (explained.dirty_since, explained.page_since) {
        _ if explained.bucket.is_none() => "all is lost: the volume has no bucket".into(),
        _ if explained.missing == Some(MissingObject::Lost) && explained.cached_bytes == 0 => {
            "nothing more than is lost already: its bytes are nowhere".into()
        }
        _ if explained.missing.is_some() => "all of it is lost: its object is gone".into(),
        _ if explained.exposed && has_object => "it goes back to what the object has".into(),
        (Some(_), _) if !has_object => "all of it is lost: the bucket does not have it yet".into(),
        (Some(_), _) => "it goes back to what the object has".into(),
        (None, Some(_)) if has_bytes(explained) => {
            "its bytes are in the bucket; its newest name and attributes may be lost".into()
        }
        // The last page is its own, or that of a directory of it.
        (None, Some(_)) => {
            match (explained.kind, explained.pages.last().is_some_and(|page| page.there)) {
                (_, false) => "all of it is lost: the bucket does not have it yet".into(),
                (FileKind::Directory, true) => "its newest names and attributes may be lost".into(),
                (_, true) => {
                    "its newest name and attributes may be lost, and all of it if it is new".into()
                }
            }
        }
        (None, None) if has_bytes(explained) && !has_object => {
            "all of it is lost: the bucket does not have it".into()
        }
        (None, None) if has_bytes(explained) => "nothing is lost: the bucket has all of it".into(),
        (None, None) => {
            "nothing of its names and attributes is lost: the bucket has all of it".into()
        }
    }
}

fn has_bytes(explained: &Explained) -> bool {
    explained.kind == FileKind::Regular
}

pub(crate) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "FIFO",
        FileKind::Socket => "socket",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::{ExplainedObject, ExplainedPage, Ino};

    /// A file of which the bucket has all.
    fn clean() -> Explained {
        Explained {
            path: "file".into(),
            ino: Ino(7),
            kind: FileKind::Regular,
            size_bytes: 100,
            store_file: None,
            cached_bytes: 0,
            dirty_bytes: 0,
            dirty_runs: Vec::new(),
            damaged_runs: Vec::new(),
            dirty_since: None,
            sent_bytes: None,
            page_since: None,
            pages: Vec::new(),
            log: "log".into(),
            forced: true,
            force_failed: None,
            unforced_operations: 0,
            bucket: Some("bucket".into()),
            object: Some(ExplainedObject {
                key: "file".into(),
                etag: "tag".into(),
                len_bytes: 100,
            }),
            prefix: None,
            not_shown: (0, Vec::new()),
            missing: None,
            open: false,
            quota: None,
            exposed: false,
            kept: None,
            pinned_by: None,
            refused: Vec::new(),
        }
    }

    /// The loss by each of these, in this order: kill -9, power cut, loss of the disk.
    fn lost(change: impl FnOnce(&mut Explained)) -> [String; 3] {
        let mut explained = clean();
        change(&mut explained);
        outcomes(&explained).map(|(_, outcome)| outcome)
    }

    /// Danger: the report says that nothing is lost although something is.
    #[test]
    fn nothing_is_lost_only_where_nothing_is() {
        let [kill, power, disk] = lost(|_| {});
        assert_eq!((&kill[..], &power[..]), (NOTHING, NOTHING));
        assert_eq!(disk, "nothing is lost: the bucket has all of it");

        let [kill, power, disk] = lost(|file| {
            (file.dirty_since, file.cached_bytes, file.damaged_runs) =
                (Some(Time::from_secs(1)), 100, vec![(10, 20), (40, 5)]);
        });
        assert_eq!(
            kill,
            "bytes 10 to 30 and others are lost already: they are damaged on the node's disk"
        );
        assert_eq!((power, &disk[..]), (kill, "it goes back to what the object has"));

        let outcomes = lost(|file| (file.object, file.missing) = (None, Some(MissingObject::Lost)));
        assert!(
            outcomes.iter().all(|outcome| outcome.contains("its bytes are nowhere")),
            "{outcomes:?}"
        );

        let [kill, _, disk] = lost(|file| {
            (file.dirty_since, file.missing) =
                (Some(Time::from_secs(1)), Some(MissingObject::Removed))
        });
        assert!(
            kill.contains("others have removed its object") && disk.contains("all of it is lost"),
            "{kill} {disk}"
        );

        let [kill, power, _] =
            lost(|file| (file.forced, file.force_failed) = (false, Some("it is broken".into())));
        assert!(kill.contains("may be lost") && power.contains("may be lost"), "{kill} {power}");

        let [.., disk] = lost(|dir| {
            (dir.kind, dir.object, dir.page_since) =
                (FileKind::Directory, None, Some(Time::from_secs(1)))
        });
        assert_eq!(disk, "all of it is lost: the bucket does not have it yet");
        let page = ExplainedPage {
            key: ".ebb/d/7".into(),
            there: true,
            etag: None,
            since: Some(Time::from_secs(1)),
        };
        let [.., disk] = lost(|dir| {
            (dir.kind, dir.object, dir.page_since, dir.pages) =
                (FileKind::Directory, None, Some(Time::from_secs(1)), vec![page]);
        });
        assert_eq!(disk, "its newest names and attributes may be lost");
    }
}
