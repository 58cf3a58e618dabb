//! pjdfstest on real mounts, beside the file system of this machine's disk in the same run.

use crate::rig::{Rig, Shape};
use crate::{Outcome, tool};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const VERSION: &str = "0.2.2";

/// What the suite is to find; of users it takes two that every Debian has.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
stat_st_birthtime = {}
[settings]
naptime = 0.05
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

pub fn run(shapes: &[Shape], least: usize, release: bool) -> Outcome<()> {
    let suite = tool::install("pjdfstest", VERSION)?;
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    let place = tool::target().join("conformance");
    fs::create_dir_all(&place)?;
    let config = place.join("pjdfstest.toml");
    fs::write(&config, CONFIG.replace("REMOUNT", "false"))?;

    let native = place.join("native");
    fs::create_dir_all(&native)?;
    let mut results = vec![("disk".to_owned(), run_at(&mut Command::new(&suite), &config, &native)?)];
    fs::remove_dir_all(&native)?;
    let remounting = place.join("pjdfstest-remount.toml");
    fs::write(&remounting, CONFIG.replace("REMOUNT", "true"))?;
    let helpers = helpers(&place, &binaries)?;
    for shape in shapes {
        let mut rig = Rig::new(*shape, &binaries)?;
        rig.mount("allow_other,default_permissions,dev,suid")?;
        let dir = rig.mountpoint().join("t");
        fs::create_dir(&dir)?;
        let mut result = run_at(&mut Command::new(&suite), &config, &dir)?;
        // By themselves: tests before them leave files open for writing, which no file system
        // lets become read-only.
        let remounted = run_at(with_helpers(&suite, &helpers).arg("erofs"), &remounting, &dir)?;
        result.seconds += remounted.seconds;
        result.cases.extend(remounted.cases);
        results.push((shape.name(), result));
        rig.umount()?;
    }

    println!("{:<14} {:>7} {:>7} {:>8} {:>8}", "mount", "passed", "failed", "skipped", "seconds");
    for (name, result) in &results {
        println!(
            "{name:<14} {:>7} {:>7} {:>8} {:>8.1}",
            result.count("ok"),
            result.count("failed"),
            result.count("skipped"),
            result.seconds
        );
    }
    let mut short = Vec::new();
    for (name, result) in &results {
        for case in result.cases.iter().filter(|(_, verdict)| **verdict == "failed").map(|(case, _)| case) {
            println!("FAILED on {name}: {case}");
        }
        if result.count("ok") < least {
            short.push(name.as_str());
        }
    }
    let report: Value =
        results.iter().map(|(name, result)| (name.clone(), json!({ "seconds": result.seconds, "cases": result.cases }))).collect();
    let file = place.join("pjdfstest.json");
    fs::write(&file, format!("{report:#}\n"))?;
    println!("every case: {}", file.display());
    if short.is_empty() { Ok(()) } else { Err(format!("fewer than {least} pass on {}", short.join(", ")).into()) }
}

struct Results {
    /// `ok`, `failed` or `skipped` by name of the case.
    cases: BTreeMap<String, &'static str>,
    seconds: f64,
}

impl Results {
    fn count(&self, verdict: &str) -> usize {
        self.cases.values().filter(|there| **there == verdict).count()
    }
}

/// A directory with what mount(8) calls to remount.
fn helpers(place: &Path, binaries: &Path) -> Outcome<PathBuf> {
    let dir = place.join("sbin");
    fs::create_dir_all(&dir)?;
    let link = dir.join("mount.fuse.ebb");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(std::path::absolute(binaries)?.join("ebb"), link)?;
    Ok(dir)
}

/// The suite where mount(8) finds those helpers: in a mount namespace of its own.
fn with_helpers(suite: &Path, helpers: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = r#"mount -t overlay overlay -o lowerdir="$0":/usr/sbin /usr/sbin && exec "$@""#;
    command.args(["--mount", "--propagation=private", "sh", "-c", script]).arg(helpers).arg(suite);
    command
}

fn run_at(suite: &mut Command, config: &Path, dir: &Path) -> Outcome<Results> {
    let began = Instant::now();
    let output = suite.arg("-c").arg(config).arg("-p").arg(dir).current_dir(dir).output()?;
    let seconds = began.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&output.stdout);
    let cases: BTreeMap<String, &'static str> = text.lines().filter_map(verdict).collect();
    let summary = text.lines().rev().find_map(|line| line.strip_prefix("Summary: ")).ok_or_else(|| {
        format!("pjdfstest did not come to an end in {}: {}", dir.display(), String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let total = summary.rsplit(", ").next().and_then(|total| total.strip_suffix(" total")).and_then(|total| total.parse().ok());
    if total != Some(cases.len()) {
        return Err(format!("{} cases were read of {summary:?}", cases.len()).into());
    }
    Ok(Results { cases, seconds })
}

/// `name::of::case      ok`
fn verdict(line: &str) -> Option<(String, &'static str)> {
    let (name, verdict) = line.trim_end().split_once(char::is_whitespace)?;
    let verdict = match verdict.trim() {
        "ok" => "ok",
        "skipped" => "skipped",
        "FAILED" | "failed" => "failed",
        _ => return None,
    };
    name.contains("::").then(|| (name.to_owned(), verdict))
}
