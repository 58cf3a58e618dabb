//! The workload of clients: random operations on few names, so that they collide.

use super::rig::OTHERS;
use crate::oracle::{ClientId, Event, History, Op, Outcome, SeenTree, StreamId};
use crate::{Executor, Rate, Rng};
use bytes::Bytes;
use ebb_client::{Client, Written};
use ebb_model::*;
use ebb_ports::PortFuture;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Inode ids that clients have been told of, whether or not they still exist.
#[derive(Clone, Default)]
pub struct Known {
    inos: Rc<RefCell<Inos>>,
}

#[derive(Default)]
struct Inos {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    others: Vec<Ino>,
}

impl Known {
    /// Starts anew with the inodes of `tree`.
    pub fn reset(&self, tree: &SeenTree) {
        *self.inos.borrow_mut() = Inos::default();
        tree.values().for_each(|node| self.learn(&node.attr));
    }

    fn learn(&self, attr: &Attr) {
        let mut inos = self.inos.borrow_mut();
        let list = match attr.kind {
            FileKind::Directory => &mut inos.dirs,
            FileKind::Regular => &mut inos.files,
            _ => &mut inos.others,
        };
        if !list.contains(&attr.ino) {
            list.push(attr.ino);
        }
    }

    fn dir(&self, rng: &Rng) -> Ino {
        let inos = self.inos.borrow();
        if inos.dirs.is_empty() || rng.below(3) == 0 { Ino::ROOT } else { recent(&inos.dirs, rng) }
    }

    fn file(&self, rng: &Rng) -> Option<Ino> {
        let inos = self.inos.borrow();
        (!inos.files.is_empty()).then(|| recent(&inos.files, rng))
    }

    fn any(&self, rng: &Rng) -> Option<Ino> {
        let inos = self.inos.borrow();
        let lists: Vec<&Vec<Ino>> = [&inos.files, &inos.dirs, &inos.files, &inos.others]
            .into_iter()
            .filter(|list| !list.is_empty())
            .collect();
        if lists.is_empty() { None } else { Some(recent(lists[rng.index(lists.len())], rng)) }
    }
}

/// Mostly one of the last few: inodes that are long gone show little.
fn recent(inos: &[Ino], rng: &Rng) -> Ino {
    let window = if rng.below(8) == 0 { inos.len() } else { inos.len().min(6) };
    inos[inos.len() - 1 - rng.index(window)]
}

/// How hard a client works.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub operations: u64,
    /// Longest pause between two operations.
    pub pause_limit: Duration,
    /// How often a write goes far behind the end of a file, which makes large objects.
    pub far: Rate,
    /// Names of a large directory that are used beside the usual few; 0: there is none.
    pub numbered: u64,
}

/// A name of the large directory.
pub fn numbered_name(number: u64) -> String {
    format!("{number:03}")
}

/// Brings bytes into the cache and drops them, independently of the workload. No client reads
/// different bytes because of that, so it is not in the history.
pub struct Warmer {
    pub client: Client,
    pub known: Known,
    pub rng: Rng,
    pub executor: Executor,
    pub leaving: Rc<Cell<bool>>,
}

impl Warmer {
    pub async fn work(self) {
        for _ in 0..self.rng.below(40) {
            self.executor
                .sleep(
                    self.executor.world(),
                    self.rng.duration(Duration::ZERO, Duration::from_millis(500)),
                )
                .await;
            if self.leaving.get() {
                return;
            }
            let Some(ino) = self.known.file(&self.rng) else { continue };
            let request = match self.rng.below(4) {
                0 => AdminRequest::Evict {
                    path: vec![],
                    from: (ino, self.rng.below(2)),
                    limit_bytes: self.rng.below(1 << 20),
                },
                _ => {
                    let (offset, len_bytes) =
                        (self.rng.below(4) * BLOCK_BYTES, self.rng.below(2 * CHUNK_BYTES));
                    AdminRequest::Warm { ino, offset, len_bytes }
                }
            };
            // It may be gone, no file, or out of reach.
            let (Ok(_) | Err(_)) = self.client.admin(request).await;
        }
    }
}

/// How a worker gets an operation done.
pub type Ask = Box<dyn Fn(Op) -> PortFuture<'static, Outcome>>;

