//! Builds of programs from pinned crates.io packages.

use super::shell;
use crate::{Outcome, tool};
use std::fs;
use std::path::Path;
use std::process::Command;

/// libffi and LuaJIT as bundled by two crates: one uses `configure` and libtool, the other builds
/// its own tools first.
const C: &str = r#"
libffi-sys = "=4.2.2"
luajit-src = "=210.7.4"
"#;

const RUST: &str = r#"
serde = { version = "=1.0.229", features = ["derive"] }
serde_json = "=1.0.154"
"#;

pub fn prepare_c(reference: &Path) -> Outcome<()> {
    vendor(reference, C, "fn main() {}")?;
    // One archive, unpacked in the build directory.
    let lines = "mkdir sources; mv vendor/libffi-sys/libffi vendor/luajit-src/luajit2 sources; tar \
        -czf sources.tar.gz sources";
    shell(reference, lines, &[]).map(drop)
}

/// Without optimisation, to save time.
const MAKE: &str = "make -j2 CFLAGS=-O0 CCOPT='-O0 -fomit-frame-pointer'";

pub fn work_c(reference: &Path, dir: &Path) -> Outcome<()> {
    let lines = format!(
        r#"
tar -xzf "$1/sources.tar.gz"; cd sources
(cd libffi; sh ./configure --disable-docs; {MAKE})
(cd luajit2; {MAKE})
"#
    );
    shell(dir, &lines, &[reference])?;
    look_again_c(dir)
}

/// The program runs, and make finds nothing to compile: the modification times are unchanged.
pub fn look_again_c(dir: &Path) -> Outcome<()> {
    let lines = format!(
        r#"
cd sources; ./luajit2/src/luajit -e 'assert(1 + 1 == 2)'
touch now; {MAKE} -C libffi; {MAKE} -C luajit2
test -z "$(find . -name '*.o' -newer now)"
"#
    );
    shell(dir, &lines, &[]).map(drop)
}

pub fn prepare_rust(reference: &Path) -> Outcome<()> {
    let program = r#"
#[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
struct Entry { name: String, size: u64 }
fn main() {
    let entry = Entry { name: "name".into(), size: 3 };
    let text = serde_json::to_string(&entry).unwrap();
    assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
}
"#;
    vendor(reference, RUST, program)
}

pub fn work_rust(reference: &Path, dir: &Path) -> Outcome<()> {
    shell(dir, r#"cp -a "$1/." ."#, &[reference])?;
    build(dir)?;
    if build(dir)? {
        return Err("cargo builds again what has not changed".into());
    }
    shell(dir, "touch src/main.rs", &[])?;
    if !build(dir)? {
        return Err("cargo does not see that a source has changed".into());
    }
    Ok(())
}

pub fn look_again_rust(dir: &Path) -> Outcome<()> {
    if build(dir)? { Err("cargo builds again what has not changed".into()) } else { Ok(()) }
}

/// A program with the sources of all its dependencies.
fn vendor(reference: &Path, dependencies: &str, program: &str) -> Outcome<()> {
    fs::create_dir_all(reference.join("src"))?;
    fs::write(reference.join("src/main.rs"), program)?;
    let manifest = format!(
        "[package]\nname = \"program\"\nversion = \"0.0.0\"\nedition = \
         \"2024\"\n[dependencies]{dependencies}[workspace]\n"
    );
    fs::write(reference.join("Cargo.toml"), manifest)?;
    let config = tool::output(Command::new(tool::cargo()).args(["vendor"]).current_dir(reference))?;
    fs::create_dir(reference.join(".cargo"))?;
    Ok(fs::write(reference.join(".cargo/config.toml"), config)?)
}

/// Builds and runs the program; true if cargo compiled anything.
fn build(dir: &Path) -> Outcome<bool> {
    let mut command = Command::new(tool::cargo());
    command
        .args(["build", "--offline", "--message-format=json", "--quiet"])
        .current_dir(dir)
        .env_remove("CARGO_TARGET_DIR");
    let messages = tool::output(&mut command)?;
    tool::run(&mut Command::new(dir.join("target/debug/program")))?;
    Ok(messages.contains(r#""fresh":false"#))
}
