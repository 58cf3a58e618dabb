//! Requests to a node: status, ls-dirty, flush, explain.

use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::progress::Progress;
use crate::security;
use crate::source::{Source, addresses, names};
use ebb_cli::args::{LsDirty, Target, Tls};
use ebb_cli::places::{MountRecord, RunDir};
use ebb_client::{ClientPorts, Link, WireLink};
use ebb_fuse::Mount;
use ebb_model::{
    AdminReply, AdminRequest, FileKind, FsError, Ino, Name, RefusedCounts, Reply, Request,
    RpcError, Status,
};
use ebb_os::{OsClock, OsEntropy, OsNet, OsSpawn};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often the progress of long work is polled.
pub const POLL: Duration = Duration::from_millis(250);

/// Only counting a quota of many millions of inodes keeps a node busy for this long.
const STATUS_PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait for a daemon that takes over from another one.
const SUCCESSION_PATIENCE: Duration = Duration::from_secs(30);
const SUCCESSION_POLL: Duration = Duration::from_millis(20);

/// How long a mount may take to resolve a link. It may have to load names for that.
const LINK_PATIENCE: Duration = Duration::from_secs(20);

pub async fn status(target: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::of(&target.path, &target.tls)?;
    let reply = node.ask(AdminRequest::Status).await?;
    // A lead that is lost in between costs one line.
    let nodes = match node.answer(AdminRequest::ListNodes).await {
        Ok(AdminReply::Nodes(nodes)) => nodes,
        _ => Vec::new(),
    };
    output::status(node.mount.as_ref(), &nodes, &reply, target.output)
}

pub async fn list_dirty(args: LsDirty) -> Result<(), Failure> {
    let node = ResolvedTarget::of(&args.target.path, &args.target.tls)?;
    let (mut items, mut after) = (Vec::new(), None);
    // One answer holds a limited number of files.
    let left_out = loop {
        let limit = args.limit - items.len() as u32;
        match node.ask(AdminRequest::ListDirty { limit, after }).await? {
            AdminReply::Dirty { items: more, left_out, next } => {
                items.extend(more);
                after = next.filter(|_| items.len() < args.limit as usize);
                if after.is_none() {
                    break left_out;
                }
            }
            _ => return Err(Failure::of(node.shown(), "a reply of the wrong kind")),
        }
    };
    output::reply(&AdminReply::Dirty { items, left_out, next: None }, args.target.output)
}

pub async fn flush(target: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&target.path, Last::Followed, &target.tls).await?;
    let path = node.path().await?;
    let reply =
        {
            let flushing = node.ask_explaining(AdminRequest::Flush { path }, |error| match error {
            FsError::TimedOut => Some(Failure::of(node.shown(), "the bucket has not taken \
                everything in time; `ebb status` says why")),
            FsError::ReadOnly => Some(Failure::Failed(format!(
                "{} is mounted without taking over (--take-over=never, or ro): nothing is written \
                 to the bucket from here",
                node.mount.as_ref().map_or_else(|| node.shown(), |mount| mount.mountpoint.shown())
            ))),
            _ => None,
        });
            let watching = watch(&node.address);
            tokio::select! {
                reply = flushing => reply?,
                never = watching => match never {},
            }
        };
    output::reply(&reply, target.output)?;
    match reply {
        AdminReply::Flushed { refused, .. } if refused.writes + refused.deletes > 0 => {
            Err(Failure::Failed(refusal(&refused)))
        }
        _ => Ok(()),
    }
}

/// The requests of a flush that the store refused, in one line.
fn refusal(refused: &RefusedCounts) -> String {
    let RefusedCounts { writes, deletes, reasons } = refused;
    let count = |count: u64, one: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {one}s")),
    };
    let counts: Vec<String> =
        [count(*writes, "write"), count(*deletes, "delete")].into_iter().flatten().collect();
    format!(
        "the store refuses {}: {}; they are tried again, and `ebb status` tells of them",
        counts.join(" and "),
        reasons.join("; ")
    )
}

