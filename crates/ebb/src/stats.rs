//! `ebb stats`: counters of a mount and its node, per interval.

use crate::ask::ResolvedTarget;
use crate::failure::Failure;
use crate::output::Shown;
use crate::{http, output};
use ebb_cli::{args, stats};
use ebb_model::{AdminReply, AdminRequest, MountStats, NodeStats};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Instant;

/// Moves the cursor to the top of a terminal and clears everything below.
const FROM_THE_TOP: &str = "\x1b[H\x1b[J";

pub async fn run(args: args::Stats) -> Result<(), Failure> {
    if args.interval.0.is_zero() && args.count.is_some_and(|count| count > 1) {
        return Err(Failure::Usage(
            "--interval 0 is all since the start: there is one table of it".into(),
        ));
    }
    let asked = match &args.path {
        Some(path) => ResolvedTarget::of(path, &args.tls)?,
        None => ResolvedTarget::only_mount(&args.tls)?,
    };
    let show = |sample: &Sample| sample.show(&asked, args.json);
    let mut before = Sample::take(&asked).await?;
    if args.interval.0.is_zero() {
        return show(&before).map(drop);
    }
    let mut tables = 0;
    let mut due = Instant::now();
    while args.count != Some(tables) {
        due += args.interval.0;
        tokio::time::sleep_until(due.into()).await;
        let now = Sample::take(&asked).await?;
        if !show(&now.since(&before))? {
            break;
        }
        before = now;
        tables += 1;
    }
    Ok(())
}

/// Counters up to a moment, or between two.
struct Sample {
    mount: Option<MountStats>,
    /// A mount is shown without its node where that does not answer.
    node: Result<NodeStats, Failure>,
}

impl Sample {
    async fn take(asked: &ResolvedTarget) -> Result<Sample, Failure> {
        let mount = match asked
            .mount
            .as_ref()
            .and_then(|record| Some((record, record.counters.as_deref()?)))
        {
            Some((record, socket)) => Some(
                http::mount_stats(socket)
                    .await
                    .map_err(|error| Failure::of(record.mountpoint.shown(), error))?,
            ),
            None => None,
        };
        let node = match asked.ask(AdminRequest::Stats).await {
            Ok(AdminReply::Stats(stats)) => Ok(*stats),
            Ok(_) => Err(Failure::Failed("a reply of the wrong kind".into())),
            Err(failure) => Err(failure),
        };
        match (&mount, node) {
            (None, Err(failure)) => Err(failure),
            (_, node) => Ok(Sample { mount, node }),
        }
    }

    /// The counters of a restarted process count from its start.
    fn since(&self, before: &Sample) -> Sample {
        let mount = self.mount.as_ref().map(|now| match &before.mount {
            Some(then) if then.uptime_ms <= now.uptime_ms => now.since(then),
            _ => now.clone(),
        });
        let node = self.node.as_ref().map_err(Clone::clone).map(|now| match &before.node {
            Ok(then) if then.uptime_ms <= now.uptime_ms => now.since(then),
            _ => now.clone(),
        });
        Sample { mount, node }
    }

    /// False once there is no reader any more.
    fn show(&self, asked: &ResolvedTarget, as_json: bool) -> Result<bool, Failure> {
        let (mount, node) = (self.mount.as_ref(), self.node.as_ref().ok());
        let missing = self.node.as_ref().err().and_then(Failure::text);
        if as_json {
            let mut told = stats::json(mount, node);
            if let Some(fields) = told.as_object_mut() {
                fields.insert("of".into(), asked.given().into());
                fields.insert("node_error".into(), json!(missing));
            }
            return output::print_one(&format!("{told}\n"));
        }
        let ms =
            mount.map(|mount| mount.uptime_ms).or(node.map(|node| node.uptime_ms)).unwrap_or(0);
        let top = if std::io::stdout().is_terminal() { FROM_THE_TOP } else { "" };
        let mut text = format!(
            "{top}{} in {:.1} s\n{}",
            asked.shown(),
            ms as f64 / 1e3,
            stats::text(mount, node)
        );
        if let Some(why) = missing {
            text += &format!("node              cannot be asked: {why}\n");
        }
        output::print_one(&(text + "\n"))
    }
}
