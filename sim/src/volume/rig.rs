//! The shipped node and client, put together as the binary does it.

use crate::{Process, SimBucket};
use bytes::{Bytes, BytesMut};
use ebb_client::{
    AttachError, Client, ClientPorts, HandoverState, Link, LocalLink, Options as ClientOptions,
    WireLink,
};
use ebb_encryption::{EncryptionError, Key};
use ebb_format::head;
use ebb_model::*;
use ebb_node::head::HEAD_KEY;
use ebb_node::{Node, OpenError, Options, wire};
use ebb_ports::{DiskError, Ports};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::oracle::{SeenNode, SeenTree};

pub(super) const PORT: u16 = 7000;
pub const VOLUME: &str = "ebb";

/// The directory that other programs change in the bucket.
pub const OTHERS: &str = "others";

/// Opens a node in a process. It lives and dies with the process.
pub async fn open(
    process: &Process,
    bucket: &SimBucket,
    options: &Options,
) -> Option<Result<Rc<Node>, OpenError>> {
    open_on(process, bucket, options, Medium::Plain).await
}

/// The path of the inode's store file in the data directory of the volume's owner.
pub fn store_file(bucket: &SimBucket, ino: Ino) -> String {
    let head = &bucket.objects()[HEAD_KEY];
    let cluster = head::decode(&head.body).expect("an owner wrote it").cluster;
    format!("store/{cluster}/{:016x}", ino.0)
}

/// The state of a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    Plain,
    Encrypted,
}

pub async fn open_on(
    process: &Process,
    bucket: &SimBucket,
    options: &Options,
    medium: Medium,
) -> Option<Result<Rc<Node>, OpenError>> {
    let (ports, port, options) = (process.ports.clone(), process.bucket(bucket), options.clone());
    let opening = async move {
        let ports = if medium == Medium::Encrypted { encrypted(ports).await? } else { ports };
        Node::open(ports, Some(port), options).await
    };
    process.call(opening).await
}

