//! `ebb profile`: the load of a mount, by file and operation.

use crate::ask::ResolvedTarget;
use crate::failure::Failure;
use crate::output::Shown;
use crate::signals::Signals;
use crate::{http, output};
use ebb_cli::args;
use ebb_cli::profile::{self, Paths};
use ebb_model::{AdminReply, AdminRequest, Ino, MAX_PATHS, Name, Profile};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Duration;

pub async fn run(args: args::Profile) -> Result<(), Failure> {
    let asked = ResolvedTarget::of(&args.path, &args::Tls::default())?;
    let socket = asked.mount.as_ref().and_then(|record| record.counters.clone());
    let socket = socket.ok_or_else(|| {
        Failure::Usage(format!("{} is on no mount: a profile is of one", args.path.shown()))
    })?;
    // It also keeps an interrupt, which the command gets as well, from ending this one first.
    let mut signals = Signals::listen()?;
    let failed = |error: std::io::Error| Failure::of(args.path.shown(), error);
    let taking = http::Profiling::begin(&socket).await.map_err(failed)?;
    let worked = match (&args.duration, args.command.is_empty()) {
        (Some(time), true) => waited(time.0, &mut signals).await,
        _ => command(args.command.clone()).await,
    };
    let profile = taking.end().await.map_err(failed)?;
    let paths = paths(&asked, &profile).await;
    match args.json {
        true => output::print(&format!("{}\n", profile::json(&profile, &paths)))?,
        false => output::print(&profile::text(&profile, &paths, args.top as usize))?,
    }
    worked
}

/// Waits until the time is over, or the user ends it.
async fn waited(time: Duration, signals: &mut Signals) -> Result<(), Failure> {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = signals.next() => {}
    }
    Ok(())
}

async fn command(words: Vec<OsString>) -> Result<(), Failure> {
    let shown =
        words.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
    let run = move || -> std::io::Result<ExitStatus> {
        let mut words = words.into_iter();
        Command::new(words.next().unwrap_or_default()).args(words).status()
    };
    match tokio::task::spawn_blocking(run)
        .await
        .unwrap_or_else(|died| Err(std::io::Error::other(died)))
    {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::of(shown, status)),
        Err(error) => Err(Failure::of(shown, error)),
    }
}

/// Paths of inodes, as far as the node answers and knows them.
async fn paths(asked: &ResolvedTarget, profile: &Profile) -> Paths {
    let mut paths = Paths::new();
    if let Err(failure) = look_up(asked, profile, &mut paths).await {
        output::say(format!("ebb: paths are not known: {}", failure.text().unwrap_or_default()));
    }
    paths
}

async fn look_up(
    asked: &ResolvedTarget,
    profile: &Profile,
    paths: &mut Paths,
) -> Result<(), Failure> {
    // The root of the mount, possibly a subdirectory, is the root inode to the kernel.
    let root = asked.root().await?;
    let root: Vec<&[u8]> = root.iter().map(Name::as_bytes).collect();
    paths.insert(Ino::ROOT, root.join(&b'/'));
    let inos: BTreeSet<Ino> =
        profile.lines.iter().map(|line| line.ino).filter(|ino| *ino != Ino::ROOT).collect();
    let inos: Vec<Ino> = inos.into_iter().collect();
    for some in inos.chunks(MAX_PATHS) {
        let AdminReply::Paths(found) =
            asked.ask(AdminRequest::Paths { inos: some.to_vec() }).await?
        else {
            return Err(Failure::Failed("a reply of the wrong kind".into()));
        };
        paths.extend(some.iter().zip(found).filter_map(|(ino, path)| Some((*ino, path?.to_vec()))));
    }
    Ok(())
}
