//! A first write assigns the file's range in a pack file.

mod staging;

use bytes::Bytes;
use ebb_core::extent::Effect;
use ebb_core::partition::Partition;
use ebb_core::state::{Applied, State};
use ebb_model::*;
use staging::staged;

const FIRST: PackRange = PackRange { pack: PackId(1), start: 0, len_bytes: PACK_UNIT_BYTES };
const SECOND: PackRange =
    PackRange { pack: PackId(2), start: PACK_UNIT_BYTES, len_bytes: 2 * PACK_UNIT_BYTES };

struct Volume {
    state: State,
    ino: Ino,
    /// For the next write.
    range: Option<PackRange>,
}

impl Volume {
    fn with_file() -> Volume {
        let time = Time::from_secs(1);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let root = InstalledRecord {
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            atime,
            mtime,
            ctime,
            btime,
            xattrs: vec![],
            links: vec![],
        };
        let partition = Partition::new(IdRange::whole(IdEpoch(1)), root, true);
        let ino = partition.namespace().next_ino(Ino::ROOT.slot()).unwrap();
        let mut volume = Volume { state: State::of(partition), ino, range: None };
        volume.apply(Command::SessionOpen {
            session: SessionId(1),
            client: "test".into(),
            replaces: None,
        });
        let name = Name::new(b"f".as_slice()).unwrap();
        volume
            .run(Mutation::Make { parent: Ino::ROOT, name, ino, mode: 0o644, what: Make::Regular })
            .unwrap();
        volume
    }

    fn apply(&mut self, command: Command) -> Applied {
        for staged in staged(&command, self.range.take()) {
            self.state.stage(&staged);
        }
        let applied = self.state.apply(LogIndex(self.state.applied().0 + 1), &command);
        assert_eq!(self.state.check(), Vec::<String>::new(), "after {command:?}");
        applied
    }

    /// Returns the freed ranges.
    fn run(&mut self, mutation: Mutation) -> Result<Vec<PackRange>, RpcError> {
        let stamp = Stamp { time: Time::from_secs(2), version: self.state.next_version() };
        let tx = TxId { session: SessionId(1), slot: 0, sequence: self.state.applied().0 };
        let applied = self.apply(Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
        let vacated = applied.effects.into_iter().filter_map(|effect| match effect {
            Effect::Vacate { range } => Some(range),
            _ => None,
        });
        applied.answer.unwrap().map(|_| vacated.collect())
    }

    fn write(&mut self, range: PackRange) -> Result<Vec<PackRange>, RpcError> {
        let (ino, len_bytes) = (self.ino, 100);
        self.range = Some(range);
        self.run(Mutation::Write { ino, offset: 0, len_bytes, drop_set_id: false })
    }

    fn place(&self) -> Option<PackRange> {
        self.state.extents().packed(self.ino)
    }
}

#[test]
fn the_file_is_where_its_first_write_says() {
    let mut volume = Volume::with_file();
    assert_eq!(volume.write(FIRST).unwrap(), []);
    assert_eq!(volume.place(), Some(FIRST));
    assert_eq!(
        volume.state.extents().resident_bytes(),
        PACK_UNIT_BYTES,
        "its disk usage is its range's"
    );
    assert_eq!(volume.state.extents().block(volume.ino, 0).unwrap().sum, Some(1));
}

/// A file truncated to nothing keeps its range until the next write.
#[test]
fn another_first_write_vacates_the_range_of_before() {
    let mut volume = Volume::with_file();
    volume.write(FIRST).unwrap();
    let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    assert_eq!(volume.run(Mutation::SetAttr { ino: volume.ino, set }).unwrap(), []);
    assert_eq!(volume.write(SECOND).unwrap(), [FIRST]);
    assert_eq!(volume.place(), Some(SECOND));
}

#[test]
fn a_refused_write_takes_no_range() {
    let mut volume = Volume::with_file();
    let (ino, name) = (volume.ino, Bytes::from_static(InodeFlags::ATTRIBUTE));
    volume
        .run(Mutation::SetXattr {
            ino,
            name,
            value: InodeFlags::IMMUTABLE.value(),
            mode: XattrMode::Set,
        })
        .unwrap();
    assert_eq!(volume.write(FIRST), Err(RpcError::Refused(FsError::NotPermitted)));
    assert_eq!(volume.place(), None);
}
