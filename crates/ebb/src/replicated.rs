//! `ebb serve` of a replicated volume: this process is one node of several.
//!
//! A node that has led and lost the lead, or whose log has failed, ends. The process then executes
//! itself again with the same arguments, under the same process id.

use crate::ask::{self, NodeAddress};
use crate::data_dir;
use crate::failure::Failure;
use crate::host::{self, LockedDir};
use crate::http::{self, Metrics};
use crate::output::{self, Shown};
use crate::signals::Signals;
use crate::{service, settings};
use ebb_cli::args::{self, Tls};
use ebb_model::{AdminRequest, Request};
use ebb_node::{Host, HostOptions, Options};
use ebb_ports::Listener;
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Voters of a volume for which no number is given.
const DEFAULT_VOTERS: u8 = 3;

/// A process executes itself again at most once in this time.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// Between two looks whether the node has another part in its volume, for the log.
const PART_INTERVAL: Duration = Duration::from_millis(100);

/// How long a node that joins waits for one that answers.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

const JOIN_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the data directory is a replica of a volume with several nodes.
pub fn is_replica(data_dir: &Path) -> bool {
    data_dir.join("replica").exists()
}

/// Whether to serve a replicated volume. Refuses settings that such a volume cannot have.
pub fn is_wanted(args: &args::Serve, data_dir: &Path) -> Result<bool, Failure> {
    let is_replica = is_replica(data_dir);
    if args.voters.is_none() && args.join.is_none() && !is_replica {
        return Ok(false);
    }
    let refused = |what: &str| Err(Failure::Usage(format!("a replicated volume {what}")));
    if args.node.take_over == args::TakeOver::Never {
        return refused("cannot be served read-only: --take-over=never is for one node");
    }
    if !args.bucket.members.is_empty() {
        return refused(
            "has one bucket: the tables [[bucket]] of the configuration file are not \
                        possible",
        );
    }
    if args.listen.ends_with(":0") {
        return refused("needs a port that stays the same: --listen HOST:PORT");
    }
    if args.join.is_some() && !is_replica && data_dir::may_hold_changes(data_dir) {
        return Err(Failure::Failed(format!(
            "{} holds a volume already: --join needs an empty data directory",
            data_dir.shown()
        )));
    }
    Ok(true)
}

/// Serves until a signal.
pub async fn run(
    args: &args::Serve,
    tls: &Tls,
    data_dir: &Path,
    locked: LockedDir<'_>,
    options: Options,
    metrics: Option<http::Listener>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let started = Instant::now();
    let opening = open(args, tls, data_dir, locked, options);
    let (host, listener) = tokio::select! {
        opened = opening => opened?,
        () = signals.next() => return Err(host::interrupted()),
    };
    let node = host.node_id();
    let address = host.address().to_owned();
    tokio::task::spawn_local(host.clone().serve(listener));
    if let Some(metrics) = metrics {
        metrics.answer(Metrics { mount: None, node: None, host: Some(host.clone()) });
    }
    output::print(&format!(
        "serving ebb://{address}/{} over {} as node {node}\n",
        args.name, args.backing
    ))?;
    service::ready();
    let why = tokio::select! {
        () = signals.next() => return stop(&host, signals).await,
        why = host.failure() => why,
        never = log_parts(&host) => match never {},
    };
    if host.is_removed() {
        return Err(Failure::Failed(format!(
            "node {node} was removed from its volume: {} is of no use any more",
            data_dir.shown()
        )));
    }
    tracing::warn!(%node, why, "this node starts anew");
    tokio::select! {
        () = tokio::time::sleep(RESTART_INTERVAL.saturating_sub(started.elapsed())) => {}
        () = signals.next() => return Ok(()),
    }
    Err(execute_again())
}