/// Asks this client.
pub fn ask(client: &Client) -> Ask {
    let client = client.clone();
    Box::new(move |op| {
        let client = client.clone();
        Box::pin(async move { perform(&client, op).await })
    })
}

/// One thread of a client. It is spawned in the client's process, and ends with it.
pub struct Worker {
    pub ask: Ask,
    pub id: ClientId,
    pub history: History,
    pub known: Known,
    pub rng: Rng,
    pub executor: Executor,
    pub pace: Pace,
    /// The client is being detached: it requests nothing more, and an error now means nothing.
    pub leaving: Rc<Cell<bool>>,
}

impl Worker {
    pub async fn work(self) {
        let mut open = Vec::new();
        let streams = self.rng.split("streams");
        for _ in 0..self.pace.operations {
            let pause = if self.rng.below(10) == 0 { 20 } else { 1 };
            self.executor
                .sleep(
                    self.executor.world(),
                    self.rng.duration(Duration::ZERO, self.pace.pause_limit) * pause,
                )
                .await;
            if self.leaving.get() {
                return;
            }
            let Some(op) = self.choose(&mut open) else { continue };
            match op {
                Op::ReadDir { dir, .. } => self.read_dir(dir, &streams).await,
                op => drop(self.run(op).await),
            }
        }
        for ino in open.into_iter().filter(|_| !self.leaving.get()) {
            self.run(Op::Close { ino }).await;
        }
    }

    /// Asks, and records both ends.
    async fn run(&self, op: Op) -> Outcome {
        let id = self.history.call(self.id, op.clone());
        let outcome = (self.ask)(op).await;
        match &outcome {
            Outcome::Attr(attr) | Outcome::CutShort { attr, .. } => self.known.learn(attr),
            Outcome::Entries { entries, .. } => {
                entries.iter().for_each(|(_, attr)| self.known.learn(attr))
            }
            _ => {}
        }
        // A client that detaches has no file open any more, even while it still waits for replies.
        if !(self.leaving.get() && matches!(outcome, Outcome::Failed(FsError::Io | FsError::Stale)))
        {
            self.history.add(Event::Return { id, outcome: outcome.clone() });
        }
        outcome
    }

    /// Reads pages to the end of the directory. Between two pages other clients change it.
    async fn read_dir(&self, dir: Ino, rng: &Rng) {
        let limit = [1, 1, 2, 3, 1000][rng.index(5)];
        let pause_limit = [Duration::ZERO, self.pace.pause_limit][rng.index(2)];
        let (mut after, stream) = (Cookie::START, self.history.new_stream());
        while let Outcome::Entries { entries, end: false } =
            self.run(Op::ReadDir { dir, after, limit, stream }).await
        {
            let Some((last, _)) = entries.last() else { return };
            after = last.cookie;
            let pause = rng.duration(Duration::ZERO, pause_limit);
            self.executor.sleep(self.executor.world(), pause).await;
            if self.leaving.get() {
                return;
            }
        }
    }

