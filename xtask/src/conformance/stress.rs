//! stress-ng: every stressor of its file system class, for some seconds each.

use super::{Mounts, Results, Verdict, ground, results};
use crate::{Outcome, tool};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

pub fn run(on: &Mounts, only: &[String], seconds: u64) -> Outcome<()> {
    tool::debian(Path::new("/usr/bin/stress-ng"), "stress-ng")?;
    let mut stressors = all()?;
    if let Some(unknown) = only.iter().find(|name| !stressors.contains(name)) {
        return Err(format!("{unknown} is not in stress-ng's class for file systems").into());
    }
    stressors.retain(|name| only.is_empty() || only.contains(name));
    let results = ground::everywhere(on, &[], |ground| {
        let began = Instant::now();
        let mut results = Results::default();
        for stressor in &stressors {
            let verdict = stress(stressor, seconds, &ground.dir)?;
            println!("{}: {stressor}: {verdict}", ground.name);
            results.cases.insert(stressor.clone(), verdict);
        }
        results.seconds = began.elapsed().as_secs_f64();
        Ok(results)
    })?;
    results::judge("stress-ng", &results)
}

/// `class 'filesystem' stressors: access acl …`
fn all() -> Outcome<Vec<String>> {
    let said = tool::output(Command::new("stress-ng").args(["--class", "filesystem?"]))?;
    let (_, names) =
        said.split_once("stressors:").ok_or("stress-ng does not name its stressors")?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

fn stress(stressor: &str, seconds: u64, dir: &Path) -> Outcome<Verdict> {
    let mut command = Command::new("stress-ng");
    command
        .args([
            &format!("--{stressor}"),
            "2",
            "--timeout",
            &seconds.to_string(),
            "--verify",
            "--seed",
            "1",
            "--temp-path",
        ])
        .arg(dir);
    let output = command.current_dir(dir).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let said: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(" fail: "))
        .filter_map(|line| line.split_once("] "))
        .map(|(_, said)| said)
        .collect();
    Ok(match output.status.code() {
        Some(0) if said.is_empty() => Verdict::Passed,
        // Too few resources, or not built for this machine.
        Some(3 | 4) => Verdict::Skipped,
        _ => Verdict::Failed(format!(
            "{}: {}",
            output.status,
            said.first().copied().unwrap_or_default()
        )),
    })
}
