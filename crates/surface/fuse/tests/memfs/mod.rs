//! A file system in memory: the smallest thing that can be mounted and is whole enough for
//! ordinary programs. Permissions are left to the kernel.

use bytes::{Bytes, BytesMut};
use ebb_fuse::*;
use ebb_model::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct MemFs {
    tree: Arc<Mutex<Tree>>,
    pub settings: Settings,
}

#[derive(Clone, Copy)]
pub struct Settings {
    pub ttl: Duration,
    pub caching: Caching,
    /// How long every READ takes.
    pub read_delay: Duration,
    pub reports_at_close: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ttl: Duration::from_secs(60),
            caching: Caching::Keep,
            read_delay: Duration::ZERO,
            reports_at_close: true,
        }
    }
}

/// Also in the hands of a test, which plays another mount through it.
pub struct Tree {
    nodes: BTreeMap<Ino, Node>,
    next: u64,
    /// References of the kernel, to see that they are returned.
    pub references: BTreeMap<Ino, u64>,
    pub requests: u64,
    pub flushes: u64,
    /// Requests that wait for a lock, or have.
    pub lock_waits: u64,
}

struct Node {
    attr: Attr,
    content: Content,
    xattrs: BTreeMap<Bytes, Bytes>,
    opens: u32,
}

enum Content {
    File(BytesMut),
    Directory { names: BTreeMap<Name, (Cookie, Ino)>, order: BTreeMap<Cookie, Name>, next: u64 },
    Symlink(Bytes),
    Special,
}

impl MemFs {
    pub fn new(settings: Settings) -> MemFs {
        let mut tree = Tree {
            nodes: BTreeMap::new(),
            next: 2,
            references: BTreeMap::new(),
            requests: 0,
            flushes: 0,
            lock_waits: 0,
        };
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let root = tree.node(Ino::ROOT, 0o755, &Make::Directory, uid, gid);
        tree.nodes.insert(Ino::ROOT, root);
        MemFs { tree: Arc::new(Mutex::new(tree)), settings }
    }

    pub fn tree(&self) -> Arc<Mutex<Tree>> {
        self.tree.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        let mut tree = self.tree.lock().unwrap();
        tree.requests += 1;
        tree
    }

    fn entry(&self, tree: &mut Tree, ino: Ino) -> Result<EntryReply, Errno> {
        let attr = tree.get(ino)?.attr.clone();
        *tree.references.entry(ino).or_default() += 1;
        Ok(EntryReply { attr, entry_ttl: self.settings.ttl, attr_ttl: self.settings.ttl })
    }

    fn opened(&self, tree: &mut Tree, ino: Ino) -> Result<OpenReply, Errno> {
        tree.get_mut(ino)?.opens += 1;
        Ok(OpenReply { handle: Handle(ino.0), caching: self.settings.caching })
    }
}

