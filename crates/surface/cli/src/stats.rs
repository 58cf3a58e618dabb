//! Output of `ebb stats`: counters of an interval, as a table or as JSON.

use crate::units::Bytes;
use ebb_model::{Counted, MountStats, NodeStats, ReadStats, Tally};
use serde_json::{Value, json};
use std::fmt::{self, Write};
use std::time::Duration;

/// One table. A mount without an answer of its node, or a node alone, is shown as such.
pub fn text(mount: Option<&MountStats>, node: Option<&NodeStats>) -> String {
    let mut out = String::new();
    let mount = mount
        .map_or(Ok(()), |mount| section(&mut out, "kernel", &mount.operations, mount.uptime_ms));
    let node = node.map_or(Ok(()), |node| write_node(&mut out, node));
    mount.and(node).expect("a String takes whatever is written to it");
    out
}

pub fn json(mount: Option<&MountStats>, node: Option<&NodeStats>) -> Value {
    json!({ "mount": mount.map(mount_json), "node": node.map(node_json) })
}

fn mount_json(mount: &MountStats) -> Value {
    json!({ "seconds": seconds(mount.uptime_ms), "operations": tallies(&mount.operations) })
}

pub(crate) fn node_json(node: &NodeStats) -> Value {
    let ReadStats { from_cache, from_bucket, cache_bytes, bucket_bytes, zero_bytes } = node.reads;
    json!({
        "seconds": seconds(node.uptime_ms),
        "requests": tallies(&node.requests),
        "reads": {
            "from_cache": from_cache,
            "from_bucket": from_bucket,
            "cache_bytes": cache_bytes,
            "bucket_bytes": bucket_bytes,
            "zero_bytes": zero_bytes,
        },
        "bucket": tallies(&node.bucket),
    })
}

fn tallies(all: &[Counted]) -> Value {
    let tally = |Tally { time, errors, bytes }: &Tally| {
        json!({
            "count": time.count(),
            "errors": errors,
            "bytes": bytes,
            "seconds": time.sum().as_secs_f64(),
            "p50_us": micros(time.quantile(0.5)),
            "p99_us": micros(time.quantile(0.99)),
            "most_us": micros(time.most()),
        })
    };
    all.iter()
        .map(|counted| (counted.name.clone(), tally(&counted.tally)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

pub(crate) fn write_node(out: &mut String, node: &NodeStats) -> fmt::Result {
    section(out, "node", &node.requests, node.uptime_ms)?;
    let ReadStats { from_cache, from_bucket, cache_bytes, bucket_bytes, zero_bytes } = node.reads;
    let reads = from_cache + from_bucket;
    if reads > 0 {
        let part = 100.0 * from_cache as f64 / reads as f64;
        writeln!(
            out,
            "reads             {part:.1} % of {reads} from the cache: {}; {} from the bucket, {} \
             of holes",
            Bytes(cache_bytes),
            Bytes(bucket_bytes),
            Bytes(zero_bytes)
        )?;
    }
    section(out, "bucket", &node.bucket, node.uptime_ms)
}

fn section(out: &mut String, title: &str, all: &[Counted], uptime_ms: u64) -> fmt::Result {
    if all.is_empty() {
        return writeln!(out, "{title:<16}  nothing");
    }
    writeln!(
        out,
        "{title:<16} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "count", "per s", "bytes/s", "p50", "p99", "most", "errors"
    )?;
    let seconds = seconds(uptime_ms).max(0.001);
    for Counted { name, tally: Tally { time, errors, bytes } } in all {
        let (count, rate) = (time.count(), time.count() as f64 / seconds);
        let bytes = if *bytes == 0 {
            "-".into()
        } else {
            Bytes((*bytes as f64 / seconds) as u64).to_string()
        };
        let [p50, p99, most] = [time.quantile(0.5), time.quantile(0.99), time.most()].map(span);
        writeln!(
            out,
            "  {name:<14} {count:>10} {rate:>10.1} {bytes:>10} {p50:>10} {p99:>10} {most:>10} \
             {errors:>8}"
        )?;
    }
    Ok(())
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Two digits, since a histogram is no more precise.
fn span(time: Duration) -> String {
    let us = micros(time);
    let (value, unit) = match us {
        ..1e3 => (us, "us"),
        ..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(name: &str, took_ms: &[u64], errors: u64, bytes: u64) -> Counted {
        let mut tally = Tally { errors, bytes, ..Tally::default() };
        took_ms.iter().for_each(|ms| tally.time.record(Duration::from_millis(*ms)));
        Counted { name: name.into(), tally }
    }

    #[test]
    fn a_table_has_rates_and_times() {
        let mount = MountStats {
            uptime_ms: 2000,
            operations: vec![counted("READ", &[1, 1, 1, 40], 1, 8 << 20)],
        };
        let reads = ReadStats {
            from_cache: 3,
            from_bucket: 1,
            cache_bytes: 3 << 20,
            bucket_bytes: 1 << 20,
            zero_bytes: 0,
        };
        let node = NodeStats {
            uptime_ms: 2000,
            requests: Vec::new(),
            reads,
            bucket: vec![counted("get", &[40], 0, 1 << 20)],
        };
        let expected = "\
kernel                count      per s    bytes/s        p50        p99       most   errors
  READ                    4        2.0      4 MiB     1.0 ms      40 ms      40 ms        1
node              nothing
reads             75.0 % of 4 from the cache: 3 MiB; 1 MiB from the bucket, 0 B of holes
bucket                count      per s    bytes/s        p50        p99       most   errors
  get                     1        0.5    512 KiB      40 ms      40 ms      40 ms        0
";
        assert_eq!(text(Some(&mount), Some(&node)), expected);
        let json = json(Some(&mount), Some(&node));
        assert_eq!(
            (
                &json["mount"]["operations"]["READ"]["count"],
                &json["node"]["bucket"]["get"]["bytes"]
            ),
            (&4.into(), &(1 << 20).into())
        );
        assert_eq!(json["mount"]["operations"]["READ"]["most_us"], 40_000.0);
    }

    #[test]
    fn no_time_at_all_is_no_division() {
        let text = text(
            Some(&MountStats { uptime_ms: 0, operations: vec![counted("READ", &[0], 0, 1)] }),
            None,
        );
        assert!(text.contains("1000.0"), "{text}");
    }
}
