//! Configuration files: a key of the file stands in for the flag of the same name, and a
//! table `[[bucket]]` puts another bucket beside the first.

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
    let Some(file) = config_file(given) else { return Ok(Cli::try_parse_from_checked(&args)?) };
    let File { values, members } = read(&file)?;
    let mut command = command();
    for (key, value) in values {
        let id = key.replace('-', "_");
        let known = command.find_subcommand(name).is_some_and(|sub| {
            sub.get_arguments().any(|arg| {
                arg.get_id() == id.as_str() && arg.get_long().is_some() && id != "config"
            })
        });
        if !known {
            return Err(ConfigError::File {
                what: format!("unknown key {key:?}: `ebb {name} --help` lists what can be set"),
                file,
            });
        }
        command = command.mut_subcommand(name, |sub| {
            sub.mut_arg(&id, |arg| arg.required(false).default_value(OsStr::from(value)))
        });
    }
    let matches = command
        .try_get_matches_from(&args)
        .map_err(|error| with_origin(error, &args, Some(&file)))?;
    let mut cli = Cli::from_arg_matches(&matches)?;
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
    let heard = move |arg: Arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg };
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

/// The contents of a configuration file.
struct File {
    values: Vec<(String, String)>,
    members: Vec<Member>,
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
    let values: Result<Vec<_>, _> = table
        .into_iter()
        .map(|(key, value)| value_of(&key, value).map(|text| (key, text)))
        .collect();
    Ok(File { values: values?, members })
}
