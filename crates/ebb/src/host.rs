//! A node in this process: opening it, and the end of it.

use crate::daemon::Report;
use crate::encryption::{self, DataDir};
use crate::failure::Failure;
use crate::output::Shown;
use crate::passthrough;
use crate::predecessor;
use crate::replicated;
use crate::settings;
use crate::signals::Signals;
use ebb_bucket::OpenError;
use ebb_cli::args;
use ebb_cli::places::{Left, RunDir};
use ebb_model::ClusterId;
use ebb_node::side_by_side::Member;
use ebb_node::{Node, Options, Stopped};
use ebb_os::{OsNet, Security};
use ebb_ports::Ports;
use futures_util::future::{try_join, try_join_all};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// After this time the opening reports the reason for the delay.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server of a volume.
pub enum Host {
    /// With the port for other mounts, if it serves them.
    Here(Rc<Node>, Option<u16>),
    Elsewhere(Elsewhere),
}

/// Another node, to join.
pub struct Elsewhere {
    pub address: String,
    pub cluster: ClusterId,
    /// Changes in this data directory that never reached the bucket.
    pub stranded: u64,
}

/// A data directory that no other process uses, until this and the node over it are dropped.
pub struct LockedDir<'a> {
    pub ports: Ports,
    data_dir: &'a DataDir<'a>,
}

impl LockedDir<'_> {
    pub fn is_encrypted(&self) -> bool {
        self.data_dir.is_encrypted()
    }

    /// The ports with the disk as a node uses it.
    pub async fn unlock(self) -> Result<Ports, Failure> {
        encryption::unlock(self.ports, self.data_dir).await
    }
}

/// Call before the first request to the storage, which may take long.
pub async fn lock<'a>(
    data_dir: &'a DataDir<'a>,
    security: &Security,
    report: &mut Report,
    signals: &mut Signals,
) -> Result<LockedDir<'a>, Failure> {
    let ports = ebb_os::ports(data_dir.path)
        .map_err(|error| Failure::of("the data directory cannot be used", error))?;
    let ports = Ports { net: Rc::new(OsNet::new(security.clone())), ..ports };
    predecessor::lock(&*ports.disk, data_dir.path, report, signals).await?;
    Ok(LockedDir { ports, data_dir })
}

/// Opens the storage and a node over it, which serves other mounts at `listen` under the name
/// of its volume. A signal ends the wait.
pub async fn open(
    url: &str,
    bucket: &args::Bucket,
    LockedDir { ports, data_dir }: LockedDir<'_>,
    listen: Option<&str>,
    mut options: Options,
    report: &mut Report,
    signals: &mut Signals,
) -> Result<Host, Failure> {
    if replicated::is_replica(data_dir.path) {
        return Err(Failure::Failed(format!(
            "{} is a replica of a volume with several nodes: only `ebb serve` can use it",
            data_dir.path.shown()
        )));
    }
    let ports = tokio::select! {
        ports = encryption::unlock(ports, data_dir) => ports?,
        () = signals.next() => return Err(interrupted()),
    };
    options.encrypted = data_dir.is_encrypted();
    let listener = match listen {
        Some(address) => {
            let listener = ports
                .net
                .listen(address)
                .await
                .map_err(|error| Failure::of("cannot listen", error))?;
            options.address =
                format!("ebb://{}/{}", reached_at(&listener.address()), options.volume);
            Some(listener)
        }
        None => None,
    };
    settings::check_members(url, bucket)?;
    let opening = async {
        let root = async {
            let settings =
                settings::bucket(bucket, options.read_only, Some(options.bucket_timeout));
            let bucket =
                async { ebb_bucket::open(&ebb_bucket::with_real_path(url)?, &settings).await };
            bucket.await.map_err(|error| cannot_open(&error, error.to_string()))
        };
        let members = bucket.members.iter().map(|member| open_member(member, &options));
        let (root, members) = try_join(root, try_join_all(members)).await?;
        match Node::open_side_by_side(ports, root, members, options).await {
            Ok(node) => {
                let port = listener
                    .as_ref()
                    .and_then(|listener| listener.address().rsplit_once(':')?.1.parse().ok());
                if let Some(listener) = listener {
                    // Before clients can attach. The kernel cannot read encrypted files by
                    // passthrough.
                    let passthrough = !data_dir.is_encrypted();
                    if passthrough
                        && let Err(error) = RunDir::of_user()
                            .and_then(|run_dir| passthrough::offer(&node, &run_dir))
                    {
                        tracing::warn!(%error, "mounts of other processes here read through the \
                            node");
                    }
                    node.ports()
                        .spawn
                        .spawn(Box::pin(ebb_node::wire::serve(node.clone(), listener)));
                }
                Ok(Host::Here(node, port))
            }
            Err(ebb_node::OpenError::Elsewhere { address, cluster, stranded, .. }) => {
                Ok(Host::Elsewhere(Elsewhere { address, cluster, stranded }))
            }
            Err(error) => Err(Failure::of(data_dir.path.shown(), error)),
        }
    };
    tokio::pin!(opening);
    tokio::select! {
        host = &mut opening => return host,
        () = signals.next() => return Err(interrupted()),
        () = tokio::time::sleep(PATIENCE) => {}
    }
    report.note(&format!(
        "opening {url}: waiting for the storage, or to see whether another node \
        that served it still lives"
    ));
    tokio::select! {
        host = &mut opening => host,
        () = signals.next() => Err(interrupted()),
    }
}