/// Shows the bytes left to flush, as often as the node answers. The flush itself reports its end.
async fn watch(address: &NodeAddress) -> Infallible {
    let mut progress = Progress::new("flush");
    loop {
        tokio::time::sleep(POLL).await;
        if let Ok(status) = node_status(address).await {
            progress.update(&status);
        }
    }
}

pub async fn explain(target: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&target.path, Last::Named, &target.tls).await?;
    let reply = node.ask(AdminRequest::Explain { path: node.path().await? }).await?;
    output::reply_on(node.mount.as_ref(), &reply, target.output)
}

pub async fn node_status(address: &NodeAddress) -> Result<Status, Failure> {
    match ask(address, AdminRequest::Status).await {
        Ok(AdminReply::Status(status)) => Ok(*status),
        Ok(_) => Err(Failure::of(address, "a reply of the wrong kind")),
        Err(error) => Err(Failure::of(address, error)),
    }
}

/// The meaning of a path whose last name is a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// The link's target.
    Followed,
    /// The name itself, unless a `/` follows it.
    Named,
}

/// Where a node listens, and how connections to it are secured.
#[derive(Clone)]
pub struct NodeAddress {
    /// `host:port`, several of them separated by commas, or `unix:/path`.
    address: String,
    tls: Tls,
}

impl NodeAddress {
    /// `address` is `host:port`.
    pub fn at(address: &str, tls: &Tls) -> NodeAddress {
        NodeAddress { address: address.to_owned(), tls: tls.clone() }
    }

    /// `given` stands on the command line, and takes precedence over the settings of the mount.
    pub fn of(record: &MountRecord, given: &Tls) -> NodeAddress {
        let tls = match given {
            Tls { tls: None, insecure: false } => {
                Tls { tls: record.tls.clone(), insecure: record.insecure }
            }
            given => given.clone(),
        };
        NodeAddress { address: record.control.clone(), tls }
    }
}

impl std::fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

/// The node that a path or address on the command line means.
#[derive(Clone)]
pub struct ResolvedTarget {
    /// The target as the user gave it.
    given: PathBuf,
    pub address: NodeAddress,
    /// The volume named by the target; the node must serve it.
    volume: Option<String>,
    /// The path from the root of the mount, or of the volume if there is no mount.
    pub below: Vec<Name>,
    /// The mount that the path is on, if it is on one.
    pub mount: Option<MountRecord>,
}

impl ResolvedTarget {
    pub fn of(target: &Path, tls: &Tls) -> Result<ResolvedTarget, Failure> {
        let run_dir = RunDir::of_user()
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        let found = run_dir.find(target).map_err(|error| Failure::of(target.shown(), error))?;
        match found {
            Some((record, below)) => ResolvedTarget::on_mount(target, record, &below, tls),
            None => served(target, tls)?.ok_or_else(|| {
                let what = match Mount::has(target) {
                    Ok(true) => {
                        "is on a mount of ebb that another user has made, and only that \
                        user and root can ask"
                    }
                    _ => {
                        "is on no mount of ebb, nor is it HOST:PORT of a node or \
                        ebb://HOST:PORT[/VOLUME]"
                    }
                };
                Failure::Usage(format!("{} {what}", target.shown()))
            }),
        }
    }

    /// The same, with symbolic links on the path followed. The node does not follow links: it would
    /// find nothing below a link, or operate on the link itself. The mount is accessed only at a
    /// link: a kernel that looks up a missing name caches it as absent, even after a restore from
    /// the trash.
    pub async fn at(target: &Path, last: Last, tls: &Tls) -> Result<ResolvedTarget, Failure> {
        let last =
            if target.as_os_str().as_bytes().ends_with(b"/") { Last::Followed } else { last };
        let mut asked = ResolvedTarget::of(target, tls)?;
        while let Some((link, rest)) = asked.first_link(last).await? {
            let failed = |why: String| Failure::of(target.shown(), why);
            let real = real_path(&link)
                .ok_or_else(|| failed("the mount does not say where a link leads".into()))?;
            let real = real.map_err(|error| failed(error.to_string()))?;
            if real == link {
                break;
            }
            let path =
                rest.iter().fold(real, |path, name| path.join(OsStr::from_bytes(name.as_bytes())));
            asked = ResolvedTarget { given: target.to_owned(), ..ResolvedTarget::of(&path, tls)? };
        }
        Ok(asked)
    }