    fn choose(&self, open: &mut Vec<Ino>) -> Option<Op> {
        let rng = &self.rng;
        Some(match rng.below(100) {
            0..18 => Op::Mutate(self.make()),
            33..36 => Op::Mutate(self.fallocate()?),
            30..32 => Op::Mutate(ClientMutation::Copy {
                from: self.known.file(rng)?,
                from_offset: self.offset(),
                ino: self.known.file(rng)?,
                offset: self.offset(),
                len_bytes: [1 + rng.below(300), 100_000, 4 << 20][rng.index(3)],
                drop_set_id: false,
            }),
            32 => Op::Mutate(ClientMutation::Tmpfile {
                parent: self.known.dir(rng),
                mode: NewMode { mode: 0o660, umask: 0o022 },
            }),
            18..30 => Op::Mutate(ClientMutation::Write {
                ino: self.known.file(rng)?,
                offset: self.offset(),
                data: self.data(),
                drop_set_id: false,
            }),
            36..40 => Op::Mutate(ClientMutation::Append {
                ino: self.known.file(rng)?,
                data: self.data(),
                drop_set_id: false,
            }),
            40..45 => {
                let set = SetAttr { size_bytes: Some(self.offset()), ..SetAttr::default() };
                Op::Mutate(ClientMutation::SetAttr { ino: self.known.file(rng)?, set })
            }
            45..49 => Op::Mutate(ClientMutation::SetAttr {
                ino: self.known.any(rng)?,
                set: self.attributes(),
            }),
            49..58 => Op::Mutate(ClientMutation::Rename {
                from: self.known.dir(rng),
                name: self.name(),
                to: self.known.dir(rng),
                new_name: self.name(),
                mode: self.rename_mode(),
            }),
            58..65 => Op::Mutate(ClientMutation::Unlink {
                parent: self.known.dir(rng),
                name: self.name(),
            }),
            65..68 => {
                Op::Mutate(ClientMutation::Rmdir { parent: self.known.dir(rng), name: self.name() })
            }
            68..72 => Op::Mutate(ClientMutation::Link {
                ino: self.known.any(rng)?,
                parent: self.known.dir(rng),
                name: self.name(),
            }),
            72..76 => Op::Lookup { parent: self.known.dir(rng), name: self.name() },
            76..78 => Op::GetAttr { ino: self.known.any(rng)? },
            78..81 => Op::ReadDir {
                dir: self.known.dir(rng),
                after: Cookie::START,
                limit: 1000,
                stream: StreamId(0),
            },
            81..83 => {
                let to = [Seek::Data, Seek::Hole][rng.index(2)];
                Op::Seek { ino: self.known.file(rng)?, offset: self.offset(), to }
            }
            83..89 => Op::Read {
                ino: self.known.file(rng)?,
                offset: self.offset(),
                len_bytes: 1 + rng.index(200_000),
            },
            89 => Op::Mutate(self.xattr()?),
            90 => Op::Mutate(self.acl()?),
            91 => Op::Xattrs { ino: self.known.any(rng)? },
            92..95 => Op::Fsync { ino: self.known.file(rng)? },
            95 => Op::SyncFs,
            96..98 => {
                let ino = self.known.file(rng)?;
                open.push(ino);
                Op::Open { ino }
            }
            98 => Op::Close { ino: open.pop()? },
            _ => Op::ReadLink { ino: self.known.any(rng)? },
        })
    }

    fn make(&self) -> ClientMutation {
        let rng = &self.rng;
        // Files that are made open are closed only with their client.
        let (what, opened) = match rng.below(20) {
            0..11 => (Make::Regular, rng.below(4) == 0),
            11..17 => (Make::Directory, false),
            17..19 => {
                (Make::Symlink { target: Bytes::from(format!("to/{}", rng.below(100))) }, false)
            }
            _ => (Make::Special { kind: FileKind::Fifo, rdev: 0 }, false),
        };
        let mode = [0o644, 0o600, 0o755, 0o700][rng.index(4)];
        let mode = NewMode { mode, umask: [0, 0, 0o22, 0o77][rng.index(4)] };
        ClientMutation::Make {
            parent: self.known.dir(rng),
            name: self.name(),
            mode,
            what,
            open: opened,
        }
    }

    fn fallocate(&self) -> Option<ClientMutation> {
        let rng = &self.rng;
        let (what, keep_size) = (
            [Allocation::Reserve, Allocation::Zero, Allocation::Zero][rng.index(3)],
            rng.below(3) != 0,
        );
        let len_bytes =
            [1 + rng.below(100_000), BLOCK_BYTES * (1 + rng.below(3)), 1 << 20][rng.index(3)];
        Some(ClientMutation::Fallocate {
            ino: self.known.file(rng)?,
            offset: self.offset(),
            len_bytes,
            what,
            keep_size,
            drop_set_id: false,
        })
    }

    fn rename_mode(&self) -> RenameMode {
        match self.rng.index(8) {
            0..3 => RenameMode::Replace,
            3 => RenameMode::Whiteout { keep_target: self.rng.below(2) == 0, ino: None },
            4 | 5 => RenameMode::KeepTarget,
            _ => RenameMode::Exchange,
        }
    }

