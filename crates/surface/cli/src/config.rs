//! Configuration files: a key of the file stands in for the flag of the same name. The table
//! `[advanced]` has the settings that are no flags, and a table `[[bucket]]` adds a member bucket.
//!
//! To clap an advanced setting is a hidden argument, so that one table defines all settings, and
//! flags and variables of version 0.1.0 still work, with a warning.

use crate::args::Member;
use crate::{Cli, Command, member};
use clap::builder::{OsStr, Resettable};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, parser::ValueSource};
use ebb_model::shown_path;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ConfigError {
    /// Help, version, or flags that cannot be: clap's own text.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    #[error("{}: {what}", shown_path(.file.as_os_str().as_bytes()))]
    File { file: PathBuf, what: String },
}

/// Reads the command line, and then the configuration file that it names.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ConfigError> {
    let args: Vec<OsString> = args.into_iter().collect();
    // The file may supply a missing argument, so errors of the first pass count only without a
    // file.
    let lenient = command().mut_subcommands(|command| command.mut_args(|arg| arg.required(false)));
    let Ok(matches) = lenient.try_get_matches_from(&args) else {
        return Ok(Cli::try_parse_from_checked(&args)?);
    };
    let Some((name, given)) = matches.subcommand() else {
        return Ok(Cli::try_parse_from_checked(&args)?);
    };
    let mut deprecated = deprecated(name, given);
    let Some(file) = config_file(given) else {
        return Ok(Cli { deprecated, ..Cli::try_parse_from_checked(&args)? });
    };
    let File { values, members } = read(&file)?;
    let mut command = command();
    for Value { key, text: value, advanced } in values {
        let id = key.replace('-', "_");
        let known = command.find_subcommand(name).and_then(|sub| {
            sub.get_arguments().find(|arg| {
                arg.get_id() == id.as_str() && arg.get_long().is_some() && id != "config"
            })
        });
        let refusal = match known.map(is_advanced) {
            None => Some(format!("unknown key {key:?}: `ebb {name} --help` lists the flags")),
            Some(true) if !advanced => {
                deprecated.push(format!(
                    "{}: {key:?} above the table [{ADVANCED}]",
                    shown_path(file.as_os_str().as_bytes())
                ));
                None
            }
            Some(false) if advanced => {
                Some(format!("{key:?} belongs above the table [{ADVANCED}], not in it"))
            }
            Some(_) => None,
        };
        if let Some(what) = refusal {
            return Err(ConfigError::File { what, file });
        }
        command = command.mut_subcommand(name, |sub| {
            sub.mut_arg(&id, |arg| arg.required(false).default_value(OsStr::from(value)))
        });
    }
    let matches = command
        .try_get_matches_from(&args)
        .map_err(|error| with_origin(error, &args, Some(&file)))?;
    let mut cli = Cli { deprecated, ..Cli::from_arg_matches(&matches)? };
    match &mut cli.command {
        Command::Mount(args) => args.bucket.members = members,
        Command::Serve(args) => args.bucket.members = members,
        _ => {}
    }
    Ok(cli)
}

impl Cli {
    fn try_parse_from_checked(args: &[OsString]) -> Result<Cli, clap::Error> {
        let matches =
            command().try_get_matches_from(args).map_err(|error| with_origin(error, args, None))?;
        Cli::from_arg_matches(&matches)
    }
}

/// An empty variable counts as unset: unit files and container specifications cannot unset one.
fn command() -> clap::Command {
    let is_empty = |arg: &Arg| {
        arg.get_env().is_some_and(|name| env::var_os(name).is_some_and(|value| value.is_empty()))
    };
    let heard = move |arg: Arg| {
        let arg = match is_advanced(&arg) {
            true => {
                let variable = variable_of(&arg);
                arg.env(variable)
            }
            false => arg,
        };
        if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg }
    };
    Cli::command().mut_subcommands(|command| command.mut_args(heard))
}

