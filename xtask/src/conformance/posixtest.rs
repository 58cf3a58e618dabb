//! posixtest, go-fuse's suite, in a Go program that is built here.

use super::{Mounts, Results, Verdict, ground, results};
use crate::{Outcome, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const MODULE: &str = "github.com/hanwen/go-fuse/v2";
const VERSION: &str = "v2.12.1";

/// Runs every case in a directory of its own. The module's own driver skips two cases; this one
/// skips only EXCLUDED.
const DRIVER: &str = r#"package driver

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

var place = flag.String("place", "", "an empty directory")

func TestAll(t *testing.T) {
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(*place, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			test(t, dir)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		})
	}
}
"#;

/// Fails on every file system: it expects two POSIX record locks of one process to conflict.
const EXCLUDED: &str = "FcntlFlockLocksFile";

/// Detects servers that follow a symbolic link themselves. On the disk it gives a false alarm,
/// since /etc/passwd and the test directory are on one device.
const EXCLUDED_ON_DISK: &str = "OpenSymlinkRace";

pub fn run(on: &Mounts) -> Outcome<()> {
    let program = build()?;
    let results = ground::everywhere(on, &[], |ground| {
        let excluded = if ground.rig.is_some() {
            EXCLUDED.to_owned()
        } else {
            format!("{EXCLUDED}|{EXCLUDED_ON_DISK}")
        };
        run_at(&program, &ground.dir, &excluded)
    })?;
    results::judge("posixtest", &results)
}

fn build() -> Outcome<PathBuf> {
    let place = tool::conformance()?.join(format!("posixtest-{VERSION}"));
    let program = place.join("posixtest");
    if !program.exists() {
        tool::needs("go", "version", "Go 1.24 or later (https://go.dev/dl) builds posixtest")?;
        println!("building posixtest of {MODULE} {VERSION}");
        fs::create_dir_all(&place)?;
        fs::write(
            place.join("go.mod"),
            format!("module driver\n\ngo 1.24\n\nrequire {MODULE} {VERSION}\n"),
        )?;
        fs::write(place.join("driver_test.go"), DRIVER)?;
        let go = |args: &[&str]| {
            tool::run(Command::new("go").args(args).env("GOFLAGS", "-mod=mod").current_dir(&place))
        };
        go(&["test", "-c", "-o", "posixtest", "."])?;
    }
    Ok(program)
}

fn run_at(program: &Path, dir: &Path, excluded: &str) -> Outcome<Results> {
    let began = Instant::now();
    let mut command = Command::new(program);
    command
        .args(["-test.v", "-test.skip", &format!("^TestAll$/^({excluded})$"), "-place"])
        .arg(dir)
        .current_dir(dir);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut results = Results { seconds: began.elapsed().as_secs_f64(), ..Results::default() };
    let mut said = Vec::new();
    for line in text.lines() {
        match verdict(line) {
            Some((name, verdict)) => {
                let verdict = match verdict {
                    Verdict::Failed(_) => Verdict::Failed(said.join("; ")),
                    other => other,
                };
                results.cases.insert(name, verdict);
            }
            None if line.starts_with("=== RUN") => said.clear(),
            None => said.push(line.trim().to_owned()),
        }
    }
    // A case that ends the process prints no result.
    let came_to_an_end = text.lines().any(|line| line == "PASS" || line == "FAIL");
    if came_to_an_end && results.cases.len() >= LEAST {
        return Ok(results);
    }
    let last = text.lines().rev().find(|line| line.starts_with("=== RUN")).unwrap_or_default();
    Err(format!(
        "posixtest did not come to an end ({last}): {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )
    .into())
}

/// `    --- PASS: TestAll/Name (0.00s)`
fn verdict(line: &str) -> Option<(String, Verdict)> {
    let (verdict, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": TestAll/")?;
    let name = rest.split_whitespace().next()?;
    let verdict = match verdict {
        "PASS" => Verdict::Passed,
        "SKIP" => Verdict::Skipped,
        _ => Verdict::Failed(String::new()),
    };
    Some((name.to_owned(), verdict))
}

/// Cases of this version without the excluded ones; fewer mean that the driver ran none.
const LEAST: usize = 30;
