use bytes::Bytes;
use ebb_core::namespace::{Change, Namespace, Operation};
use ebb_model::*;

/// A namespace with a clock; operations are one second apart.
pub struct Volume {
    pub namespace: Namespace,
    pub clock: u64,
}

pub const ALICE: Caller = Caller { uid: 1000, gid: 1000, groups: Vec::new(), checked: false };
pub const BOB: Caller = Caller { uid: 1001, gid: 1001, groups: Vec::new(), checked: false };
pub const SESSION: SessionId = SessionId(7);

/// Owned by root, mode 0777.
pub fn root_record() -> InstalledRecord {
    let time = Time::from_secs(0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o777,
        nlink: 2,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    }
}

pub fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a good name")
}

impl Volume {
    pub fn new() -> Volume {
        Volume::of(IdRange::whole(IdEpoch(1)))
    }

    pub fn of(ids: IdRange) -> Volume {
        Volume { namespace: Namespace::new(ids, root_record()), clock: 0 }
    }

    pub fn stamp(&mut self) -> Stamp {
        self.clock += 1;
        Stamp { time: self.now(), version: Version(self.clock) }
    }

    /// Time of the last operation.
    pub fn now(&self) -> Time {
        Time::from_secs(self.clock as i64)
    }

    pub fn run(
        &mut self,
        caller: &Caller,
        mutation: Mutation,
    ) -> Result<(Option<Attr>, Vec<Change>), FsError> {
        let stamp = self.stamp();
        let mut changes = Vec::new();
        let answer = self.namespace.mutate(
            &mutation,
            &mut Operation { caller, stamp, trash: None, changes: &mut changes },
        );
        assert_eq!(self.namespace.check(), Vec::<String>::new());
        answer.map(|attr| (attr, changes))
    }

    pub fn make(
        &mut self,
        caller: &Caller,
        parent: Ino,
        child: &str,
        mode: u16,
        what: Make,
    ) -> Result<Ino, FsError> {
        let slot = match what {
            Make::Directory => Slot((self.clock * 40_503) as u16),
            _ => parent.slot(),
        };
        let ino = self.namespace.next_ino(slot).unwrap();
        self.run(caller, Mutation::Make { parent, name: name(child), ino, mode, what }).map(|_| ino)
    }

    pub fn file(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(&Caller::ROOT, parent, name, 0o644, Make::Regular).expect("the file is made")
    }

    pub fn dir(&mut self, parent: Ino, name: &str) -> Ino {
        self.make(&Caller::ROOT, parent, name, 0o755, Make::Directory)
            .expect("the directory is made")
    }

    pub fn fifo(&mut self, parent: Ino, name: &str) -> Ino {
        let what = Make::Special { kind: FileKind::Fifo, rdev: 0 };
        self.make(&Caller::ROOT, parent, name, 0o644, what).expect("the FIFO is made")
    }

    pub fn symlink(&mut self, parent: Ino, name: &str) -> Ino {
        let what = Make::Symlink { target: Bytes::from_static(b"target") };
        self.make(&Caller::ROOT, parent, name, 0o777, what).expect("the link is made")
    }

    pub fn link(&mut self, ino: Ino, parent: Ino, child: &str) -> Result<Vec<Change>, FsError> {
        self.run(&Caller::ROOT, Mutation::Link { ino, parent, name: name(child) })
            .map(|(_, changes)| changes)
    }

    pub fn unlink(
        &mut self,
        caller: &Caller,
        parent: Ino,
        child: &str,
        holders: &[SessionId],
    ) -> Result<Vec<Change>, FsError> {
        self.run(caller, Mutation::Unlink { parent, name: name(child), holders: holders.to_vec() })
            .map(|(_, changes)| changes)
    }

    pub fn rmdir(
        &mut self,
        caller: &Caller,
        parent: Ino,
        child: &str,
        holders: &[SessionId],
    ) -> Result<Vec<Change>, FsError> {
        self.run(caller, Mutation::Rmdir { parent, name: name(child), holders: holders.to_vec() })
            .map(|(_, changes)| changes)
    }

    pub fn rename_by(
        &mut self,
        caller: &Caller,
        from: (Ino, &str),
        to: (Ino, &str),
        mode: RenameMode,
    ) -> Result<Vec<Change>, FsError> {
        let (name, new_name) = (name(from.1), name(to.1));
        self.run(
            caller,
            Mutation::Rename { from: from.0, name, to: to.0, new_name, mode, holders: vec![] },
        )
        .map(|(_, changes)| changes)
    }

    pub fn rename(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        mode: RenameMode,
    ) -> Result<Vec<Change>, FsError> {
        self.rename_by(&Caller::ROOT, from, to, mode)
    }

    pub fn set(&mut self, caller: &Caller, ino: Ino, set: SetAttr) -> Result<Attr, FsError> {
        self.run(caller, Mutation::SetAttr { ino, set })
            .map(|(attr, _)| attr.expect("setattr answers with attributes"))
    }

    pub fn chmod(&mut self, ino: Ino, mode: u16) {
        self.set(&Caller::ROOT, ino, SetAttr { mode: Some(mode), ..SetAttr::default() })
            .expect("root may");
    }

    pub fn chown(&mut self, ino: Ino, caller: &Caller) {
        let set = SetAttr { uid: Some(caller.uid), gid: Some(caller.gid), ..SetAttr::default() };
        self.set(&Caller::ROOT, ino, set).expect("root may");
    }

    pub fn attr(&self, ino: Ino) -> Attr {
        self.namespace.attr(ino).expect("the inode exists")
    }

    pub fn names(&self, dir: Ino) -> Vec<(String, Ino)> {
        let (entries, end) =
            self.namespace.read_dir(dir, Cookie::START, usize::MAX).expect("it is a directory");
        assert!(end);
        entries.into_iter().map(|(entry, _)| (entry.name.to_string(), entry.ino)).collect()
    }

    pub fn path(&self, ino: Ino) -> Option<String> {
        let path = self.namespace.path_of(ino)?;
        Some(path.iter().map(|name| format!("/{name}")).collect())
    }
}