async fn open(
    args: &args::Serve,
    tls: &Tls,
    data_dir: &Path,
    locked: LockedDir<'_>,
    mut options: Options,
) -> Result<(Rc<Host>, Box<dyn Listener>), Failure> {
    options.encrypted = locked.is_encrypted();
    let ports = locked.unlock().await?;
    let bucket_settings = settings::bucket(&args.bucket, false, Some(options.bucket_timeout));
    let bucket = async {
        ebb_bucket::open(&ebb_bucket::with_real_path(&args.backing)?, &bucket_settings).await
    };
    let bucket = bucket.await.map_err(|error| host::cannot_open(&error, error.to_string()))?;
    if let Some(join) = args.join.as_ref().filter(|_| !is_replica(data_dir)) {
        expect_volume(join, tls, &args.name, &bucket.describe()).await?;
    }
    let listener = ports.net.listen(&args.listen).await;
    let listener = listener.map_err(|error| Failure::of("cannot listen", error))?;
    let address = host::reached_at(&listener.address());
    options.address = format!("ebb://{address}/{}", args.name);
    let host_options = HostOptions {
        address,
        join: args.join.clone(),
        voters: args.voters.unwrap_or(DEFAULT_VOTERS).into(),
    };
    let host = Host::open(ports, Some(bucket), options, host_options).await;
    host.map(|host| (host, listener)).map_err(|error| Failure::of(data_dir.shown(), error))
}

/// Refuses to join a volume of another name, or over other storage. A node becomes a member when it
/// joins, so this comes before.
async fn expect_volume(join: &str, tls: &Tls, name: &str, backing: &str) -> Result<(), Failure> {
    let address = NodeAddress::at(join, tls);
    let began = Instant::now();
    let status = loop {
        match ask::node_status(&address).await {
            Ok(status) => break status,
            Err(failure) if began.elapsed() >= JOIN_PATIENCE => return Err(failure),
            Err(failure) => {
                let why = failure.text().unwrap_or_default();
                tracing::info!(why, "the volume cannot be joined yet");
            }
        }
        tokio::time::sleep(JOIN_INTERVAL).await;
    };
    if (status.volume.as_str(), status.backing.as_str()) != (name, backing) {
        return Err(Failure::Failed(format!(
            "{join} serves {} over {}, not {name} over {backing}: --name and --backing must be \
             those of the volume",
            status.volume, status.backing
        )));
    }
    Ok(())
}

/// Logs each part that the node takes in its volume.
async fn log_parts(host: &Host) -> Infallible {
    let (node, address) = (host.node_id(), host.address());
    let mut logged = String::new();
    loop {
        let part = host.describe();
        if part != logged {
            tracing::info!(%node, address, part, "the part of this node in its volume");
            logged = part;
        }
        tokio::time::sleep(PART_INTERVAL).await;
    }
}

/// Writes what is dirty to the bucket, and hands the lead over.
async fn stop(host: &Rc<Host>, signals: &mut Signals) -> Result<(), Failure> {
    service::stopping();
    let Some(node) = host.leading() else { return Ok(()) };
    tracing::info!(
        "stopping: writing what is dirty to the bucket, then handing over the lead; a second \
         signal ends without waiting"
    );
    let stopping = async {
        let flush = AdminRequest::Flush { path: Vec::new() };
        if let Err(error) = node.handle(Request::Admin(flush)).await {
            tracing::warn!(%error, "not everything reached the bucket: it is safe in the data \
                directory, and other nodes cannot read it before this one runs again");
        }
        host.stop().await;
    };
    tokio::select! {
        () = stopping => {}
        why = host.failure() => tracing::info!(why, "the node has ended"),
        () = signals.next() => {}
    }
    Ok(())
}

/// Replaces this process by a new run of the same command. Its descriptors are closed, and with
/// them its lock of the data directory. Returns only if that fails.
fn execute_again() -> Failure {
    let mut command = Command::new("/proc/self/exe");
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    Failure::of("this node cannot start anew", command.args(args).exec())
}
