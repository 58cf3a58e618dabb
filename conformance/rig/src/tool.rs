//! Running other programs, and ending them.

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

/// Runs a program to its end; what it prints is shown.
pub fn run(command: &mut Command) -> Outcome<()> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Runs a program to its end; what it prints to standard output is given.
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

/// Whether a program is there, which tells its version if it is asked so.
pub fn has(program: &str, version: &str) -> bool {
    let mut probe = Command::new(program);
    probe.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Fails with the reason if it is not.
pub fn needs(program: &str, version: &str, why: &str) -> Outcome<()> {
    if has(program, version) { Ok(()) } else { Err(format!("{program} is missing: {why}").into()) }
}

/// Installs a package of Debian unless `program` is there.
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
    // Servers are started where they are tested, and not by being installed.
    run(command.envs([("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")])).map_err(|error| {
        format!("{package} is missing, perhaps after `apt-get update` it is not: {error}").into()
    })
}

/// Where suites of others and what they leave are kept.
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

/// Builds binaries of the workspace, and gives the directory that they are in. EBB_BINARIES
/// names one where they are already.
pub fn build(packages: &[&str], release: bool) -> Outcome<PathBuf> {
    if let Some(there) = std::env::var_os("EBB_BINARIES") {
        return Ok(there.into());
    }
    run(building(packages).args(release.then_some("--release")))?;
    Ok(target().join(if release { "release" } else { "debug" }))
}

/// As [`build`], `ebb` with bugs that can be switched on (crates/node/src/planted.rs), in a
/// directory of its own.
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
    // The binary that everybody runs is to be the one without.
    build(&packages, false)?;
    Ok(place)
}

/// Builds examples of one package with optimisations, and gives the directory that they are in.
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

/// Installs a binary crate below the target directory, unless it is there.
pub fn install(name: &str, version: &str) -> Outcome<PathBuf> {
    let place = target().join("tools");
    let binary = place.join("bin").join(name);
    if !binary.exists() {
        println!("installing {name} {version}");
        install_into(&place, Command::new(cargo()).args(["install", name, "--version", version]))?;
    }
    Ok(binary)
}

/// What is different in the source of a crate than its author has published: this text, which
/// stands there once.
pub struct Change {
    pub file: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

/// As [`install`], with a change.
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
        // What it prints is a configuration for who builds with these sources.
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
        // It is no member of what it is below.
        let manifest = source.join("Cargo.toml");
        std::fs::write(&manifest, std::fs::read_to_string(&manifest)? + "\n[workspace]\n")?;
        install_into(&place, Command::new(cargo()).args(["install", "--path"]).arg(source))?;
    }
    Ok(binary)
}

fn install_into(place: &Path, command: &mut Command) -> Outcome<()> {
    // Outside the workspace: its toolchain and profile are not this one's business.
    run(command.args(["--quiet", "--locked", "--root"]).arg(place).current_dir(target()))
}