async fn encrypted(ports: Ports) -> Result<Ports, DiskError> {
    ports.disk.lock()?;
    let key = Key::parse(&[7; 32]).expect("32 bytes are a key");
    match ebb_encryption::open(ports.disk.clone(), Some(&key), ports.entropy.clone()).await {
        Ok(disk) => Ok(Ports { disk, ..ports }),
        Err(EncryptionError::Disk(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// A client in the node's own process.
pub async fn attach_embedded(
    process: &Process,
    node: &Rc<Node>,
) -> Option<Result<Client, AttachError>> {
    attach(process, local_link(node), "embedded".into(), None).await
}

/// A client in a process of its own.
pub async fn attach_wire(process: &Process, server: &str) -> Option<Result<Client, AttachError>> {
    attach(process, wire_link(process, server), process.name().to_owned(), None).await
}

/// A client that leaves its handover state to a successor, and may be a successor itself.
pub async fn attach_resumed(
    process: &Process,
    link: Rc<dyn Link>,
    handover: Rc<HandoverState>,
) -> Option<Result<Client, AttachError>> {
    attach(process, link, process.name().to_owned(), Some(handover)).await
}

async fn attach(
    process: &Process,
    link: Rc<dyn Link>,
    name: String,
    handover: Option<Rc<HandoverState>>,
) -> Option<Result<Client, AttachError>> {
    let (ports, options) = (ClientPorts::from(&process.ports), ClientOptions::new(VOLUME, name));
    let attaching = async move {
        match handover {
            Some(handover) => Client::attach_resumed(link, ports, options, handover).await,
            None => Client::attach(link, ports, options).await,
        }
    };
    process.call(attaching).await
}

pub fn local_link(node: &Rc<Node>) -> Rc<dyn Link> {
    let (handle, notices) = (node.clone(), node.clone());
    Rc::new(LocalLink::new(
        move |request| handle.handle(request),
        move |session| {
            let node = notices.clone();
            Box::pin(async move { node.next_notice(session).await })
        },
    ))
}

pub fn wire_link(process: &Process, server: &str) -> Rc<dyn Link> {
    Rc::new(WireLink::new(
        process.ports.net.clone(),
        ClientPorts::from(&process.ports),
        [format!("{server}:{PORT}")],
    ))
}

/// Serves clients over the network until the process ends, which it does by itself if the
/// node's disk fails.
pub async fn serve(process: &Process, machine: &str, node: &Rc<Node>) {
    let (ending, failing) = (process.clone(), node.clone());
    process.spawn(async move {
        failing.failure().await;
        ending.kill();
    });
    let (net, node) = (process.ports.net.clone(), node.clone());
    let address = format!("{machine}:{PORT}");
    process.spawn(async move {
        let listener =
            net.listen(&address).await.expect("the port is free: its last owner is dead");
        wire::serve(node, listener).await;
    });
}

/// Everything that a client can see of the volume, but [`OTHERS`].
pub async fn walk(client: &Client) -> Result<SeenTree, FsError> {
    let mut tree = SeenTree::new();
    let mut todo = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let node = see(client, ino).await?;
        if node.attr.kind == FileKind::Directory {
            let (mut after, mut hidden) = (Cookie::START, 0);
            loop {
                let page = client.readdir(ino, after, 1000).await?;
                for (entry, _) in &page.entries {
                    after = entry.cookie;
                    if path.is_empty() && entry.name.as_bytes() == OTHERS.as_bytes() {
                        hidden = 1;
                        continue;
                    }
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(entry.name.as_bytes());
                    todo.push((below, entry.ino));
                }
                if page.end {
                    break;
                }
            }
            // Counted when the names were loaded.
            let mut attr = client.getattr(ino).await?;
            attr.nlink -= hidden;
            tree.insert(path, SeenNode { attr, ..node });
        } else {
            tree.insert(path, node);
        }
    }
    Ok(tree)
}

async fn see(client: &Client, ino: Ino) -> Result<SeenNode, FsError> {
    let attr = client.getattr(ino).await?;
    let target =
        if attr.kind == FileKind::Symlink { client.readlink(ino).await? } else { Bytes::new() };
    let mut xattrs = BTreeMap::new();
    for name in client.listxattr(ino).await? {
        xattrs.insert(name.clone(), client.getxattr(ino, name).await?);
    }
    let mut content = BytesMut::new();
    if attr.kind == FileKind::Regular {
        while (content.len() as u64) < attr.size_bytes {
            let piece = client.read(ino, content.len() as u64, MAX_IO_BYTES).await?;
            if piece.is_empty() {
                break;
            }
            content.extend_from_slice(&piece);
        }
    }
    Ok(SeenNode { attr, target, xattrs, content: content.freeze() })
}

/// Makes the root of the volume a quota root.
pub async fn limit_inodes(client: &Client, inodes: u64) -> Result<(), FsError> {
    let limits = Some(QuotaLimits { bytes: None, inodes: Some(inodes) });
    client.admin(AdminRequest::SetQuota { path: vec![], limits }).await.map(drop)
}

/// Reads all files in the trash, which [`walk`] does not reach: damage from a power cut to clean
/// blocks that were being written shows only on reads.
pub async fn read_trash(client: &Client) -> Result<(), FsError> {
    let mut next = Some(TrashPoint::default());
    while let Some(from) = next {
        let request = AdminRequest::ListTrash { path: vec![], from };
        let AdminReply::Trash { entries, next: further } = client.admin(request).await? else {
            return Err(FsError::Invalid);
        };
        for entry in entries {
            see(client, entry.ino).await?;
        }
        next = further;
    }
    Ok(())
}

/// Empties the trash.
pub async fn empty_trash(client: &Client) -> Result<(), FsError> {
    let mut next = Some(TrashPoint::default());
    while let Some(from) = next {
        let request = AdminRequest::EmptyTrash {
            path: vec![],
            until: Time { secs: i64::MAX, nanos: 0 },
            from,
        };
        let AdminReply::Emptied { next: further, .. } = client.admin(request).await? else {
            return Err(FsError::Invalid);
        };
        next = further;
    }
    Ok(())
}

/// `ebb fsck --bucket`, all batches of it.
pub async fn fsck(client: &Client) -> Result<FsckReport, FsError> {
    let AdminReply::Fsck(mut report) = client.admin(AdminRequest::Fsck).await? else {
        return Err(FsError::Invalid);
    };
    let mut next = Some(FsckPoint::START);
    while let Some(from) = next {
        let AdminReply::FsckBatch(part) = client.admin(AdminRequest::FsckBucket { from }).await?
        else {
            return Err(FsError::Invalid);
        };
        report.add(part.report);
        next = part.next;
    }
    Ok(report)
}
