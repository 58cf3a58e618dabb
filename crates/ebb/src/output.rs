//! Standard output, and messages for people on standard error.

use crate::failure::Failure;
use ebb_cli::args::Output;
use ebb_cli::places::MountRecord;
use ebb_cli::render;
use ebb_model::{AdminReply, NodeState, Time, shown_path, shown_text};
use ebb_os::OsClock;
use ebb_ports::Clock;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A reader that has seen enough (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    print_one(text).map(drop)
}

/// Prints one of many. Returns whether there still is a reader: without it they would be printed
/// for ever.
pub fn print_one(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::of("standard output", error)),
    }
}

/// A path as people see it wherever one is printed.
pub trait Shown {
    fn shown(&self) -> String;
}

impl Shown for Path {
    fn shown(&self) -> String {
        shown_path(self.as_os_str().as_bytes())
    }
}

/// Prints why the program has failed, in one line, even with control characters in the names of
/// files and buckets.
pub fn fail(program: &str, failure: &Failure) {
    if let Some(text) = failure.text() {
        say(format!("{program}: {}", shown_text(text)));
    }
}

/// Warns of settings in the place that version 0.1.0 had for them.
pub fn warn_deprecated(settings: &[String]) {
    for setting in settings {
        say(format!(
            "ebb: {}: deprecated, write the setting into the table [advanced] of the configuration \
             file (--config)",
            shown_text(setting)
        ));
    }
}

/// For people. If standard error has gone the text has no reader.
pub fn say(text: impl Display) {
    writeln!(io::stderr(), "{text}").ok();
}

pub fn reply(reply: &AdminReply, output: Output) -> Result<(), Failure> {
    match output.json {
        true => json(&render::json(reply)),
        false => print(&render::text(reply, now())),
    }
}

/// The reply to a request about a mount, which adds its own part.
pub fn reply_on(
    mount: Option<&MountRecord>,
    reply: &AdminReply,
    output: Output,
) -> Result<(), Failure> {
    match output.json {
        true => json(&render::json_on(mount, reply)),
        false => print(&render::text_on(mount, reply, now())),
    }
}

/// The status of a node, with a line about the nodes of a replicated volume.
pub fn status(
    mount: Option<&MountRecord>,
    nodes: &[NodeState],
    reply: &AdminReply,
    output: Output,
) -> Result<(), Failure> {
    if !output.json {
        let nodes = ebb_cli::nodes::summary(nodes).unwrap_or_default();
        return print(&(render::text_on(mount, reply, now()) + &nodes));
    }
    let mut value = render::json_on(mount, reply);
    if let (false, Some(fields)) = (nodes.is_empty(), value.as_object_mut()) {
        fields.insert("nodes".into(), ebb_cli::nodes::json_list(nodes));
    }
    json(&value)
}

pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

pub fn version(output: Output) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    match output.json {
        true => json(&serde_json::json!({ "version": version })),
        false => print(&format!("ebb {version}\n")),
    }
}

fn now() -> Time {
    OsClock.wall()
}
