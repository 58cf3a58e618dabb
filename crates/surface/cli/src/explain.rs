//! What `ebb explain` prints.

use crate::quota;
use crate::render::age;
use crate::units::{Bytes, Span};
use ebb_model::{Explained, FileKind, Time};
use serde_json::{Value, json};
use std::fmt::{Result, Write};
use std::time::Duration;

pub(crate) fn write(out: &mut String, explained: &Explained, now: Time) -> Result {
    writeln!(out, "path      /{}", String::from_utf8_lossy(&explained.path))?;
    writeln!(out, "inode     {}, {}, {}", explained.ino, kind(explained.kind), Bytes(explained.size_bytes))?;
    match &explained.store_file {
        Some((file, 0)) => writeln!(out, "cache     {} in {file}", Bytes(explained.cached_bytes))?,
        Some((file, start)) => writeln!(out, "cache     {} in {file}, from byte {start} on", Bytes(explained.cached_bytes))?,
        None => writeln!(out, "cache     nothing")?,
    }
    if let Some(since) = explained.dirty_since {
        writeln!(out, "dirty     {}, for {}", Bytes(explained.dirty_bytes), age(since, now))?;
    }
    for (offset, len_bytes) in &explained.dirty_runs {
        writeln!(out, "          {offset} to {}", offset + len_bytes)?;
    }
    match (&explained.bucket, &explained.object) {
        (Some(bucket), Some(object)) => {
            writeln!(out, "object    {}, {}, ETag {}, in {bucket}", object.key, Bytes(object.len_bytes), object.etag)?;
        }
        (Some(bucket), None) => writeln!(out, "object    none in {bucket}")?,
        (None, _) => writeln!(out, "object    none: the volume has no bucket")?,
    }
    if let Some(since) = explained.page_since {
        writeln!(out, "page      to be written to the bucket, for {}", age(since, now))?;
    }
    if let Some(status) = &explained.quota {
        writeln!(out, "quota     {}", quota::line(status))?;
    }
    if let Some(path) = &explained.pinned_by {
        writeln!(out, "pinned    by /{}", String::from_utf8_lossy(path))?;
    }
    if let Some((path, keep_secs)) = &explained.kept {
        let keep = Span(Duration::from_secs(*keep_secs));
        writeln!(out, "trash     kept for {keep} once it is removed, as /{} has it", String::from_utf8_lossy(path))?;
    }
    if explained.exposed {
        writeln!(out, "exposed   it can be stored into through a mapping: that is found at intervals, and once nobody has it")?;
    }
    for (failure, outcome) in outcomes(explained) {
        writeln!(out, "{failure:<9} {outcome}")?;
    }
    Ok(())
}

pub(crate) fn json(explained: &Explained) -> Value {
    let outcomes = outcomes(explained);
    json!({
        "path": String::from_utf8_lossy(&explained.path),
        "inode": explained.ino.to_string(),
        "kind": kind(explained.kind),
        "size_bytes": explained.size_bytes,
        "store_file": explained.store_file.as_ref().map(|(file, _)| file),
        "store_file_start": explained.store_file.as_ref().map(|(_, start)| start),
        "cached_bytes": explained.cached_bytes,
        "dirty_bytes": explained.dirty_bytes,
        "dirty_runs": explained.dirty_runs.iter().map(|(offset, len)| json!({ "offset": offset, "len_bytes": len })).collect::<Vec<_>>(),
        "dirty_since_secs": explained.dirty_since.map(|time| time.secs),
        "page_since_secs": explained.page_since.map(|time| time.secs),
        "forced": explained.forced,
        "unforced_operations": explained.unforced_operations,
        "bucket": explained.bucket,
        "object": explained.object.as_ref().map(|object| json!({
            "key": object.key,
            "etag": object.etag,
            "len_bytes": object.len_bytes,
        })),
        "quota": explained.quota.as_ref().map(quota::json),
        "pinned_by": explained.pinned_by.as_ref().map(|path| format!("/{}", String::from_utf8_lossy(path))),
        "exposed": explained.exposed,
        "kept": explained.kept.as_ref().map(|(path, keep_secs)| json!({
            "path": format!("/{}", String::from_utf8_lossy(path)),
            "secs": keep_secs,
        })),
        "survives": outcomes.iter().map(|(failure, outcome)| (failure.to_string(), outcome.clone().into())).collect::<serde_json::Map<_, _>>(),
    })
}

/// What each failure would cost right now.
fn outcomes(explained: &Explained) -> [(&'static str, String); 3] {
    [("kill -9", "nothing is lost".into()), ("power cut", power_cut(explained)), ("disk lost", disk_lost(explained))]
}

fn power_cut(explained: &Explained) -> String {
    match (explained.forced, explained.unforced_operations) {
        (true, 0) => "nothing is lost".into(),
        (true, operations) => format!("its bytes are safe; the last {operations} operations on the volume may be lost"),
        (false, operations) => {
            format!("bytes written since they were last forced may be lost, and the last {operations} operations on the volume")
        }
    }
}

fn disk_lost(explained: &Explained) -> String {
    let has_bytes = explained.kind == FileKind::Regular;
    match (explained.dirty_since, explained.page_since) {
        _ if explained.bucket.is_none() => "all is lost: the volume has no bucket".into(),
        _ if explained.exposed && explained.object.is_some() => "it goes back to what the object has".into(),
        (Some(_), _) if explained.object.is_none() => "all of it is lost: the bucket does not have it yet".into(),
        (Some(_), _) => "it goes back to what the object has".into(),
        (None, Some(_)) if has_bytes => "its bytes are in the bucket; its newest name and attributes may be lost".into(),
        (None, Some(_)) => "its newest names and attributes may be lost".into(),
        (None, None) => "nothing is lost: the bucket has all of it".into(),
    }
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