impl Tree {
    fn get(&self, ino: Ino) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(FsError::Stale.into())
    }

    fn get_mut(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale.into())
    }

    pub fn find(&self, parent: Ino, name: &str) -> Option<Ino> {
        self.child(parent, &Name::new(name.as_bytes()).unwrap()).ok()
    }

    /// Changes a file behind the kernel's back.
    pub fn set_content(&mut self, ino: Ino, content: &[u8]) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.content = Content::File(BytesMut::from(content));
        node.attr.size_bytes = content.len() as u64;
        touch(node);
    }

    pub fn content(&self, ino: Ino) -> Vec<u8> {
        match &self.nodes[&ino].content {
            Content::File(bytes) => bytes.to_vec(),
            _ => panic!("{ino} is no file"),
        }
    }

    /// Removes a name behind the kernel's back.
    pub fn forget_name(&mut self, parent: Ino, name: &str) {
        self.detach(parent, &Name::new(name.as_bytes()).unwrap()).unwrap();
    }

    fn child(&self, parent: Ino, name: &Name) -> Result<Ino, Errno> {
        match &self.get(parent)?.content {
            Content::Directory { names, .. } => {
                names.get(name).map(|&(_, ino)| ino).ok_or(Errno::NOT_FOUND)
            }
            _ => Err(FsError::NotDirectory.into()),
        }
    }

    fn attach(&mut self, parent: Ino, name: Name, ino: Ino) -> Result<(), Errno> {
        let Content::Directory { names, order, next } = &mut self.get_mut(parent)?.content else {
            return Err(FsError::NotDirectory.into());
        };
        *next += 1;
        let cookie = Cookie(*next);
        order.insert(cookie, name.clone());
        if let Some((old, _)) = names.insert(name, (cookie, ino)) {
            order.remove(&old);
        }
        touch(self.get_mut(parent)?);
        Ok(())
    }

    fn detach(&mut self, parent: Ino, name: &Name) -> Result<Ino, Errno> {
        let Content::Directory { names, order, .. } = &mut self.get_mut(parent)?.content else {
            return Err(FsError::NotDirectory.into());
        };
        let (cookie, ino) = names.remove(name).ok_or(Errno::NOT_FOUND)?;
        order.remove(&cookie);
        touch(self.get_mut(parent)?);
        Ok(ino)
    }

    fn drop_link(&mut self, ino: Ino) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.attr.nlink -= 1;
        touch(node);
        self.reclaim(ino);
    }

    fn reclaim(&mut self, ino: Ino) {
        let referenced = self.references.contains_key(&ino);
        if self
            .nodes
            .get(&ino)
            .is_some_and(|node| node.attr.nlink == 0 && node.opens == 0 && !referenced)
        {
            self.nodes.remove(&ino);
        }
    }

    fn is_empty_dir(&self, ino: Ino) -> Result<bool, Errno> {
        match &self.get(ino)?.content {
            Content::Directory { names, .. } => Ok(names.is_empty()),
            _ => Err(FsError::NotDirectory.into()),
        }
    }

    fn node(&self, ino: Ino, mode: u16, what: &Make, uid: u32, gid: u32) -> Node {
        let time = now();
        let (content, size_bytes, rdev) = match what {
            Make::Regular => (Content::File(BytesMut::new()), 0, 0),
            Make::Directory => (
                Content::Directory { names: BTreeMap::new(), order: BTreeMap::new(), next: 0 },
                0,
                0,
            ),
            Make::Symlink { target } => (Content::Symlink(target.clone()), target.len() as u64, 0),
            Make::Special { rdev, .. } => (Content::Special, 0, *rdev),
        };
        let attr = Attr {
            ino,
            kind: what.kind(),
            mode,
            nlink: 1,
            uid,
            gid,
            rdev,
            size_bytes,
            hole_bytes: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: Version::default(),
        };
        Node { attr, content, xattrs: BTreeMap::new(), opens: 0 }
    }

    fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        what: &Make,
    ) -> Result<Ino, Errno> {
        if self.child(parent, &name).is_ok() {
            return Err(FsError::Exists.into());
        }
        let ino = Ino(self.next);
        self.next += 1;
        self.attach(parent, name, ino)?;
        let Ids { uid, gid } = cx.ids.ok_or(Errno::OVERFLOW)?;
        let node = self.node(ino, mode & !cx.umask, what, uid, gid);
        self.nodes.insert(ino, node);
        Ok(ino)
    }
}