    fn attributes(&self) -> SetAttr {
        let rng = &self.rng;
        let mut set = SetAttr::default();
        match rng.below(3) {
            0 => set.mode = Some([0o640, 0o444, 0o777][rng.index(3)]),
            1 => (set.uid, set.gid) = (Some(rng.below(3) as u32), Some(rng.below(3) as u32)),
            _ => {
                let (secs, nanos) = (rng.below(1 << 31) as i64, rng.below(1_000_000_000) as u32);
                let time = SetTime::To(Time { secs, nanos });
                (set.atime, set.mtime) = match nanos % 6 {
                    0 => (Some(SetTime::Reading), None),
                    1 => (Some(time), None),
                    2 => (Some(SetTime::Now), Some(SetTime::Now)),
                    3 => (Some(time), Some(SetTime::Now)),
                    _ => (None, Some(time)),
                };
            }
        }
        set
    }

    /// One that says no more than a mode, one with somebody named, or none.
    fn acl(&self) -> Option<ClientMutation> {
        let rng = &self.rng;
        let (ino, class) = match rng.below(3) {
            0 => (self.known.any(rng)?, AclClass::Access),
            1 => (self.known.dir(rng), AclClass::Access),
            _ => (self.known.dir(rng), AclClass::Default),
        };
        let tags: &[u16] =
            [&[][..], &[1, 4, 32], &[1, 2, 4, 16, 32], &[1, 2, 4, 8, 16, 32]][rng.index(4)];
        let entry = |tag: &u16| {
            let id = if matches!(tag, 2 | 8) { rng.below(3) as u32 } else { u32::MAX };
            [&tag.to_le_bytes()[..], &(rng.below(8) as u16).to_le_bytes(), &id.to_le_bytes()]
                .concat()
        };
        let value = if tags.is_empty() {
            vec![]
        } else {
            [2, 0, 0, 0].into_iter().chain(tags.iter().flat_map(entry)).collect()
        };
        Some(ClientMutation::SetAcl { ino, class, value: value.into(), drop_set_gid: false })
    }

    fn xattr(&self) -> Option<ClientMutation> {
        let rng = &self.rng;
        let ino = self.known.any(rng)?;
        let name = Bytes::from(format!("user.{}", rng.below(3)));
        if rng.below(4) == 0 {
            return Some(ClientMutation::RemoveXattr { ino, name });
        }
        let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][rng.index(3)];
        Some(ClientMutation::SetXattr {
            ino,
            name,
            value: Bytes::from(vec![rng.next_u64() as u8; rng.index(200)]),
            mode,
        })
    }

    fn name(&self) -> Name {
        if self.pace.numbered > 0 && self.rng.below(3) == 0 {
            let name = numbered_name(self.rng.below(self.pace.numbered));
            return Name::new(name.as_bytes()).expect("a number can be a name");
        }
        let names: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"\xff\xfe"];
        let name = match self.rng.below(24) {
            0 => names[5],
            drawn => names[drawn as usize % 5],
        };
        Name::new(name).expect("these can be names")
    }

    fn offset(&self) -> u64 {
        let rng = &self.rng;
        if rng.chance(self.pace.far) {
            // Beyond the bytes of one put, beyond a part, around a chunk.
            return [300_000, 9 << 20, CHUNK_BYTES - 1000][rng.index(3)] + rng.below(2000);
        }
        match rng.below(5) {
            0 | 1 => 0,
            2 => rng.below(200),
            3 => BLOCK_BYTES * rng.below(4),
            _ => rng.below(3 * BLOCK_BYTES),
        }
    }

    /// Never zero, and told apart by when it was made.
    fn data(&self) -> Bytes {
        let rng = &self.rng;
        let len = match rng.below(6) {
            0 | 1 => 1 + rng.index(200),
            2 => 4096,
            3 => BLOCK_BYTES as usize,
            4 => 2 * BLOCK_BYTES as usize,
            _ => 1 + rng.index(150_000),
        };
        let first = rng.next_u64();
        (0..len as u64)
            .map(|at| ((first.wrapping_add(at * 7 + at / 251)) % 255) as u8 + 1)
            .collect::<Vec<u8>>()
            .into()
    }
}