/// The disk of a node with clients elsewhere has failed: it ends without replies to them.
pub fn failed(data_dir: &Path, error: &impl std::fmt::Display) -> Failure {
    let what = "clients wait for the next start and bring back what is missing";
    Failure::Failed(format!("{} failed: {error}; {what}", data_dir.shown()))
}

/// An address for other machines: a listener at all addresses is found by the host's name.
pub fn reached_at(address: &str) -> String {
    match address.strip_prefix("0.0.0.0:").or_else(|| address.strip_prefix("[::]:")) {
        Some(port) => format!("{}:{port}", settings::host_name()),
        None => address.to_owned(),
    }
}

/// One of several buckets of a volume (O-24).
async fn open_member(member: &args::Member, options: &Options) -> Result<Member, Failure> {
    let settings = settings::member(member, options.read_only, Some(options.bucket_timeout));
    let bucket = ebb_bucket::open(&member.url, &settings).await;
    let bucket = bucket
        .map_err(|error| cannot_open(&error, format!("the bucket of {}: {error}", member.dir)))?;
    Ok(Member::new(member.dir.clone(), bucket))
}

pub fn cannot_open(error: &OpenError, text: String) -> Failure {
    match error {
        OpenError::Url { .. } | OpenError::Settings { .. } => Failure::Usage(text),
        _ => Failure::Failed(text),
    }
}

pub fn interrupted() -> Failure {
    Failure::Failed("interrupted".into())
}

/// Writes all dirty data to the bucket and stops the node. A signal ends the wait. Returns the
/// changes that have not reached the bucket; they are safe in the data directory. `read_only`:
/// there was nothing to write.
pub async fn stop(node: &Rc<Node>, read_only: bool, signals: &mut Signals) -> Option<Left> {
    crate::service::stopping();
    let why = tokio::select! {
        stopped = node.stop(true) => match stopped {
            Ok(Stopped::Released) => return None,
            Ok(Stopped::Kept { .. }) => "the bucket did not take it; the log says why".to_owned(),
            Err(error) => error.to_string(),
        },
        () = signals.next() => "it was told to end without waiting for the bucket".to_owned(),
    };
    if read_only {
        return None;
    }
    let left = Left::of(&status(node).await?, &why)?;
    tracing::warn!(
        files = left.files,
        bytes = left.bytes,
        deletes = left.deletes,
        why = left.why,
        "not everything reached the bucket"
    );
    Some(left)
}

async fn status(node: &Rc<Node>) -> Option<ebb_model::Status> {
    use ebb_model::{AdminReply, AdminRequest, Reply, Request};
    match node.handle(Request::Admin(AdminRequest::Status)).await {
        Ok(Reply::Admin(AdminReply::Status(status))) => Some(*status),
        _ => None,
    }
}