impl Filesystem for MemFs {
    async fn lookup(&self, _: &Context, parent: Ino, name: Name) -> Result<Lookup, Errno> {
        let tree = &mut *self.lock();
        match tree.child(parent, &name) {
            Ok(ino) => self.entry(tree, ino).map(Lookup::Found),
            Err(Errno::NOT_FOUND) => Ok(Lookup::Absent { ttl: self.settings.ttl }),
            Err(errno) => Err(errno),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let tree = &mut *self.lock();
        let held = tree.references.get_mut(&ino).expect("only what was given is returned");
        *held = held.checked_sub(count).expect("no more than was given is returned");
        if *held == 0 {
            tree.references.remove(&ino);
        }
        tree.reclaim(ino);
    }

    async fn getattr(&self, _: &Context, ino: Ino, _: Option<Handle>) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: self.lock().get(ino)?.attr.clone(), ttl: self.settings.ttl })
    }

    async fn setattr(
        &self,
        _: &Context,
        ino: Ino,
        set: SetAttr,
        _: Option<Handle>,
    ) -> Result<AttrReply, Errno> {
        let tree = &mut *self.lock();
        let node = tree.get_mut(ino)?;
        if let (Some(size), Content::File(bytes)) = (set.size_bytes, &mut node.content) {
            bytes.resize(size as usize, 0);
            node.attr.size_bytes = size;
        }
        touch(node);
        let attr = &mut node.attr;
        let time = |set| match set {
            SetTime::Now | SetTime::Reading => now(),
            SetTime::To(time) => time,
        };
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        if set.drop_set_id && attr.kind == FileKind::Regular {
            attr.mode &= !0o6000;
        }
        Ok(AttrReply { attr: attr.clone(), ttl: self.settings.ttl })
    }

    async fn readlink(&self, _: &Context, ino: Ino) -> Result<Bytes, Errno> {
        match &self.lock().get(ino)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVALID),
        }
    }

    async fn make(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        what: Make,
    ) -> Result<EntryReply, Errno> {
        let tree = &mut *self.lock();
        let ino = tree.make(cx, parent, name, mode, &what)?;
        self.entry(tree, ino)
    }

    async fn unlink(&self, _: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        let ino = tree.detach(parent, &name)?;
        tree.drop_link(ino);
        Ok(())
    }

    async fn rmdir(&self, _: &Context, parent: Ino, name: Name) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        if !tree.is_empty_dir(tree.child(parent, &name)?)? {
            return Err(FsError::NotEmpty.into());
        }
        let ino = tree.detach(parent, &name)?;
        tree.drop_link(ino);
        Ok(())
    }

    async fn rename(
        &self,
        _: &Context,
        from: Ino,
        name: Name,
        to: Ino,
        new_name: Name,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        let moved = tree.child(from, &name)?;
        let replaced = tree.child(to, &new_name).ok();
        match (mode, replaced) {
            (RenameMode::KeepTarget, Some(_)) => return Err(FsError::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOT_FOUND),
            (RenameMode::Whiteout { .. }, _) => return Err(Errno::INVALID),
            (RenameMode::Exchange, Some(other)) => {
                tree.attach(from, name, other)?;
                return tree.attach(to, new_name, moved);
            }
            (_, Some(other)) if other == moved => return Ok(()),
            _ => {}
        }
        tree.detach(from, &name)?;
        tree.attach(to, new_name, moved)?;
        if let Some(replaced) = replaced {
            tree.drop_link(replaced);
        }
        Ok(())
    }

    async fn link(
        &self,
        _: &Context,
        ino: Ino,
        parent: Ino,
        name: Name,
    ) -> Result<EntryReply, Errno> {
        let tree = &mut *self.lock();
        if tree.child(parent, &name).is_ok() {
            return Err(FsError::Exists.into());
        }
        tree.attach(parent, name, ino)?;
        tree.get_mut(ino)?.attr.nlink += 1;
        self.entry(tree, ino)
    }

    async fn open(&self, _: &Context, ino: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        self.opened(&mut self.lock(), ino)
    }

    async fn create(
        &self,
        cx: &Context,
        parent: Ino,
        name: Name,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<(EntryReply, OpenReply), Errno> {
        let tree = &mut *self.lock();
        if tree.child(parent, &name).is_ok() && !flags.excludes() {
            return Err(FsError::Stale.into());
        }
        let ino = tree.make(cx, parent, name, mode, &Make::Regular)?;
        Ok((self.entry(tree, ino)?, self.opened(tree, ino)?))
    }

    async fn read(
        &self,
        _: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len_bytes: u32,
        _: bool,
    ) -> Result<Bytes, Errno> {
        assert_eq!(handle, Handle(ino.0));
        if self.settings.read_delay > Duration::ZERO {
            tokio::time::sleep(self.settings.read_delay).await;
        }
        match &self.lock().get(ino)?.content {
            Content::File(bytes) => {
                let start = bytes.len().min(offset as usize);
                let end = bytes.len().min(start + len_bytes as usize);
                Ok(Bytes::copy_from_slice(&bytes[start..end]))
            }
            _ => Err(Errno::INVALID),
        }
    }

    async fn write(
        &self,
        _: &Context,
        ino: Ino,
        _: Handle,
        offset: u64,
        data: Bytes,
        mode: WriteMode,
    ) -> Result<u32, Errno> {
        let tree = &mut *self.lock();
        let node = tree.get_mut(ino)?;
        let Content::File(bytes) = &mut node.content else { return Err(Errno::INVALID) };
        let start = if mode.append { bytes.len() } else { offset as usize };
        let end = start + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(&data);
        node.attr.size_bytes = bytes.len() as u64;
        if mode.drop_set_id {
            node.attr.mode &= !0o6000;
        }
        touch(node);
        Ok(data.len() as u32)
    }

    fn reports_at_close(&self) -> bool {
        self.settings.reports_at_close
    }

    async fn flush(&self, _: &Context, _: Ino, _: Handle, _: u64) -> Result<(), Errno> {
        self.lock().flushes += 1;
        Ok(())
    }

    async fn release(&self, _: &Context, ino: Ino, _: Handle, _: OpenFlags) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        tree.get_mut(ino)?.opens -= 1;
        tree.reclaim(ino);
        Ok(())
    }

    async fn fsync(&self, _: &Context, _: Ino, _: Handle, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    async fn statfs(&self, _: &Context, _: Ino) -> Result<VolumeStat, Errno> {
        let files = self.lock().nodes.len() as u64;
        Ok(VolumeStat {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 39,
            files,
            free_files: 1 << 30,
        })
    }

    async fn setxattr(
        &self,
        _: &Context,
        ino: Ino,
        name: Bytes,
        value: Bytes,
        mode: Option<XattrMode>,
        _: bool,
    ) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        let xattrs = &mut tree.get_mut(ino)?.xattrs;
        match (mode, xattrs.contains_key(&name)) {
            (Some(XattrMode::Create) | None, true) => Err(FsError::Exists.into()),
            (Some(XattrMode::Replace) | None, false) => Err(FsError::NoAttribute.into()),
            _ => {
                xattrs.insert(name, value);
                Ok(())
            }
        }
    }

    async fn getxattr(&self, _: &Context, ino: Ino, name: Bytes) -> Result<Bytes, Errno> {
        self.lock().get(ino)?.xattrs.get(&name).cloned().ok_or(FsError::NoAttribute.into())
    }

    async fn listxattr(&self, _: &Context, ino: Ino) -> Result<Vec<Bytes>, Errno> {
        Ok(self.lock().get(ino)?.xattrs.keys().cloned().collect())
    }

    async fn removexattr(&self, _: &Context, ino: Ino, name: Bytes) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        tree.get_mut(ino)?.xattrs.remove(&name).map(drop).ok_or(FsError::NoAttribute.into())
    }

    async fn opendir(&self, _: &Context, ino: Ino, _: OpenFlags) -> Result<OpenReply, Errno> {
        self.opened(&mut self.lock(), ino)
    }

    async fn readdir(
        &self,
        _: &Context,
        ino: Ino,
        _: Handle,
        after: Cookie,
        entries: &mut DirBuffer,
    ) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        let Content::Directory { names, order, .. } = &tree.get(ino)?.content else {
            return Err(FsError::NotDirectory.into());
        };
        let mut referenced = Vec::new();
        for (&cookie, name) in order.range(Cookie(after.0 + 1)..) {
            let (_, child) = names[name];
            let attr = tree.get(child)?.attr.clone();
            let entry =
                EntryReply { attr, entry_ttl: self.settings.ttl, attr_ttl: self.settings.ttl };
            match entries.push(name, cookie, &entry) {
                Pushed::Added { referenced: true } => referenced.push(child),
                Pushed::Added { referenced: false } => {}
                Pushed::Full => break,
            }
        }
        for child in referenced {
            *tree.references.entry(child).or_default() += 1;
        }
        Ok(())
    }

    async fn releasedir(&self, _: &Context, ino: Ino, _: Handle) -> Result<(), Errno> {
        let tree = &mut *self.lock();
        tree.get_mut(ino)?.opens -= 1;
        tree.reclaim(ino);
        Ok(())
    }

    async fn fsyncdir(&self, _: &Context, _: Ino, _: Handle, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    async fn access(&self, _: &Context, _: Ino, _: Access) -> Result<(), Errno> {
        Ok(())
    }

    /// Another owner has every lock.
    async fn setlk(
        &self,
        _: &Context,
        _: Ino,
        _: LockRequest,
        wait: Option<Interruption>,
    ) -> Result<(), Errno> {
        let Some(mut interruption) = wait else { return Err(FsError::WouldBlock.into()) };
        self.lock().lock_waits += 1;
        interruption.signalled().await;
        Err(FsError::Interrupted.into())
    }
}

fn touch(node: &mut Node) {
    node.attr.mtime = now();
    node.attr.ctime = node.attr.mtime;
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}