    /// The first symbolic link to be followed, as a path on this machine, and the names behind it.
    /// Other faults of the path are left to the node to report.
    async fn first_link(&self, last: Last) -> Result<Option<(PathBuf, Vec<Name>)>, Failure> {
        let Some(mount) = &self.mount else { return Ok(None) };
        let line = NodeConnection::to(&self.address)
            .await
            .map_err(|error| Failure::of(self.shown(), error))?;
        let mut dir = Ino::ROOT;
        let root = self.root().await?;
        for name in &root {
            match line.call(Request::Lookup { parent: dir, name: name.clone() }).await {
                Ok(Reply::Attr(attr)) => dir = attr.ino,
                _ => return Ok(None),
            }
        }
        let mut at = mount.mountpoint.clone();
        for (depth, name) in self.below.iter().enumerate() {
            let rest = &self.below[depth + 1..];
            if rest.is_empty() && last == Last::Named {
                break;
            }
            at.push(OsStr::from_bytes(name.as_bytes()));
            match line.call(Request::Lookup { parent: dir, name: name.clone() }).await {
                Ok(Reply::Attr(attr)) if attr.kind == FileKind::Symlink => {
                    return Ok(Some((at, rest.to_vec())));
                }
                Ok(Reply::Attr(attr)) => dir = attr.ino,
                _ => break,
            }
        }
        Ok(None)
    }

    /// The mount of this machine, where there is just one.
    pub fn only_mount(tls: &Tls) -> Result<ResolvedTarget, Failure> {
        let run_dir = RunDir::of_user()
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        let records = run_dir
            .records()
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        let mut alive: Vec<MountRecord> =
            records.into_iter().filter(MountRecord::is_served).collect();
        match (alive.pop(), alive.is_empty()) {
            (None, _) => {
                Err(Failure::Usage("nothing is mounted: say which node by HOST:PORT".into()))
            }
            (Some(record), true) => {
                ResolvedTarget::on_mount(&record.mountpoint.clone(), record, Path::new(""), tls)
            }
            (Some(last), false) => {
                let all = alive.iter().chain([&last]).map(|record| record.mountpoint.shown());
                Err(Failure::Usage(format!(
                    "say which mount: {}",
                    all.collect::<Vec<_>>().join(", ")
                )))
            }
        }
    }

    /// The target as the user gave it.
    pub fn shown(&self) -> String {
        self.given.shown()
    }

    /// The same for programs.
    pub fn given(&self) -> String {
        self.given.to_string_lossy().into_owned()
    }

    fn on_mount(
        target: &Path,
        record: MountRecord,
        below: &Path,
        tls: &Tls,
    ) -> Result<ResolvedTarget, Failure> {
        let record = succeeded(record);
        let mountpoint = record.mountpoint.shown();
        if !record.daemon.is_alive() {
            return Err(Failure::Failed(format!(
                "the daemon of {mountpoint} (process {}) has ended; `{}` goes on where it was, \
                 with the other flags that it had, `ebb umount {mountpoint}` clears it away",
                record.daemon.pid,
                record.again()
            )));
        }
        let below = names(below)
            .ok_or_else(|| Failure::Usage(format!("{} cannot be a path", target.shown())))?;
        Ok(ResolvedTarget {
            given: target.to_owned(),
            address: NodeAddress::of(&record, tls),
            volume: None,
            below,
            mount: Some(record),
        })
    }

    /// The target as a path from the root of the volume.
    pub async fn path(&self) -> Result<Vec<Name>, Failure> {
        Ok([&self.root().await?[..], &self.below].concat())
    }

