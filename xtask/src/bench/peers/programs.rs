//! Paths and versions of the programs of peers.

use super::Column;
use crate::Outcome;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// Search path of the programs of peers.
pub struct Programs {
    path: OsString,
}

impl Programs {
    /// `bin` of this directory, then the system's path.
    pub fn new(directory: &Path) -> Programs {
        let mut path = directory.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path.push(":/usr/sbin:/sbin");
        Programs { path }
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Loopback needs no certificates, and rclone does not start with this variable.
        command.env("PATH", &self.path).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        command
    }

    /// The version of a peer; an error if a program that it needs is missing.
    pub fn version(&self, column: Column) -> Outcome<String> {
        let (programs, flag): (&[&str], &str) = match column {
            Column::S3fs => (&["s3fs"], "--version"),
            Column::Rclone => (&["rclone"], "--version"),
            Column::MooseFs => {
                (&["mfsmaster", "mfschunkserver", "mfsmount", "nsenter", "ip"], "-v")
            }
            Column::JuiceFs => (&["juicefs", "redis-server"], "--version"),
            Column::GeeseFs => (&["geesefs"], "--version"),
            Column::Mountpoint => (&["mount-s3"], "--version"),
            Column::SeaweedFs => (&["weed"], "version"),
            Column::ZeroFs => (&["zerofs"], "--version"),
            _ => return Err("it is no peer".into()),
        };
        let there = |program: &str| {
            std::env::split_paths(&self.path).any(|directory| directory.join(program).exists())
        };
        if let Some(missing) = programs.iter().find(|program| !there(program)) {
            return Err(format!("{missing} is not installed").into());
        }
        let said = self.command(programs[0]).arg(flag).output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned()
            + &String::from_utf8_lossy(&said.stderr);
        Ok(version(&said).ok_or("it does not tell its version")?.to_owned())
    }
}

/// The first word that looks like a version.
fn version(said: &str) -> Option<&str> {
    let mut words = said.split_whitespace().map(|word| word.trim_start_matches(['v', 'V']));
    words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let said = [
            "Amazon Simple Storage Service File System V1.90 (commit:x)",
            "rclone v1.60.1-DEV\n- os/version: 12",
            "version: 3.0.117-1 ; build: 1341",
            "juicefs version 1.4.1+2026-07-30.0b90c7db",
            "version 30GB 4.53 7506e5f91cd6 linux amd64",
        ];
        assert_eq!(
            said.map(version),
            [
                Some("1.90"),
                Some("1.60.1-DEV"),
                Some("3.0.117-1"),
                Some("1.4.1+2026-07-30.0b90c7db"),
                Some("4.53")
            ]
        );
        assert_eq!(version("usage: 3 arguments"), None);
    }
}
