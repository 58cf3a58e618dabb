//! The key of an encrypted data directory. Each process that opens the directory reads the key from
//! the source in the settings: a daemon that takes over does so like the first one. So it stands in
//! no argument, no environment, no record and no shared memory.

use crate::failure::Failure;
use crate::output::Shown;
use ebb_cli::args::{ChangeKey, Encryption};
use ebb_encryption::{EncryptionError, Key};
use ebb_ports::Ports;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Longer than a key in any format.
const MAX_BYTES: usize = 1024;

/// How long the command for the key may take.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(5);

pub struct DataDir<'a> {
    pub path: &'a Path,
    pub encryption: &'a Encryption,
}

impl DataDir<'_> {
    pub fn is_encrypted(&self) -> bool {
        let Encryption { encryption_key_file, encryption_key_command } = self.encryption;
        encryption_key_file.is_some() || encryption_key_command.is_some()
    }
}

/// The ports with the disk as a node uses it. The data directory is locked.
pub async fn unlock(ports: Ports, data_dir: &DataDir<'_>) -> Result<Ports, Failure> {
    let Encryption { encryption_key_file, encryption_key_command } = data_dir.encryption;
    let key = key(encryption_key_file, encryption_key_command).await?;
    let disk = ebb_encryption::open(ports.disk.clone(), key.as_ref(), ports.entropy.clone()).await;
    Ok(Ports { disk: disk.map_err(|error| Failure::of(data_dir.path.shown(), error))?, ..ports })
}

/// `ebb change-key`
pub async fn change_key(args: ChangeKey) -> Result<(), Failure> {
    let shown = args.data_dir.shown();
    let failed = |error: &dyn std::fmt::Display| Failure::of(&shown, error);
    if !args.data_dir.join("encryption").is_file() {
        return Err(Failure::Usage(format!("{shown} is no encrypted data directory")));
    }
    let disk = ebb_os::ports(&args.data_dir).map_err(|error| failed(&error))?.disk;
    disk.lock().map_err(|error| failed(&error))?;
    let Encryption { encryption_key_file, encryption_key_command } = &args.encryption;
    let from = key(encryption_key_file, encryption_key_command)
        .await?
        .ok_or_else(|| failed(&EncryptionError::NoKey))?;
    let to = key(&args.new_key_file, &args.new_key_command).await?;
    let to = to.ok_or_else(|| {
        Failure::Usage("the new key is missing: --new-key-file or --new-key-command".into())
    })?;
    ebb_encryption::change_key(&*disk, &from, &to).await.map_err(|error| failed(&error))
}

async fn key(file: &Option<PathBuf>, command: &Option<String>) -> Result<Option<Key>, Failure> {
    let source = file.clone().map(Source::File).or_else(|| command.clone().map(Source::Command));
    let Some(source) = source else { return Ok(None) };
    keep_from_cores().map_err(|error| Failure::of("core dumps cannot be turned off", error))?;
    let read = tokio::task::spawn_blocking(move || source.read()).await;
    read.map_err(|error| Failure::of("the encryption key", error))?.map(Some)
}

enum Source {
    File(PathBuf),
    Command(String),
}

impl Source {
    fn read(self) -> Result<Key, Failure> {
        match self {
            Source::File(path) => of_file(path, PATIENCE),
            Source::Command(command) => of_command(&command, PATIENCE),
        }
    }
}

/// The file may be a pipe.
fn of_file(path: PathBuf, patience: Duration) -> Result<Key, Failure> {
    let at = format!("the encryption key in {}", path.shown());
    let (tell, told) = mpsc::channel();
    let reads_at = at.clone();
    std::thread::spawn(move || tell.send(read_file(&path, &reads_at)));
    told.recv_timeout(patience).unwrap_or_else(|_| {
        Err(Failure::of(at, format!("nothing came within {} s", patience.as_secs())))
    })
}

fn read_file(path: &Path, at: &str) -> Result<Key, Failure> {
    let mut file = File::open(path).map_err(|error| Failure::of(at, error))?;
    let about = file.metadata().map_err(|error| Failure::of(at, error))?;
    if about.is_file() && about.mode() & 0o077 != 0 {
        tracing::warn!(file = %path.shown(), "others than its owner may read the file with the \
            encryption key");
    }
    read(&mut file, at)
}

/// The command's standard output is the key. Its standard error may contain secrets, and is
/// discarded. The command does not outlive this process.
fn of_command(command: &str, patience: Duration) -> Result<Key, Failure> {
    let at = "the command for the encryption key";
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: the call is safe between fork and exec.
    unsafe {
        shell.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut child = shell.spawn().map_err(|error| Failure::of(at, error))?;
    let Some(mut out) = child.stdout.take() else { return Err(Failure::of(at, "no output")) };
    let (written, key) = mpsc::channel();
    std::thread::spawn(move || written.send(read(&mut out, "the encryption key of the command")));
    let until = Instant::now() + patience;
    let mut key = key.recv_timeout(patience).ok();
    loop {
        match (child.try_wait().map_err(|error| Failure::of(at, error))?, key.take()) {
            (Some(status), Some(key)) => {
                return if status.success() { key } else { Err(Failure::of(at, status)) };
            }
            (None, Some(waiting)) if Instant::now() < until => key = Some(waiting),
            _ => break,
        }
        std::thread::sleep(POLL);
    }
    // SAFETY: the call has no memory of ours. The group is there: its first process has not been
    // waited for.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    child.wait().map_err(|error| Failure::of(at, error))?;
    Err(Failure::of(at, format!("it did not end within {} s", patience.as_secs())))
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

/// The key and the data it protects are in memory. A program that receives cores through a pipe
/// gets them regardless of the limit, so the filter makes them empty.
fn keep_from_cores() -> io::Result<()> {
    std::fs::write("/proc/self/coredump_filter", "0")?;
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid to read.
    match unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_nobody_writes_to_is_not_waited_for() {
        let pipe = std::env::temp_dir().join(format!("ebb-key-{}", std::process::id()));
        let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let read = of_file(pipe.clone(), Duration::from_millis(200));
        std::fs::remove_file(pipe).unwrap();
        assert!(
            matches!(read, Err(Failure::Failed(what)) if what.contains("nothing came within 0 s"))
        );
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        for command in ["sleep 1000", "echo started; sleep 1000", "exec >&-; sleep 1000"] {
            match of_command(command, Duration::from_millis(200)) {
                Err(Failure::Failed(what)) => {
                    assert!(what.contains("did not end within 0 s"), "{command}: {what}")
                }
                _ => panic!("{command} has ended"),
            }
        }
    }
}
