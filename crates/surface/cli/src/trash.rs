//! Entries of the trash, one per line or as JSON.

use crate::explain::kind;
use crate::render::{age, with_path};
use crate::units::Bytes;
use ebb_model::{FileKind, Time, TrashEntry, shown_path};
use serde_json::{Value, json};

pub(crate) fn line(entry: &TrashEntry, now: Time) -> String {
    let TrashEntry { ino, trashed, .. } = entry;
    let what = if entry.kind == FileKind::Regular {
        Bytes(entry.size_bytes).to_string()
    } else {
        kind(entry.kind).to_owned()
    };
    let left = age(now, Time::from_secs(trashed.until_secs));
    let path = shown_path(&trashed.path);
    format!(
        "{:>14} ago  {left:>14} left  uid {:<6} {what:>12}  {ino}  /{path}",
        age(trashed.at, now),
        trashed.uid
    )
}

pub(crate) fn json(entry: &TrashEntry) -> Value {
    let TrashEntry { ino, trashed, .. } = entry;
    let fields = json!({
        "inode": ino.to_string(),
        "kind": kind(entry.kind),
        "size_bytes": entry.size_bytes,
        "removed_secs": trashed.at.secs,
        "until_secs": trashed.until_secs,
        "uid": trashed.uid,
    });
    with_path(&trashed.path, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::{Ino, Trashed};

    #[test]
    fn trash_entry_shows_path_and_remaining_time() {
        let trashed = Trashed {
            path: "home/a".into(),
            at: Time::from_secs(1000),
            until_secs: 1000 + 7200,
            uid: 7,
        };
        let entry =
            TrashEntry { ino: Ino(5), kind: FileKind::Regular, size_bytes: 3 << 10, trashed };
        let said = line(&entry, Time::from_secs(1030));
        assert_eq!(
            said,
            "          30 s ago      1 h 59 min left  uid 7             3 KiB  0.0.5  /home/a"
        );
        let dir = TrashEntry { kind: FileKind::Directory, ..entry };
        assert!(
            line(&dir, Time::from_secs(9000)).contains("0 ms left  uid 7         directory"),
            "{}",
            line(&dir, Time::from_secs(9000))
        );
        assert_eq!(
            (&json(&dir)["kind"], &json(&dir)["until_secs"]),
            (&"directory".into(), &8200.into())
        );
    }
}
