//! Limits and usage of a quota, in one line or as JSON.

use crate::render::with_path;
use crate::units::Bytes;
use ebb_model::{QuotaStatus, shown_path};
use serde_json::{Value, json};

pub(crate) fn line(status: &QuotaStatus) -> String {
    let QuotaStatus { path, limits, used, counted, .. } = status;
    let of = |limit: Option<String>| limit.map_or(String::new(), |limit| format!(" of {limit}"));
    let bytes = of(limits.bytes.map(|limit| Bytes(limit).to_string()));
    let inodes = of(limits.inodes.map(|limit| limit.to_string()));
    let rest =
        if *counted { "" } else { " (so far: what is in the bucket is still being counted)" };
    format!(
        "/{}  {}{bytes}, {}{inodes} inodes{rest}",
        shown_path(path),
        Bytes(used.bytes),
        used.inodes
    )
}

pub(crate) fn json(status: &QuotaStatus) -> Value {
    let fields = json!({
        "inode": status.ino.to_string(),
        "limit_bytes": status.limits.bytes,
        "limit_inodes": status.limits.inodes,
        "used_bytes": status.used.bytes,
        "used_inodes": status.used.inodes,
        "counted": status.counted,
    });
    with_path(&status.path, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::{Ino, QuotaLimits, Usage};

    #[test]
    fn quota_line_shows_usage_and_limits() {
        let limits = QuotaLimits { bytes: Some(10 << 30), inodes: None };
        let used = Usage { bytes: 3 << 29, inodes: 12 };
        let status =
            QuotaStatus { path: "home/a".into(), ino: Ino(5), limits, used, counted: true };
        assert_eq!(line(&status), "/home/a  1.5 GiB of 10 GiB, 12 inodes");
        let limits = QuotaLimits { bytes: None, inodes: Some(100) };
        let status = QuotaStatus { limits, counted: false, ..status };
        assert_eq!(
            line(&status),
            "/home/a  1.5 GiB, 12 of 100 inodes (so far: what is in the bucket is still being \
             counted)"
        );
        assert_eq!(json(&status)["limit_inodes"], 100);
        assert_eq!(json(&status)["limit_bytes"], Value::Null);
    }
}
