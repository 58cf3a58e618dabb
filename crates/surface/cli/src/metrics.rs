//! Counters in the text format of Prometheus, version 0.0.4.
//!
//! Names and labels are stable: an existing one keeps its meaning.

use ebb_model::{Counted, MountStats, NodeStats, ReadStats, ReplicaStats, Status};
use std::fmt::Write;

/// The content type of the answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of histograms are powers of four: 1.024 µs to 68.7 s, as powers of two of a nanosecond.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

/// The metrics of a process: of its mount, its node, and its replica of the volume. A replica that
/// follows has no node.
pub fn text(
    mount: Option<&MountStats>,
    node: Option<(&NodeStats, &Status)>,
    replica: Option<&ReplicaStats>,
) -> String {
    let mut page = Page::default();
    if let Some(mount) = mount {
        page.requests("ebb_kernel", "operation", "requests of the kernel", &mount.operations);
    }
    if let Some((stats, status)) = node {
        page.requests("ebb_node", "request", "requests of clients to the node", &stats.requests);
        page.reads(&stats.reads);
        page.requests("ebb_bucket", "request", "requests to the bucket", &stats.bucket);
        page.status(status);
    }
    if let Some(replica) = replica {
        page.replica(replica);
    }
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes whatever is written to it");
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn requests(&mut self, prefix: &str, label: &str, what: &str, all: &[Counted]) {
        let name = format!("{prefix}_request_duration_seconds");
        self.head(&name, "histogram", &format!("How long {what} took until they were answered."));
        for Counted { name: kind, tally } in all {
            let labels = format!("{label}=\"{}\"", escaped(kind));
            for power in BOUNDS.step_by(2) {
                let bound = (1u64 << power) as f64 / 1e9;
                self.line(format_args!(
                    "{name}_bucket{{{labels},le=\"{bound}\"}} {}",
                    tally.time.within(power)
                ));
            }
            self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {}", tally.time.count()));
            self.line(format_args!("{name}_sum{{{labels}}} {}", tally.time.sum().as_secs_f64()));
            self.line(format_args!("{name}_count{{{labels}}} {}", tally.time.count()));
        }
        let name = format!("{prefix}_request_errors_total");
        self.head(&name, "counter", &format!("Those {what} that were answered with an error."));
        for Counted { name: kind, tally } in all {
            self.line(format_args!("{name}{{{label}=\"{}\"}} {}", escaped(kind), tally.errors));
        }
        let name = format!("{prefix}_request_bytes_total");
        self.head(&name, "counter", &format!("Content that {what} carried."));
        for Counted { name: kind, tally } in all {
            self.line(format_args!("{name}{{{label}=\"{}\"}} {}", escaped(kind), tally.bytes));
        }
    }

    fn reads(&mut self, reads: &ReadStats) {
        let ReadStats { from_cache, from_bucket, cache_bytes, bucket_bytes, zero_bytes } = reads;
        self.head(
            "ebb_reads_total",
            "counter",
            "Reads of clients by the slowest place that they waited for.",
        );
        self.line(format_args!(
            "ebb_reads_total{{tier=\"cache\"}} \
            {from_cache}\nebb_reads_total{{tier=\"bucket\"}} {from_bucket}"
        ));
        self.head(
            "ebb_read_bytes_total",
            "counter",
            "Bytes that clients read, by where they were.",
        );
        for (tier, bytes) in
            [("cache", cache_bytes), ("bucket", bucket_bytes), ("hole", zero_bytes)]
        {
            self.line(format_args!("ebb_read_bytes_total{{tier=\"{tier}\"}} {bytes}"));
        }
    }

    fn gauges(&mut self, gauges: &[(&str, &str, u64)]) {
        for (name, help, value) in gauges {
            self.head(name, "gauge", help);
            self.line(format_args!("{name} {value}"));
        }
    }

    fn replica(&mut self, replica: &ReplicaStats) {
        let ReplicaStats { leads, term, committed, applied, .. } = *replica;
        self.gauges(&[
            ("ebb_leader", "1 on the node that leads the volume, 0 on the others.", leads.into()),
            ("ebb_term", "Term of the replicated log.", term),
            ("ebb_committed_index", "Last log entry that a majority of the voters has.", committed),
            ("ebb_applied_index", "Last log entry that this node has applied.", applied),
        ]);
    }

    fn status(&mut self, status: &Status) {
        self.head("ebb_info", "gauge", "Which volume and which program.");
        let (volume, version) = (escaped(&status.volume), escaped(&status.version));
        self.line(format_args!("ebb_info{{volume=\"{volume}\",version=\"{version}\"}} 1"));
        let gauges = [
            ("ebb_inodes", "Inodes in memory.", status.inodes),
            ("ebb_sessions", "Clients.", status.sessions.len() as u64),
            ("ebb_metadata_bytes", "Memory that names and attributes take.", status.metadata_bytes),
            ("ebb_metadata_limit_bytes", "Most of it.", status.metadata_limit_bytes),
            ("ebb_cached_bytes", "Bytes of files on the node's disk.", status.cached_bytes),
            ("ebb_cache_limit_bytes", "Most of them.", status.cache_limit_bytes),
            ("ebb_dirty_bytes", "Bytes that have not reached the bucket.", status.dirty_bytes),
            ("ebb_dirty_files", "Files that have not reached the bucket.", status.dirty_files),
            (
                "ebb_sent_bytes",
                "Bytes among them that it has in parts of files that are being sent.",
                status.sent_bytes,
            ),
            (
                "ebb_pending_deletes",
                "Objects that are still to be deleted.",
                status.pending_deletes,
            ),
            (
                "ebb_unforced_operations",
                "Operations that a power cut could take.",
                status.log_index.0.saturating_sub(status.durable_index.0),
            ),
            (
                "ebb_damaged_blocks",
                "Blocks that the scrub found lost since the start.",
                status.scrub.damaged,
            ),
            ("ebb_packed_files", "Small files in pack files.", status.packs.files),
            ("ebb_packed_bytes", "Bytes that these take.", status.packs.used_bytes),
            (
                "ebb_troubles",
                "What is wrong now, as `ebb status` tells.",
                status.troubles.len() as u64,
            ),
        ];
        self.gauges(&gauges);
        if let Some(since) = status.dirty_since {
            self.head(
                "ebb_dirty_since_seconds",
                "gauge",
                "When the oldest of what has not reached the bucket was changed, since 1970.",
            );
            self.line(format_args!("ebb_dirty_since_seconds {}", since.secs));
        }
    }
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::Tally;
    use std::time::Duration;

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_all() {
        let mut tally = Tally::default();
        for ns in [1024, 1025, 5000, 1 << 50] {
            tally.record(Duration::from_nanos(ns), ns == 5000, 10);
        }
        let mount =
            MountStats { uptime_ms: 1, operations: vec![Counted { name: "READ".into(), tally }] };
        let text = text(Some(&mount), None, None);
        let value = |series: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse::<f64>().ok())
        };
        let bucket = |bound: &str| {
            value(&format!(
                "ebb_kernel_request_duration_seconds_bucket{{operation=\"READ\",le=\"{bound}\"}}"
            ))
        };
        assert_eq!(
            [bucket("0.000001024"), bucket("0.000004096"), bucket("0.000016384")],
            [Some(1.0), Some(2.0), Some(3.0)],
            "{text}"
        );
        assert_eq!([bucket("68.719476736"), bucket("+Inf")], [Some(3.0), Some(4.0)], "{text}");
        assert_eq!(
            value("ebb_kernel_request_duration_seconds_count{operation=\"READ\"}"),
            Some(4.0)
        );
        assert_eq!(value("ebb_kernel_request_errors_total{operation=\"READ\"}"), Some(1.0));
        assert_eq!(value("ebb_kernel_request_bytes_total{operation=\"READ\"}"), Some(40.0));
    }

    /// Every line is a comment or a name, perhaps labels, and a number; every family has its type
    /// before its first value.
    #[test]
    fn the_page_is_well_formed() {
        let mut tally = Tally::default();
        tally.record(Duration::from_micros(3), false, 0);
        let all = vec![Counted { name: "a\"b\\c\n".into(), tally }];
        let mount = MountStats { uptime_ms: 1, operations: all.clone() };
        let node = NodeStats {
            uptime_ms: 1,
            requests: all.clone(),
            reads: ReadStats::default(),
            bucket: all,
        };
        let status = status();
        let replica = ReplicaStats { leads: true, term: 7, ..ReplicaStats::default() };
        let page = text(Some(&mount), Some((&node, &status)), Some(&replica));
        assert!(page.contains("ebb_leader 1\n") && page.contains("ebb_term 7\n"), "{page}");
        let mut known: Vec<&str> = Vec::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                known.push(rest.split(' ').next().unwrap());
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end).filter(|name| known.contains(name)));
                assert!(known.contains(&family.unwrap_or(name)), "{line}");
                assert!(
                    value.parse::<f64>().is_ok()
                        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                    "{line}"
                );
            }
        }
        assert!(page.contains(r#"request="a\"b\\c\n""#), "{page}");
        assert!(
            page.ends_with('\n') && page.contains("ebb_info{volume=\"v\",version=\"0\"} 1\n"),
            "{page}"
        );
    }

    fn status() -> Status {
        use ebb_model::{Incarnation, LogIndex, PackStatus, ScrubStatus, Time};
        Status {
            volume: "v".into(),
            backing: "b".into(),
            version: "0".into(),
            incarnation: Incarnation(1),
            read_only: false,
            sessions: Vec::new(),
            inodes: 1,
            log_index: LogIndex(3),
            durable_index: LogIndex(2),
            metadata_bytes: 0,
            metadata_limit_bytes: 1,
            cached_bytes: 0,
            cache_limit_bytes: 1,
            dirty_bytes: 0,
            dirty_files: 0,
            dirty_since: Some(Time::from_secs(5)),
            sent_bytes: 0,
            pending_deletes: 0,
            renamed_dirs: 0,
            download_bytes_per_sec: None,
            upload_bytes_per_sec: None,
            packs: PackStatus::default(),
            scrub: ScrubStatus::default(),
            encrypted: false,
            troubles: Vec::new(),
        }
    }
}
