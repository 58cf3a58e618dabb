//! The key of an encrypted data directory. Whoever opens the directory reads it, from where the
//! settings say: a daemon that takes over as the first one did. So it stands in no argument,
//! no environment, no record and no shared memory.

use crate::failure::Failure;
use ebb_cli::args::Encryption;
use ebb_encryption::Key;
use ebb_ports::Ports;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// More than any way to write a key takes.
const MAX_BYTES: usize = 1024;

pub struct DataDir<'a> {
    pub path: &'a Path,
    pub encryption: &'a Encryption,
}

/// The ports with the disk as a node is to see it. The data directory is locked.
pub async fn unlock(ports: Ports, data_dir: &DataDir<'_>) -> Result<Ports, Failure> {
    let key = match source(data_dir.encryption) {
        None => None,
        Some(source) => {
            keep_from_cores().map_err(|error| Failure::of("core dumps cannot be turned off", error))?;
            let read = tokio::task::spawn_blocking(move || source.read()).await;
            Some(read.map_err(|error| Failure::of("the encryption key", error))??)
        }
    };
    let disk = ebb_encryption::open(ports.disk.clone(), key.as_ref(), ports.entropy.clone()).await;
    Ok(Ports { disk: disk.map_err(|error| Failure::of(data_dir.path.display(), error))?, ..ports })
}

enum Source {
    File(PathBuf),
    Command(String),
}

fn source(args: &Encryption) -> Option<Source> {
    let file = args.encryption_key_file.clone().map(Source::File);
    file.or_else(|| args.encryption_key_command.clone().map(Source::Command))
}

impl Source {
    fn read(self) -> Result<Key, Failure> {
        match self {
            Source::File(path) => {
                let at = format!("the encryption key in {}", path.display());
                let mut file = File::open(&path).map_err(|error| Failure::of(&at, error))?;
                read(&mut file, &at)
            }
            Source::Command(command) => {
                let at = "the command for the encryption key";
                let mut child = Command::new("/bin/sh")
                    .args(["-c", &command])
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .spawn()
                    .map_err(|error| Failure::of(at, error))?;
                let key = match &mut child.stdout {
                    Some(out) => read(out, "the encryption key of the command"),
                    None => Err(Failure::of(at, "no output")),
                };
                let status = child.wait().map_err(|error| Failure::of(at, error))?;
                if status.success() { key } else { Err(Failure::of(at, status)) }
            }
        }
    }
}

fn read(from: &mut impl Read, at: &str) -> Result<Key, Failure> {
    let mut bytes = Zeroizing::new([0; MAX_BYTES]);
    let mut len = 0;
    while len < bytes.len() {
        match from.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::of(at, error)),
        }
    }
    Key::parse(&bytes[..len]).map_err(|error| Failure::of(at, error))
}

/// The key and what it protects are in memory.
fn keep_from_cores() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid to read.
    match unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
