//! Output of `ebb profile`: the operations of a workload on each file.

use crate::render::with_path;
use crate::units::Bytes;
use ebb_model::{Ino, Profile, Profiled, shown_path};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Paths of inodes; a removed inode has none.
pub type Paths = BTreeMap<Ino, Vec<u8>>;

/// The lines that took longest, `top` of them.
pub fn text(profile: &Profile, paths: &Paths, top: usize) -> String {
    let mut out = String::new();
    write(&mut out, profile, paths, top).expect("a String takes whatever is written to it");
    out
}

fn write(out: &mut String, profile: &Profile, paths: &Paths, top: usize) -> fmt::Result {
    let lines = by_time(profile);
    let count = |lines: &[&Profiled]| lines.iter().map(|line| line.count).sum::<u64>();
    writeln!(
        out,
        "{} requests in {:.1} s",
        count(&lines) + profile.left_out,
        profile.took_ms as f64 / 1e3
    )?;
    if !lines.is_empty() {
        writeln!(
            out,
            "{:>10} {:>8} {:>10} {:>10} {:>10} {:>7}  operation, file",
            "ms in all", "count", "bytes", "ms each", "most ms", "errors"
        )?;
    }
    for line in lines.iter().take(top) {
        let Profiled { ino, operation, count, errors, bytes, sum_us, most_us } = line;
        let (sum, most) = (*sum_us as f64 / 1e3, *most_us as f64 / 1e3);
        let each = sum / (*count).max(1) as f64;
        let bytes = if *bytes == 0 { "-".into() } else { Bytes(*bytes).to_string() };
        writeln!(
            out,
            "{sum:>10.2} {count:>8} {bytes:>10} {each:>10.3} {most:>10.2} {errors:>7}  {operation} \
             {}",
            name(*ino, paths)
        )?;
    }
    if let Some(rest) = lines.get(top..).filter(|rest| !rest.is_empty()) {
        writeln!(
            out,
            "{:>10.2} {:>8} in {} lines more",
            rest.iter().map(|line| line.sum_us).sum::<u64>() as f64 / 1e3,
            count(rest),
            rest.len()
        )?;
    }
    if profile.left_out > 0 {
        writeln!(out, "{:>10} {:>8} on more files than are told apart", "", profile.left_out)?;
    }
    Ok(())
}

pub fn json(profile: &Profile, paths: &Paths) -> Value {
    let lines = by_time(profile).into_iter().map(|line| {
        let fields = json!({
            "path": null,
            "inode": line.ino.to_string(),
            "operation": line.operation,
            "count": line.count,
            "errors": line.errors,
            "bytes": line.bytes,
            "total_us": line.sum_us,
            "most_us": line.most_us,
        });
        match paths.get(&line.ino) {
            Some(path) => with_path(path, fields),
            None => fields,
        }
    });
    json!({ "seconds": profile.took_ms as f64 / 1e3, "left_out": profile.left_out, "lines": lines.collect::<Vec<_>>() })
}

fn by_time(profile: &Profile) -> Vec<&Profiled> {
    let mut lines: Vec<&Profiled> = profile.lines.iter().collect();
    lines.sort_by_key(|line| (std::cmp::Reverse(line.sum_us), line.ino));
    lines
}

fn name(ino: Ino, paths: &Paths) -> String {
    match paths.get(&ino) {
        Some(path) => format!("/{}", shown_path(path)),
        None => format!("inode {ino}, which has no name any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_sorts_by_time_and_sums_up_the_rest() {
        let line = |ino, operation: &str, count, sum_us| Profiled {
            ino: Ino(ino),
            operation: operation.into(),
            count,
            errors: 0,
            bytes: if operation == "READ" { 8192 } else { 0 },
            sum_us,
            most_us: sum_us / count,
        };
        let lines =
            vec![line(1, "LOOKUP", 3, 300), line(2, "READ", 2, 5000), line(3, "GETATTR", 1, 20)];
        let profile = Profile { took_ms: 1500, lines, left_out: 4 };
        let paths = Paths::from([(Ino(1), Vec::new()), (Ino(2), "d/file".into())]);
        let expected = "\
10 requests in 1.5 s
 ms in all    count      bytes    ms each    most ms  errors  operation, file
      5.00        2      8 KiB      2.500       2.50       0  READ /d/file
      0.32        4 in 2 lines more
                  4 on more files than are told apart
";
        assert_eq!(text(&profile, &paths, 1), expected);
        let json = json(&profile, &paths);
        assert_eq!(
            (&json["lines"][1]["path"], &json["lines"][2]["path"]),
            (&"".into(), &Value::Null)
        );
    }

    #[test]
    fn nothing_is_told_as_such() {
        assert_eq!(
            text(&Profile { took_ms: 0, lines: vec![], left_out: 0 }, &Paths::new(), 5),
            "0 requests in 0.0 s\n"
        );
    }
}