/// Names the variable or file of an invalid value; clap would name the flag.
fn with_origin(mut error: clap::Error, args: &[OsString], file: Option<&Path>) -> clap::Error {
    let mut command = command();
    command.build();
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let given = args.iter().find_map(|arg| command.find_subcommand(arg));
    let Some(arg) =
        given.and_then(|command| command.get_arguments().find(|arg| arg.to_string() == *shown))
    else {
        return error;
    };
    let Some(long) = arg.get_long() else { return error };
    let flag = format!("--{long}");
    if args.iter().any(|arg| arg.to_string_lossy().split('=').next() == Some(&flag)) {
        return error;
    }
    let variable = arg.get_env().filter(|name| env::var_os(name).is_some());
    let origin = match (variable, file) {
        (Some(variable), _) => variable.to_string_lossy().into_owned(),
        (None, Some(file)) => format!("{long} in {}", file.display()),
        (None, None) => return error,
    };
    error.insert(ContextKind::InvalidArg, ContextValue::String(origin));
    error
}

fn config_file(given: &ArgMatches) -> Option<PathBuf> {
    let source = given
        .try_contains_id("config")
        .ok()
        .filter(|known| *known)
        .and_then(|_| given.value_source("config"));
    match source {
        Some(ValueSource::CommandLine | ValueSource::EnvVariable) => {
            given.get_one::<PathBuf>("config").cloned()
        }
        _ => None,
    }
}

/// The table of a configuration file with the settings that are no flags.
pub(crate) const ADVANCED: &str = "advanced";

/// Whether an argument is a key of the table [`ADVANCED`] alone.
pub(crate) fn is_advanced(arg: &Arg) -> bool {
    arg.is_hide_set() && arg.get_long().is_some()
}

fn variable_of(arg: &Arg) -> String {
    format!("EBB_{}", arg.get_id().as_str().to_uppercase())
}

/// Advanced settings that are given as flags or variables, as in version 0.1.0.
fn deprecated(name: &str, given: &ArgMatches) -> Vec<String> {
    let command = command();
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    let origin = |arg: &Arg| match given.value_source(arg.get_id().as_str())? {
        ValueSource::CommandLine => Some(format!("--{}", arg.get_long()?)),
        ValueSource::EnvVariable => Some(variable_of(arg)),
        _ => None,
    };
    command.get_arguments().filter(|arg| is_advanced(arg)).filter_map(origin).collect()
}

/// The contents of a configuration file.
struct File {
    values: Vec<Value>,
    members: Vec<Member>,
}

struct Value {
    key: String,
    text: String,
    /// The key is in the table [`ADVANCED`].
    advanced: bool,
}

fn read(file: &Path) -> Result<File, ConfigError> {
    let refused = |what: String| ConfigError::File { file: file.to_owned(), what };
    let text = fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    // The line itself may contain a secret.
    let line_of = |error: &toml::de::Error| {
        text.bytes()
            .take(error.span().map_or(0, |span| span.start))
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    };
    let told =
        |error: toml::de::Error| refused(format!("line {}: {}", line_of(&error), error.message()));
    let mut table: toml::Table = text.parse().map_err(told)?;
    let members =
        table.remove(member::KEY).map_or(Ok(Vec::new()), member::parse).map_err(refused)?;
    let value_of = |key: &str, value: toml::Value| match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err(refused(format!("{key} is to be a text, a number, true or false"))),
    };
    let advanced = match table.remove(ADVANCED) {
        None => toml::Table::new(),
        Some(toml::Value::Table(advanced)) => advanced,
        Some(_) => return Err(refused(format!("{ADVANCED} is to be a table: [{ADVANCED}]"))),
    };
    let values: Result<Vec<_>, _> = table
        .into_iter()
        .map(|(key, value)| (key, value, false))
        .chain(advanced.into_iter().map(|(key, value)| (key, value, true)))
        .map(|(key, value, advanced)| {
            value_of(&key, value).map(|text| Value { key, text, advanced })
        })
        .collect();
    Ok(File { values: values?, members })
}