pub async fn perform(client: &Client, op: Op) -> Outcome {
    let root = &Caller::ROOT;
    let done =
        |result: Result<(), FsError>| result.map_or_else(Outcome::Failed, |()| Outcome::Done);
    let attr = |result: Result<Attr, FsError>| result.map_or_else(Outcome::Failed, Outcome::Attr);
    let written = |result: Result<Written, FsError>, wanted_bytes: usize| match result {
        Ok(Written { attr, len_bytes, .. }) if len_bytes < wanted_bytes => {
            Outcome::CutShort { attr, len_bytes: len_bytes as u64 }
        }
        result => attr(result.map(|written| written.attr)),
    };
    match op {
        Op::Mutate(mutation) => match mutation {
            ClientMutation::Make { parent, name, mode, what, open } => {
                attr(client.make(root, parent, &name, mode, what, open).await)
            }
            ClientMutation::Link { ino, parent, name } => {
                attr(client.link(root, ino, parent, &name).await)
            }
            ClientMutation::Unlink { parent, name } => {
                done(client.unlink(root, parent, &name).await.map(drop))
            }
            ClientMutation::Rmdir { parent, name } => {
                done(client.rmdir(root, parent, &name).await.map(drop))
            }
            ClientMutation::Rename { from, name, to, new_name, mode } => {
                done(client.rename(root, from, &name, to, &new_name, mode).await.map(drop))
            }
            ClientMutation::SetAttr { ino, set } => attr(client.setattr(root, ino, set).await),
            ClientMutation::SetXattr { ino, name, value, mode } => {
                done(client.setxattr(root, ino, name, value, mode).await)
            }
            ClientMutation::SetAcl { ino, class, value, drop_set_gid } => {
                attr(client.set_acl(root, ino, class, value, drop_set_gid).await)
            }
            ClientMutation::RemoveXattr { ino, name } => {
                done(client.removexattr(root, ino, name).await)
            }
            ClientMutation::Write { ino, offset, data, drop_set_id } => {
                let wanted_bytes = data.len();
                written(client.write(root, ino, offset, data, drop_set_id).await, wanted_bytes)
            }
            ClientMutation::Append { ino, data, drop_set_id } => {
                let wanted_bytes = data.len();
                written(client.append(root, ino, data, drop_set_id).await, wanted_bytes)
            }
            ClientMutation::Copy { from, from_offset, ino, offset, len_bytes, drop_set_id } => {
                let copied = client
                    .copy(root, (from, from_offset), (ino, offset), len_bytes, drop_set_id)
                    .await;
                copied.map_or_else(Outcome::Failed, |done| Outcome::Copied {
                    attr: done.attr,
                    len_bytes: done.len_bytes as u64,
                })
            }
            ClientMutation::Tmpfile { parent, mode } => {
                attr(client.tmpfile(root, parent, mode).await)
            }
            ClientMutation::Fallocate { ino, offset, len_bytes, what, keep_size, drop_set_id } => {
                attr(
                    client
                        .fallocate(root, ino, (offset, len_bytes), what, keep_size, drop_set_id)
                        .await,
                )
            }
        },
        Op::Lookup { parent, name } => attr(client.lookup(parent, &name).await),
        Op::GetAttr { ino } => attr(client.getattr(ino).await),
        Op::ReadLink { ino } => {
            client.readlink(ino).await.map_or_else(Outcome::Failed, Outcome::Link)
        }
        Op::ReadDir { dir, mut after, limit, .. } => loop {
            match client.readdir(dir, after, limit).await {
                Ok(mut page) => {
                    let last = page.entries.last().map(|(entry, _)| entry.cookie);
                    page.entries.retain(|(entry, _)| entry.name.as_bytes() != OTHERS.as_bytes());
                    match last {
                        // An empty page would look like the end.
                        Some(last) if page.entries.is_empty() && !page.end => after = last,
                        _ => break Outcome::Entries { entries: page.entries, end: page.end },
                    }
                }
                Err(error) => break Outcome::Failed(error),
            }
        },
        Op::Read { ino, offset, len_bytes } => {
            client.read(ino, offset, len_bytes).await.map_or_else(Outcome::Failed, Outcome::Data)
        }
        Op::Seek { ino, offset, to } => {
            client.seek(ino, offset, to).await.map_or_else(Outcome::Failed, Outcome::Offset)
        }
        Op::Xattrs { ino } => {
            client.listxattr(ino).await.map_or_else(Outcome::Failed, Outcome::Names)
        }
        Op::Open { ino } => done(client.open(ino).await),
        Op::Close { ino } => {
            client.close(ino);
            Outcome::Done
        }
        Op::Fsync { ino } => done(client.fsync(ino).await),
        Op::SyncFs => done(client.sync_fs().await),
    }
}