    /// The directory of the volume that the mount shows. It may have been renamed since it was
    /// mounted.
    pub async fn root(&self) -> Result<Vec<Name>, Failure> {
        let Some(mount) = &self.mount else { return Ok(Vec::new()) };
        let gone = || {
            Failure::of(
                self.shown(),
                format!("the directory that {} shows has been removed", mount.mountpoint.shown()),
            )
        };
        match mount.root {
            None => names(&mount.subdirectory).ok_or_else(gone),
            Some(root) => match self.ask(AdminRequest::Paths { inos: vec![root] }).await? {
                AdminReply::Paths(paths) => {
                    let path = paths.into_iter().next().flatten();
                    path.and_then(|path| names(Path::new(OsStr::from_bytes(&path))))
                        .ok_or_else(gone)
                }
                _ => Err(Failure::of(self.shown(), "a reply of the wrong kind")),
            },
        }
    }

    pub fn is_on_mount_of(&self, other: &ResolvedTarget) -> bool {
        let mountpoint =
            |asked: &ResolvedTarget| asked.mount.as_ref().map(|mount| mount.mountpoint.clone());
        self.is_on_node_of(other) && mountpoint(self) == mountpoint(other)
    }

    /// The node has the volume that was named, if one was.
    pub async fn confirm(&self) -> Result<(), Failure> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let found = node_status(&self.address).await?.volume;
        if found == *volume {
            Ok(())
        } else {
            Err(Failure::of(self.shown(), format!("the node there serves {found}")))
        }
    }

    pub fn is_on_node_of(&self, other: &ResolvedTarget) -> bool {
        self.address.address == other.address.address && self.volume == other.volume
    }

    /// The node's reply, for callers that handle refusals themselves.
    pub async fn answer(&self, request: AdminRequest) -> Result<AdminReply, AskError> {
        ask(&self.address, request).await
    }

    pub async fn ask(&self, request: AdminRequest) -> Result<AdminReply, Failure> {
        self.ask_explaining(request, |_| None).await
    }

    /// `tell` explains a refusal of this request, where it can say more than the general message.
    pub async fn ask_explaining(
        &self,
        request: AdminRequest,
        tell: impl Fn(&FsError) -> Option<Failure>,
    ) -> Result<AdminReply, Failure> {
        self.confirm().await?;
        ask(&self.address, request).await.map_err(|error| {
            let told = if let AskError::Rpc(RpcError::Refused(error)) = &error {
                tell(error)
            } else {
                None
            };
            told.unwrap_or_else(|| match error {
                AskError::Rpc(RpcError::Refused(FsError::TimedOut)) => Failure::of(
                    self.shown(),
                    "the bucket has not answered in time; `ebb status` says why",
                ),
                AskError::Rpc(RpcError::Refused(FsError::Io)) => {
                    Failure::of(self.shown(), "storage failed; `ebb status` and the log say more")
                }
                error => Failure::of(self.shown(), error),
            })
        })
    }
}

/// Runs in a thread of its own, because the file system there may hang for ever; then the thread is
/// abandoned, and the result is `None`.
fn real_path(path: &Path) -> Option<io::Result<PathBuf>> {
    let (answer, answered) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        // The receiver may have stopped waiting.
        answer.send(path.canonicalize()).ok();
    });
    answered.recv_timeout(LINK_PATIENCE).ok()
}

/// The record of a mount. If the recorded daemon has died, that of the daemon which takes over.
fn succeeded(mut record: MountRecord) -> MountRecord {
    let began = Instant::now();
    while !record.daemon.is_alive() && record.is_served() && began.elapsed() < SUCCESSION_PATIENCE {
        std::thread::sleep(SUCCESSION_POLL);
        let now = RunDir::of_user().and_then(|run_dir| run_dir.read(&record.mountpoint));
        record = now.ok().flatten().unwrap_or(record);
    }
    record
}

