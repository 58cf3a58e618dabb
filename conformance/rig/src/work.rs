//! The workload, which runs on the mount and on the reference copy alike.

use crate::rng::Rng;
use crate::{Outcome, tool, xattr};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// Source archives of dependencies from cargo's cache.
pub fn archives() -> Outcome<Vec<PathBuf>> {
    const CRATES: [&str; 7] = ["tokio", "libc", "rustls", "hyper", "clap_builder", "syn", "ring"];
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
        .ok_or("there is no CARGO_HOME")?;
    let metadata = tool::metadata()?;
    let mut found = Vec::new();
    for registry in fs::read_dir(home.join("registry/cache"))? {
        let registry = registry?.path();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let (name, version) = (
                package["name"].as_str().unwrap_or_default(),
                package["version"].as_str().unwrap_or_default(),
            );
            let archive = registry.join(format!("{name}-{version}.crate"));
            if CRATES.contains(&name) && archive.exists() {
                found.push(archive);
            }
        }
    }
    found.sort();
    if found.is_empty() { Err("cargo has kept no source of a crate".into()) } else { Ok(found) }
}

pub fn unpack(archive: &Path, to: &Path) -> Outcome<()> {
    tool::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to))
}

/// Deterministic changes of every kind; returns their number.
pub fn edit(root: &Path) -> Outcome<usize> {
    let files = files(root)?;
    let mut count = 0;
    for (index, path) in files.iter().enumerate() {
        count += 1;
        match index % 40 {
            0 => OpenOptions::new().append(true).open(path)?.write_all(b"\n// appended\n")?,
            1 => OpenOptions::new().write(true).open(path)?.write_all_at(b"// written over", 0)?,
            2 => {
                OpenOptions::new().write(true).open(path)?.set_len(fs::metadata(path)?.len() / 2)?
            }
            3 => fs::rename(path, path.with_extension("renamed"))?,
            4 => fs::hard_link(path, path.with_extension("link"))?,
            5 => symlink(path.file_name().ok_or("no name")?, path.with_extension("symlink"))?,
            6 => fs::remove_file(path)?,
            7 => fs::set_permissions(path, fs::Permissions::from_mode(0o600))?,
            8 => xattr::set(path, "user.note", format!("note {index}").as_bytes())?,
            9 => own(path, 1000 + index as u32)?,
            10 => replace(path)?,
            _ => count -= 1,
        }
    }
    let directories = directories(root)?;
    let (first, last) =
        (directories.first().ok_or("no directory")?, directories.last().ok_or("no directory")?);
    fs::rename(first, root.join("renamed directory"))?;
    if last != first {
        fs::rename(last, root.join("renamed directory").join("moved below"))?;
    }
    fs::create_dir(root.join("empty"))?;
    xattr::set(&root.join("empty"), "user.kind", b"empty")?;
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777))?;
    fs::write(root.join("name with blanks, ümlaut and %41"), "odd")?;
    mkfifo(&root.join("fifo"))?;
    fs::write(root.join("large"), Rng(7).bytes(48 << 20))?;
    let sparse = File::create(root.join("sparse"))?;
    sparse.set_len(10 << 20)?;
    sparse.write_all_at(b"in the middle", 5 << 20)?;
    File::open(root.join("large"))?.sync_all()?;
    Ok(count + 12)
}

/// Saves like an editor: a new file is renamed over the old one.
fn replace(path: &Path) -> Outcome<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, "replaced\n")?;
    fs::rename(draft, path)?;
    Ok(())
}

fn own(path: &Path, id: u32) -> Outcome<()> {
    // Only root can give files away.
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        chown(path, Some(id), Some(id))?;
    }
    Ok(())
}

fn mkfifo(path: &Path) -> Outcome<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends in NUL.
    if unsafe { libc::mkfifo(path.as_ptr(), 0o640) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().into())
    }
}

/// Number of files that contain the word.
pub fn grep(root: &Path, word: &[u8]) -> Outcome<usize> {
    let mut found = 0;
    for file in files(root)? {
        let text = fs::read(file)?;
        found += usize::from(text.windows(word.len()).any(|window| window == word));
    }
    Ok(found)
}

/// Regular files, one path each, sorted.
pub fn files(root: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn directories(root: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(root)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}

/// Files after [`carry_on`].
const WRITTEN: usize = 3000;

/// Directory of the interrupted work.
const DIRECTORY: &str = "while it was killed";

/// Writes small files until the mount dies.
pub struct Writer {
    thread: JoinHandle<Result<usize, String>>,
}

impl Writer {
    pub fn start(mount: &Path) -> Writer {
        let dir = mount.join(DIRECTORY);
        let write = move || {
            fs::create_dir(&dir).map_err(|error| error.to_string())?;
            let done = (0..WRITTEN).take_while(|index| write_one(&dir, *index).is_ok()).count();
            Ok(done)
        };
        Writer { thread: std::thread::spawn(write) }
    }

    /// Number of acknowledged files.
    pub fn stopped(self) -> Outcome<usize> {
        Ok(self.thread.join().map_err(|_| "the writer panicked")??)
    }
}

fn content(index: usize) -> Vec<u8> {
    Rng(index as u64).bytes(1 + index % 9000)
}

fn write_one(dir: &Path, index: usize) -> std::io::Result<()> {
    let mut file = File::create(dir.join(format!("file {index}")))?;
    file.write_all(&content(index))?;
    // The file is acknowledged when close succeeds, which drop hides.
    file.metadata().map(|meta| assert_eq!(meta.size(), content(index).len() as u64))
}

/// Number of acknowledged files that are missing or different.
pub fn missing(mount: &Path, acknowledged: usize) -> Outcome<usize> {
    let dir = mount.join(DIRECTORY);
    Ok((0..acknowledged)
        .filter(|index| fs::read(dir.join(format!("file {index}"))).ok() != Some(content(*index)))
        .count())
}

/// Writes the files that were not acknowledged.
pub fn carry_on(root: &Path, from: usize) -> Outcome<()> {
    let dir = root.join(DIRECTORY);
    fs::create_dir_all(&dir)?;
    for index in from..WRITTEN {
        write_one(&dir, index)?;
    }
    Ok(())
}
