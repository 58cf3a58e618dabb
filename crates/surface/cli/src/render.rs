//! Output of commands: text for people, JSON for programs. The JSON is the model's own data, so
//! that every figure of the text is in it.

use crate::places::MountRecord;
use crate::units::{Bytes, Span};
use crate::{explain, fsck, nodes, quota, stats, trash};
use ebb_model::{
    AdminReply, DirtyItem, Incarnation, PackStatus, ScrubStatus, Status, Time, shown_path,
    shown_text,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// As [`text`], with a line about the mount through which the node was asked.
pub fn text_on(mount: Option<&MountRecord>, reply: &AdminReply, now: Time) -> String {
    let shown = mount.map(|mount| {
        format!(
            "mount     {}, consistency {}\n",
            shown_path(mount.mountpoint.as_os_str().as_bytes()),
            mount.consistency.name()
        )
    });
    text(reply, now) + &shown.unwrap_or_default()
}

pub fn text(reply: &AdminReply, now: Time) -> String {
    let mut out = String::new();
    let written = match reply {
        AdminReply::Status(status) => write_status(&mut out, status, now),
        AdminReply::Dirty { items, left_out, .. } => write_dirty(&mut out, items, *left_out, now),
        AdminReply::Flushed { files, bytes, renamed, .. } => {
            write_flushed(&mut out, *files, *bytes, *renamed)
        }
        AdminReply::Refreshed { changed } => writeln!(out, "{changed} names have changed"),
        AdminReply::Evicted { bytes, .. } => {
            writeln!(out, "{} dropped from the cache", Bytes(*bytes))
        }
        AdminReply::Fsck(report) => fsck::write(&mut out, report),
        AdminReply::FsckBatch(part) => fsck::write(&mut out, &part.report),
        AdminReply::Repaired => writeln!(out, "repaired"),
        AdminReply::Snapshot { index, .. } => writeln!(out, "a snapshot of command {}", index.0),
        AdminReply::RolledBack { before_bytes, lost_bytes, bytes } => {
            let (before, lost, now) = (Bytes(*before_bytes), Bytes(*lost_bytes), Bytes(*bytes));
            writeln!(
                out,
                "{now} as they were last sent; {lost} of {before} that were written since are lost"
            )
        }
        AdminReply::Explained(explained) => explain::write(&mut out, explained, now),
        AdminReply::Stats(node) => stats::write_node(&mut out, node),
        AdminReply::Paths(paths) => {
            paths.iter().flatten().try_for_each(|path| writeln!(out, "/{}", shown_path(path)))
        }
        AdminReply::Warmed { bytes } => writeln!(out, "{} came from the bucket", Bytes(*bytes)),
        AdminReply::Trash { entries, .. } if entries.is_empty() => {
            writeln!(out, "nothing is in the trash")
        }
        AdminReply::Trash { entries, .. } => {
            entries.iter().try_for_each(|entry| writeln!(out, "{}", trash::line(entry, now)))
        }
        AdminReply::Restored => writeln!(out, "restored"),
        AdminReply::Emptied { entries, bytes, .. } => {
            writeln!(out, "{entries} entries, {} removed for good", Bytes(*bytes))
        }
        AdminReply::Nodes(all) => nodes::write(&mut out, all),
        AdminReply::Quotas(quotas) if quotas.is_empty() => writeln!(out, "no quota"),
        AdminReply::Quotas(quotas) => {
            quotas.iter().try_for_each(|status| writeln!(out, "{}", quota::line(status)))
        }
    };
    written.expect("a String takes whatever is written to it");
    out
}

pub fn json_on(mount: Option<&MountRecord>, reply: &AdminReply) -> Value {
    let mut value = json(reply);
    if let (Some(mount), Some(fields)) = (mount, value.as_object_mut()) {
        let shown = json!({ "mountpoint": mount.mountpoint.to_string_lossy(), "consistency": mount.consistency });
        fields.insert("mount".into(), shown);
    }
    value
}

pub fn json(reply: &AdminReply) -> Value {
    match reply {
        AdminReply::Status(status) => json!({
            "volume": status.volume,
            "backing": status.backing,
            "version": status.version,
            "incarnation": (status.incarnation != Incarnation::NONE).then_some(status.incarnation.0),
            "read_only": status.read_only,
            "sessions": status.sessions.iter().map(|session| json!({
                "session": format!("{:016x}", session.session.0),
                "client": session.client,
                "open_files": session.open_files,
                "leases": session.leases,
                "recalls": session.recalls,
            })).collect::<Vec<_>>(),
            "inodes": status.inodes,
            "log_index": status.log_index.0,
            "durable_index": status.durable_index.0,
            "metadata_bytes": status.metadata_bytes,
            "metadata_limit_bytes": status.metadata_limit_bytes,
            "cached_bytes": status.cached_bytes,
            "cache_limit_bytes": status.cache_limit_bytes,
            "dirty_bytes": status.dirty_bytes,
            "dirty_files": status.dirty_files,
            "dirty_since_secs": status.dirty_since.map(|time| time.secs),
            "sent_bytes": status.sent_bytes,
            "pending_deletes": status.pending_deletes,
            "renamed_dirs": status.renamed_dirs,
            "download_bytes_per_sec": status.download_bytes_per_sec,
            "upload_bytes_per_sec": status.upload_bytes_per_sec,
            "packs": {
                "packs": status.packs.packs,
                "files": status.packs.files,
                "used_bytes": status.packs.used_bytes,
            },
            "scrub": {
                "blocks": status.scrub.blocks,
                "dropped": status.scrub.dropped,
                "damaged": status.scrub.damaged,
                "round_ended_secs": status.scrub.round_ended.map(|time| time.secs),
            },
            "encrypted": status.encrypted,
            "troubles": status.troubles.iter().map(|trouble| json!({
                "since_secs": trouble.since.secs,
                "what": trouble.what,
            })).collect::<Vec<_>>(),
        }),
        AdminReply::Dirty { items, left_out, .. } => json!({
            "dirty": items.iter().map(|item| with_path(&item.path, json!({
                "inode": item.ino.to_string(),
                "since_secs": item.since.secs,
                "dirty_bytes": item.dirty_bytes,
            }))).collect::<Vec<_>>(),
            "left_out": left_out,
        }),
        AdminReply::Flushed { files, bytes, renamed, refused } => json!({
            "files": files,
            "bytes": bytes,
            "renamed_dirs": renamed,
            "refused": {
                "writes": refused.writes,
                "deletes": refused.deletes,
                "reasons": refused.reasons,
            },
        }),
        AdminReply::Refreshed { changed } => json!({ "changed": changed }),
        AdminReply::Evicted { bytes, .. } => json!({ "bytes": bytes }),
        AdminReply::Fsck(report) => fsck::json(report),
        AdminReply::FsckBatch(part) => fsck::json(&part.report),
        AdminReply::Repaired => json!({}),
        AdminReply::Snapshot { index, .. } => json!({ "index": index.0 }),
        AdminReply::RolledBack { before_bytes, lost_bytes, bytes } => {
            json!({ "before_bytes": before_bytes, "lost_bytes": lost_bytes, "bytes": bytes })
        }
        AdminReply::Explained(explained) => explain::json(explained),
        AdminReply::Warmed { bytes } => json!({ "bytes": bytes }),
        AdminReply::Nodes(all) => all.iter().map(nodes::json).collect(),
        AdminReply::Quotas(quotas) => quotas.iter().map(quota::json).collect(),
        AdminReply::Trash { entries, .. } => entries.iter().map(trash::json).collect(),
        AdminReply::Restored => json!({}),
        AdminReply::Emptied { entries, bytes, .. } => json!({ "entries": entries, "bytes": bytes }),
        AdminReply::Stats(node) => stats::node_json(node),
        AdminReply::Paths(paths) => paths
            .iter()
            .map(|path| path.as_ref().map(|path| String::from_utf8_lossy(path)))
            .collect(),
    }
}

/// Adds a path. If it is no text, its bytes follow in hexadecimal, since JSON holds only text.
pub fn with_path(path: &[u8], mut fields: Value) -> Value {
    fields["path"] = String::from_utf8_lossy(path).into();
    if std::str::from_utf8(path).is_err() {
        fields["path_bytes"] =
            path.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
    fields
}

fn write_dirty(
    out: &mut String,
    items: &[DirtyItem],
    left_out: u64,
    now: Time,
) -> std::fmt::Result {
    for item in items {
        let path = shown_path(&item.path);
        writeln!(
            out,
            "{:>10}  {:>12}  /{path}",
            age(item.since, now),
            Bytes(item.dirty_bytes).to_string()
        )?;
    }
    match (items, left_out) {
        ([], 0) => writeln!(out, "everything has reached the bucket"),
        (_, 0) => Ok(()),
        (_, more) => writeln!(out, "… and {more} more"),
    }
}

fn write_flushed(out: &mut String, files: u64, bytes: u64, renamed: u64) -> std::fmt::Result {
    writeln!(out, "{files} files, {} written to the bucket", Bytes(bytes))?;
    if renamed > 0 {
        writeln!(
            out,
            "{renamed} renamed directories keep their objects at the keys of before: they have \
             more than 10,000 entries each, keys that are not shown, or another directory's \
             objects at their path; `ebb explain DIR` says where the objects are"
        )?;
    }
    Ok(())
}

fn write_status(out: &mut String, status: &Status, now: Time) -> std::fmt::Result {
    let incarnation = (status.incarnation != Incarnation::NONE)
        .then(|| format!("incarnation {}", status.incarnation.0));
    let mode: Vec<String> =
        incarnation.into_iter().chain(status.read_only.then(|| "read-only".into())).collect();
    let (volume, backing) = (shown_text(&status.volume), shown_text(&status.backing));
    writeln!(out, "volume    {volume} over {backing} ({})", mode.join(", "))?;
    writeln!(
        out,
        "metadata  {} inodes in {} of {}",
        status.inodes,
        Bytes(status.metadata_bytes),
        Bytes(status.metadata_limit_bytes)
    )?;
    writeln!(
        out,
        "cache     {} of {}",
        Bytes(status.cached_bytes),
        Bytes(status.cache_limit_bytes)
    )?;
    match status.dirty_since {
        Some(since) => {
            let age = age(since, now);
            let sent = match status.sent_bytes {
                0 => String::new(),
                bytes => format!(" ({} of them sent)", Bytes(bytes)),
            };
            writeln!(
                out,
                "dirty     {} files, {}{sent}, the oldest for {age}",
                status.dirty_files,
                Bytes(status.dirty_bytes)
            )?;
        }
        None if status.dirty_files > 0 => {
            writeln!(out, "dirty     {} renamed directories", status.dirty_files)?
        }
        None => writeln!(out, "dirty     nothing")?,
    }
    if status.pending_deletes > 0 {
        writeln!(out, "deletes   {} objects are still to be deleted", status.pending_deletes)?;
    }
    if status.renamed_dirs > 0 {
        writeln!(
            out,
            "renamed   {} directories have their objects at the keys of before; `ebb explain DIR` \
             says where",
            status.renamed_dirs
        )?;
    }
    for (way, rate) in
        [("from", status.download_bytes_per_sec), ("to", status.upload_bytes_per_sec)]
    {
        if let Some(rate) = rate {
            writeln!(out, "rate      at most {}/s {way} the bucket", Bytes(rate))?;
        }
    }
    let behind = status.log_index.0.saturating_sub(status.durable_index.0);
    writeln!(
        out,
        "log       {} operations, {behind} of them not yet safe from a power cut",
        status.log_index.0
    )?;
    let PackStatus { packs, files, used_bytes } = &status.packs;
    if *packs > 0 {
        writeln!(
            out,
            "packs     {files} small files, {} in {packs} pack files",
            Bytes(*used_bytes)
        )?;
    }
    let ScrubStatus { blocks, dropped, damaged, round_ended } = &status.scrub;
    let round = round_ended.map_or_else(
        || "not yet everything".into(),
        |ended| format!("everything {} ago", age(ended, now)),
    );
    writeln!(
        out,
        "scrub     {blocks} blocks, {round}; {dropped} were damaged and are fetched again, \
         {damaged} are lost"
    )?;
    writeln!(
        out,
        "disk      encryption at rest is {}",
        if status.encrypted { "on" } else { "off" }
    )?;
    for session in &status.sessions {
        writeln!(
            out,
            "client    {} ({} open files, {} leases, {} being recalled)",
            shown_text(&session.client),
            session.open_files,
            session.leases,
            session.recalls
        )?;
    }
    for trouble in &status.troubles {
        writeln!(out, "TROUBLE   for {}: {}", age(trouble.since, now), shown_text(&trouble.what))?;
    }
    Ok(())
}

pub(crate) fn age(since: Time, now: Time) -> String {
    Span(Duration::from_secs(u64::try_from(now.secs - since.secs).unwrap_or(0))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::Ino;

    /// Danger: a name forges a line, or two names are one to a program.
    #[test]
    fn names_are_shown_in_one_line_and_told_apart() {
        let item = |path: &'static [u8]| DirtyItem {
            path: path.into(),
            ino: Ino(1),
            since: Time::from_secs(0),
            dirty_bytes: 0,
        };
        let items = vec![item(b"evil\n/forged"), item(b"w/\xff"), item(b"w/\xfe")];
        let reply = AdminReply::Dirty { items, left_out: 2, next: None };
        let text = text(&reply, Time::from_secs(0));
        let names: Vec<&str> =
            text.lines().map(|line| line.rsplit("  ").next().unwrap_or_default()).collect();
        assert_eq!(names, ["/evil\\n/forged", "/w/\\xff", "/w/\\xfe", "… and 2 more"]);
        let json = json(&reply);
        assert_eq!(
            (&json["dirty"][0]["path"], &json["dirty"][0]["path_bytes"]),
            (&"evil\n/forged".into(), &Value::Null)
        );
        assert_eq!(
            (&json["dirty"][1]["path_bytes"], &json["dirty"][2]["path_bytes"]),
            (&"772fff".into(), &"772ffe".into())
        );
    }
}
