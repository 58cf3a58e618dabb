//! The command line of a mount(8) helper: `mount.ebb SOURCE DIR [-sfnv] [-o OPTIONS]`, as `mount -t
//! ebb`, fstab and systemd run it.
//!
//! Every setting of `ebb mount` is an option under the name of its flag. All other options are
//! mount options, except those that are meant for mount(8) itself.

use crate::Cli;
use clap::{Arg, ArgAction, CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A request of mount(8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A mount, with the arguments for `ebb`.
    Mount { args: Vec<OsString> },
    /// The same, up to where something would be done.
    Fake { args: Vec<OsString> },
    /// New mount options for the mount at `dir`. Settings stay.
    Remount { dir: PathBuf, options: String },
}

#[derive(Debug, Error)]
pub enum HelperError {
    /// Help, version, or flags that cannot be: clap's own text.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    #[error("mount option {0:?} cannot be given here")]
    Misplaced(String),
}

/// The name by which a helper was called, if `program` is one.
pub fn name(program: &OsStr) -> Option<&str> {
    let name = Path::new(program).file_name()?.to_str()?;
    name.starts_with("mount.").then_some(name)
}

/// Mounts a bucket, a directory or a served volume, for mount(8).
#[derive(Parser, Debug)]
#[command(name = "ebb", version, disable_help_subcommand = true)]
struct Line {
    source: String,
    dir: PathBuf,
    /// Settings of `ebb mount` under the names of its flags, and mount options.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown mount options.
    #[arg(short = 's')]
    sloppy: bool,
    /// Check the arguments without mounting.
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted for mount(8); ebb writes no mount table.
    #[arg(short = 'n')]
    _no_table: bool,
    #[arg(short = 'v')]
    _verbose: bool,
    /// Mount read-only.
    #[arg(short = 'r')]
    read_only: bool,
    #[arg(short = 'w', overrides_with = "read_only")]
    _read_write: bool,
    /// The type by which mount(8) has found this helper.
    #[arg(short = 't')]
    _kind: Option<String>,
}

/// Reads the command line of a helper. `is_mount_option` recognises mount options.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    is_mount_option: impl Fn(&str) -> bool,
) -> Result<Asked, HelperError> {
    let line = Line::try_parse_from(args)?;
    let mut settings: Vec<(String, String)> = Vec::new();
    let mut mount_options = Vec::new();
    let mut remount = false;
    let read_only = line.read_only.then_some("ro");
    for option in line
        .options
        .iter()
        .flat_map(|list| list.split(','))
        .chain(read_only)
        .filter(|option| !option.is_empty())
    {
        match Meaning::of(option) {
            Meaning::Nothing => {}
            Meaning::Remount => remount = true,
            Meaning::Implies(others) => mount_options.extend(others.iter().copied()),
            // The last of several equal options counts, but a flag may be given only once unless it
            // is repeatable.
            Meaning::Setting { flag, given, repeats } => {
                settings.retain(|(other, _)| repeats || *other != flag);
                settings.push((flag, given));
            }
            Meaning::Misplaced => return Err(HelperError::Misplaced(option.into())),
            Meaning::MountOption if line.sloppy && !is_mount_option(option) => {}
            Meaning::MountOption => mount_options.push(option),
        }
    }
    let options = mount_options.join(",");
    if remount {
        return Ok(Asked::Remount { dir: line.dir, options });
    }
    let mut args: Vec<OsString> = vec!["ebb".into(), "mount".into()];
    args.extend(settings.into_iter().map(|(_, given)| given.into()));
    args.push(format!("-o{UNSAID}{options}").into());
    args.extend(["--".into(), line.source.into(), line.dir.into()]);
    Ok(if line.fake { Asked::Fake { args } } else { Asked::Mount { args } })
}

/// Defaults of mount(8), which it does not pass on.
const UNSAID: &str = "suid,dev,";

enum Meaning {
    /// No effect: meant for other programs, or true of every mount.
    Nothing,
    Remount,
    /// Stands for other mount options.
    Implies(&'static [&'static str]),
    /// A flag of `ebb mount`: its name, and its form on the command line.
    Setting {
        flag: String,
        given: String,
        repeats: bool,
    },
    /// A flag that makes no sense as an option.
    Misplaced,
    MountOption,
}

impl Meaning {
    fn of(option: &str) -> Meaning {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match name {
            "remount" => return Meaning::Remount,
            "user" | "users" => return Meaning::Implies(&["noexec", "nosuid", "nodev"]),
            "owner" | "group" => return Meaning::Implies(&["nosuid", "nodev"]),
            "options" | "foreground" => return Meaning::Misplaced,
            _ if NOT_OURS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {
                return Meaning::Nothing;
            }
            _ => {}
        }
        let command = Cli::command();
        let flag = command
            .find_subcommand("mount")
            .and_then(|mount| mount.get_arguments().find(|arg| arg.get_long() == Some(name)));
        let Some(flag) = flag else { return Meaning::MountOption };
        let given = match value {
            // `ro=1` is no mount option; a switch with a value is left for clap to reject.
            None if takes_value(flag) => format!("--{name}="),
            None => format!("--{name}"),
            Some(value) => format!("--{name}={value}"),
        };
        Meaning::Setting {
            flag: name.into(),
            given,
            repeats: matches!(flag.get_action(), ArgAction::Append),
        }
    }
}

fn takes_value(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Options for mount(8) and systemd; options that the kernel shows for FUSE mounts and mount(8)
/// repeats; and kernel defaults that hold for every mount of ebb.
const NOT_OURS: [&str; 27] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "comment",
    "helper",
    "uhelper",
    "async",
    "silent",
    "loud",
    "nomand",
    "noiversion",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "fd",
    "rootmode",
    "user_id",
    "group_id",
    "blksize",
    "subtype",
];