/// `ebb://HOST:PORT/VOLUME[/SUBDIRECTORY]`, or `HOST:PORT` with any volume, unless a file has that
/// name. Both can have several addresses, separated by commas.
fn served(target: &Path, tls: &Tls) -> Result<Option<ResolvedTarget>, Failure> {
    let Some(text) = target.to_str() else { return Ok(None) };
    let given = target.to_owned();
    match Source::parse(text) {
        Ok(Source::Served { addresses, volume, subdirectory }) => {
            return Ok(Some(ResolvedTarget {
                given,
                address: NodeAddress { address: addresses.join(","), tls: tls.clone() },
                volume: Some(volume),
                below: subdirectory,
                mount: None,
            }));
        }
        Ok(Source::Storage { url }) => {
            return Err(Failure::Usage(format!(
                "{url} is storage: say which mount or node of it is meant"
            )));
        }
        Err(_) => {}
    }
    let is_address = addresses(text).is_ok() && std::fs::symlink_metadata(target).is_err();
    Ok(is_address.then(|| ResolvedTarget {
        given,
        address: NodeAddress { address: text.to_owned(), tls: tls.clone() },
        volume: None,
        below: Vec::new(),
        mount: None,
    }))
}

pub enum AskError {
    Rpc(RpcError),
    /// No node leads the volume, for these reasons.
    NoLeader(String),
    /// There is no connection, for this reason.
    Unreachable(String),
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AskError::Rpc(error) => error.fmt(f),
            AskError::NoLeader(why) => {
                write!(f, "no node of the volume leads at present: {why}")
            }
            AskError::Unreachable(why) => write!(f, "the node cannot be reached: {why}"),
        }
    }
}

/// One request over a connection of its own.
async fn ask(address: &NodeAddress, request: AdminRequest) -> Result<AdminReply, AskError> {
    let line = NodeConnection::to(address).await?;
    // Other work takes as long as it takes.
    let patience = if request == AdminRequest::Status { STATUS_PATIENCE } else { Duration::MAX };
    let Ok(answer) = tokio::time::timeout(patience, line.call(Request::Admin(request))).await
    else {
        let secs = patience.as_secs();
        return Err(AskError::Unreachable(format!(
            "{address} has said nothing for {secs} s: it hangs, or is no node of ebb"
        )));
    };
    match answer.map_err(|error| line.explain(error))? {
        Reply::Admin(reply) => Ok(reply),
        _ => Err(AskError::Unreachable("a reply of the wrong kind".into())),
    }
}

/// A connection to a node, for queries only. It does not become a client: the node's clients would
/// have to stop caching because of another one.
pub struct NodeConnection {
    link: WireLink,
}

impl NodeConnection {
    pub async fn to(address: &NodeAddress) -> Result<NodeConnection, AskError> {
        let NodeAddress { address, tls } = address;
        let security = security::open(tls).map_err(AskError::Unreachable)?;
        let ports = ClientPorts {
            clock: Rc::new(OsClock),
            entropy: Rc::new(OsEntropy),
            spawn: Rc::new(OsSpawn),
        };
        let net = Rc::new(OsNet::new(security));
        let addresses: Vec<String> = match address.starts_with("unix:") {
            true => vec![address.clone()],
            false => address.split(',').map(Into::into).collect(),
        };
        let line = NodeConnection { link: WireLink::new(net, ports, addresses) };
        match line.link.connect().await {
            Ok(()) => Ok(line),
            Err(error) => Err(line.explain(error)),
        }
    }

    pub async fn call(&self, request: Request) -> Result<Reply, RpcError> {
        self.link.ask(request).await
    }

    /// Adds the reason why there is no connection, or no leader.
    pub fn explain(&self, error: RpcError) -> AskError {
        match error {
            RpcError::Lost => AskError::Unreachable(self.link.trouble()),
            RpcError::NotLeader { .. } => AskError::NoLeader(self.link.trouble()),
            error => AskError::Rpc(error),
        }
    }
}
