//! Runs and ends other programs.

use crate::Outcome;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(PathBuf::from).unwrap_or_default()
}

pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| root().join("target"))
}

/// Runs a program to its end, with its output shown.
pub fn run(command: &mut Command) -> Outcome<()> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Runs a program to its end; returns its standard output.
pub fn output(command: &mut Command) -> Outcome<String> {
    let output =
        command.stderr(Stdio::piped()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!("{command:?}: {}\n{}{}", output.status, out, err.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: i32) -> Outcome<()> {
    kill(pid as i32, signal)
}

/// As [`signal`], to all processes of a group.
pub fn signal_group(leader: u32, signal: i32) -> Outcome<()> {
    kill(-(leader as i32), signal)
}

fn kill(whom: i32, signal: i32) -> Outcome<()> {
    // SAFETY: takes plain integers.
    match unsafe { libc::kill(whom, signal) } {
        0 => Ok(()),
        _ => Err(format!("process {}: {}", whom.abs(), std::io::Error::last_os_error()).into()),
    }
}

/// Whether a program is installed, tested with its option to print the version.
pub fn has(program: &str, version: &str) -> bool {
    let mut probe = Command::new(program);
    probe.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Fails with the reason `why` unless a program is installed.
pub fn needs(program: &str, version: &str, why: &str) -> Outcome<()> {
    if has(program, version) { Ok(()) } else { Err(format!("{program} is missing: {why}").into()) }
}

/// Installs a Debian package unless `program` exists.
pub fn debian(program: &Path, package: &str) -> Outcome<()> {
    if program.exists() {
        return Ok(());
    }
    println!("installing {package}");
    let mut command = Command::new("apt-get");
    command
        .args(["install", "--yes", "--quiet=2", "--no-install-recommends", package])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // Installation must not start servers; tests start them.
    run(command.envs([("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")])).map_err(|error| {
        format!("{package} is missing, perhaps after `apt-get update` it is not: {error}").into()
    })
}

/// Directory of suites and their results.
pub fn conformance() -> Outcome<PathBuf> {
    let place = target().join("conformance");
    std::fs::create_dir_all(&place)?;
    Ok(place)
}

pub fn metadata() -> Outcome<Value> {
    let text = output(
        Command::new(cargo())
            .args(["metadata", "--format-version=1", "--locked"])
            .current_dir(root()),
    )?;
    Ok(serde_json::from_str(&text)?)
}

pub fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Builds binaries of the workspace; returns their directory. EBB_BINARIES names a directory with
/// existing ones.
pub fn build(packages: &[&str], release: bool) -> Outcome<PathBuf> {
    if let Some(there) = std::env::var_os("EBB_BINARIES") {
        return Ok(there.into());
    }
    run(building(packages).args(release.then_some("--release")))?;
    Ok(target().join(if release { "release" } else { "debug" }))
}

/// As [`build`], with switchable bugs in `ebb` (crates/model/src/planted.rs), in a directory of its
/// own.
pub fn build_planted() -> Outcome<PathBuf> {
    if let Some(there) = std::env::var_os("EBB_BINARIES") {
        return Ok(there.into());
    }
    let (packages, place) = (["ebb", "ebb-s3-server"], target().join("planted"));
    run(building(&packages).args(["--features", "ebb/planted"]))?;
    std::fs::create_dir_all(&place)?;
    for binary in packages {
        std::fs::copy(target().join("debug").join(binary), place.join(binary))?;
    }
    // The usual directory must hold the binary without bugs.
    build(&packages, false)?;
    Ok(place)
}

/// Builds optimised examples of one package; returns their directory.
pub fn build_examples(package: &str, names: &[&str]) -> Outcome<PathBuf> {
    if let Some(there) = std::env::var_os("EBB_BINARIES") {
        return Ok(PathBuf::from(there).join("examples"));
    }
    run(building(&[package])
        .arg("--release")
        .args(names.iter().flat_map(|name| ["--example", name])))?;
    Ok(target().join("release/examples"))
}

fn building(packages: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command
        .args(["build", "--locked", "--quiet"])
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .current_dir(root());
    command
}

/// Installs a binary crate below the target directory, if needed.
pub fn install(name: &str, version: &str) -> Outcome<PathBuf> {
    let place = target().join("tools");
    let binary = place.join("bin").join(name);
    if !binary.exists() {
        println!("installing {name} {version}");
        install_into(&place, Command::new(cargo()).args(["install", name, "--version", version]))?;
    }
    Ok(binary)
}

/// A patch of a published crate: replaces `from`, which must occur once, by `to`.
pub struct Change {
    pub file: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

/// As [`install`], with a patch.
pub fn install_changed(name: &str, version: &str, change: &Change) -> Outcome<PathBuf> {
    let place = target().join("tools/changed");
    let binary = place.join("bin").join(name);
    if !binary.exists() {
        println!("installing {name} {version} with a change");
        let sources = place.join("sources");
        let manifest = format!(
            "[package]\nname = \"sources\"\nedition = \"2024\"\n\n[dependencies]\n{name} = \
             \"={version}\"\n\n[workspace]\n"
        );
        std::fs::create_dir_all(sources.join("src"))?;
        std::fs::write(sources.join("src/lib.rs"), "")?;
        std::fs::write(sources.join("Cargo.toml"), manifest)?;
        // Its output is a configuration for builds with these sources.
        output(Command::new(cargo()).args(["vendor", "--quiet", "vendor"]).current_dir(&sources))?;
        let source = sources.join("vendor").join(name);
        let file = source.join(change.file);
        let text = std::fs::read_to_string(&file)?;
        if text.matches(change.from).count() != 1 {
            return Err(format!(
                "{}: what is to be changed does not stand there once",
                file.display()
            )
            .into());
        }
        std::fs::write(&file, text.replace(change.from, change.to))?;
        // Detaches the crate from the surrounding workspace.
        let manifest = source.join("Cargo.toml");
        std::fs::write(&manifest, std::fs::read_to_string(&manifest)? + "\n[workspace]\n")?;
        install_into(&place, Command::new(cargo()).args(["install", "--path"]).arg(source))?;
    }
    Ok(binary)
}

fn install_into(place: &Path, command: &mut Command) -> Outcome<()> {
    // Outside the workspace, whose toolchain and profiles do not apply.
    run(command.args(["--quiet", "--locked", "--root"]).arg(place).current_dir(target()))
}
