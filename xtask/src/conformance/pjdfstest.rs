//! pjdfstest on real mounts, compared with this machine's disk in the same run.

use super::{Mounts, Results, Verdict, ground, results};
use crate::{Outcome, tool};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const VERSION: &str = "0.2.2";

/// The suite's configuration; it uses two users that every Debian has.
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

pub fn run(on: &Mounts) -> Outcome<()> {
    let suite = tool::install("pjdfstest", VERSION)?;
    let binaries = tool::build(&["ebb", "ebb-s3-server"], on.release)?;
    let place = tool::conformance()?;
    let config = place.join("pjdfstest.toml");
    fs::write(&config, CONFIG.replace("REMOUNT", "false"))?;
    let remounting = place.join("pjdfstest-remount.toml");
    fs::write(&remounting, CONFIG.replace("REMOUNT", "true"))?;
    let helpers = helpers(&place, &binaries)?;

    let results = ground::everywhere(on, &[], |ground| {
        let mut result = run_at(&mut Command::new(&suite), &config, &ground.dir)?;
        // Run separately: other tests leave files open for writing, which prevents a read-only
        // remount. This machine's disk is not remounted.
        if ground.rig.is_some() {
            let remounted =
                run_at(with_helpers(&suite, &helpers).arg("erofs"), &remounting, &ground.dir)?;
            result.seconds += remounted.seconds;
            result.cases.extend(remounted.cases);
        }
        Ok(result)
    })?;

    results::judge("pjdfstest", &results)
}

/// A directory with the helpers of mount(8) for a remount.
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

/// The suite in a mount namespace in which mount(8) finds those helpers.
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
    let cases: BTreeMap<String, Verdict> = text.lines().filter_map(verdict).collect();
    let summary =
        text.lines().rev().find_map(|line| line.strip_prefix("Summary: ")).ok_or_else(|| {
            format!(
                "pjdfstest did not come to an end in {}: {}",
                dir.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            )
        })?;
    let total = summary
        .rsplit(", ")
        .next()
        .and_then(|total| total.strip_suffix(" total"))
        .and_then(|total| total.parse().ok());
    if total != Some(cases.len()) {
        return Err(format!("{} cases were read of {summary:?}", cases.len()).into());
    }
    Ok(Results { cases, seconds })
}

/// `name::of::case      ok`
fn verdict(line: &str) -> Option<(String, Verdict)> {
    let (name, verdict) = line.trim_end().split_once(char::is_whitespace)?;
    let verdict = match verdict.trim() {
        "ok" => Verdict::Passed,
        "skipped" => Verdict::Skipped,
        "FAILED" | "failed" => Verdict::Failed(String::new()),
        _ => return None,
    };
    name.contains("::").then(|| (name.to_owned(), verdict))
}
