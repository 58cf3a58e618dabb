use super::*;
use crate::content::ContentItem;

const SESSION: SessionId = SessionId(1);

fn root() -> InstalledRecord {
    let time = Time::from_secs(1);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (mode, nlink, uid, gid, xattrs, links) = (0o755, 1, 0, 0, Vec::new(), Vec::new());
    InstalledRecord { mode, nlink, uid, gid, atime, mtime, ctime, btime, xattrs, links }
}

/// A state with one empty file, at position 2.
fn with_file() -> (State, Ino) {
    let mut state = State::of(Partition::new(IdRange::whole(IdEpoch(1)), root(), true));
    let ino = state.namespace().next_ino(Ino::ROOT.slot()).expect("an id is left");
    let open = Command::SessionOpen { session: SESSION, client: "test".into(), replaces: None };
    state.apply(LogIndex(1), &open);
    let (parent, name) = (Ino::ROOT, Name::new(b"f".as_slice()).expect("a name"));
    let made = Mutation::Make { parent, name, ino, mode: 0o644, what: Make::Regular };
    state.apply(LogIndex(2), &client(&state, made));
    (state, ino)
}

fn client(state: &State, mutation: Mutation) -> Command {
    let tx = TxId { session: SESSION, slot: 0, sequence: state.applied().0 };
    let stamp = Stamp { time: Time::from_secs(2), version: state.next_version() };
    Command::Client { tx, caller: Caller::ROOT, stamp, mutation }
}

fn staged(state: &State, ino: Ino) -> LocalCommand {
    let (version, sums) = (state.next_version(), vec![Some(7)]);
    LocalCommand::Staged { ino, version, first: 0, sums, range: None }
}

fn write(ino: Ino) -> Mutation {
    Mutation::Write { ino, offset: 0, len_bytes: 10, drop_set_id: false }
}

#[test]
fn staged_bytes_are_there_with_their_command() {
    let (mut state, ino) = with_file();
    let (staged, write) = (staged(&state, ino), client(&state, write(ino)));
    state.apply_logged(Position(4), &[staged], Some((LogIndex(3), &write)));
    assert_eq!(state.extents().block(ino, 0).map(|block| block.sum), Some(Some(7)));
    assert_eq!(state.check(), Vec::<String>::new());
}

/// Situation: a power cut takes the command of staged bytes. The next run logs its first record
/// between, and then another command changes the same block, at the version that is free again.
/// Expectation: the staged bytes are not those of the other command.
#[test]
fn staged_bytes_belong_to_the_record_directly_behind_theirs() {
    let (mut state, ino) = with_file();
    let (staged, stamp) =
        (staged(&state, ino), Stamp { time: Time::from_secs(3), version: state.next_version() });
    state.apply_logged(Position(3), &[staged], None);
    // A local command between them changes nothing about that.
    let absent = LocalCommand::Absent { ino, first: 5, count: 1 };
    state.apply_logged(Position(5), &[absent], None);
    let found = Command::Found { ino, first: 0, count: 1, stamp };
    state.apply_logged(Position(6), &[], Some((LogIndex(3), &found)));
    assert_eq!(state.extents().block(ino, 0), None);
}

#[test]
fn staged_bytes_of_a_refused_command_are_not_there() {
    let (mut state, ino) = with_file();
    let (staged, write) = (staged(&state, ino), client(&state, write(Ino(999))));
    state.apply_logged(Position(4), &[staged], Some((LogIndex(3), &write)));
    assert_eq!(state.extents().block(ino, 0), None);
    assert_eq!(state.check(), Vec::<String>::new());
}

/// Two nodes with different bytes agree on the partition, item by item: a node that has none of a
/// file's bytes, and one that has written them, cached them and lost some.
#[test]
fn partition_does_not_depend_on_a_disk() {
    let (mut state, ino) = with_file();
    let mut other = state.clone();
    let mut both = |staged: &[LocalCommand], command: Command| {
        let index = LogIndex(state.applied().0 + 1);
        state.apply_logged(Position(5 * index.0), staged, Some((index, &command)));
        state.apply_deferred();
        other.apply_logged(Position(5 * index.0), &[], Some((index, &command)));
        other.apply_deferred();
        assert!(state.partition().items().eq(other.partition().items()), "after {command:?}");
        (state.clone(), other.clone())
    };
    let (at_home, _) = both(&[], Command::ReserveIds { upto: 1000 });
    let long = Mutation::Write { ino, offset: 0, len_bytes: 3 * BLOCK_BYTES, drop_set_id: false };
    let sums = vec![Some(1), None, Some(3)];
    let version = at_home.next_version();
    let staged = LocalCommand::Staged { ino, version, first: 0, sums, range: None };
    let (at_home, _) = both(&[staged], client(&at_home, long));
    let zeroed = Mutation::Fallocate {
        ino,
        offset: BLOCK_BYTES / 2,
        len_bytes: BLOCK_BYTES,
        what: Allocation::Zero,
        keep_size: true,
        edges: vec![0, 1],
        drop_set_id: false,
    };
    let version = at_home.next_version();
    let edge = |first| {
        let (sums, range) = (vec![None], None);
        LocalCommand::Staged { ino, version, first, sums, range }
    };
    let (at_home, _) = both(&[edge(0), edge(1)], client(&at_home, zeroed));
    let set = SetAttr { size_bytes: Some(BLOCK_BYTES + 7), ..SetAttr::default() };
    assert!(at_home.extents().has_edge(ino, &set));
    both(&[], client(&at_home, Mutation::Truncate { ino, set }));
    let key: String = "f".into();
    let begun = BackingCommand::UploadBegun { ino, key: key.clone(), upload: None };
    let (at_home, _) = both(&[], Command::Backing(begun));
    let (etag, len_bytes, version) = ("one".into(), BLOCK_BYTES + 7, at_home.version());
    let sent = BackingCommand::Uploaded { ino, key, etag, len_bytes, version };
    let (at_home, _) = both(&[], Command::Backing(sent));
    assert_eq!(at_home.check(), Vec::<String>::new());
    let again =
        BackingCommand::SendAgain { ino, stamp: Stamp { time: Time::from_secs(5), version } };
    let (_, elsewhere) = both(&[], Command::Backing(again));
    let is_dirty = |item: SnapshotItem| {
        matches!(item, SnapshotItem::Content(ContentItem::Dirty { first: 0, end: 2, .. }))
    };
    assert!(elsewhere.partition().items().any(is_dirty));
}

/// Situation: the end of an upload drops a block whose checksum is void, while zeros are on their
/// way into a part of it. Expectation: with the command the block is there again, and is dirty.
#[test]
fn edge_that_an_upload_has_dropped_is_there_again() {
    let (mut state, ino) = with_file();
    let log = |state: &mut State, staged: Vec<LocalCommand>, command: Command| {
        let index = LogIndex(state.applied().0 + 1);
        let answer = state.apply_logged(Position(5 * index.0), &staged, Some((index, &command)));
        state.apply_deferred();
        assert!(answer.answer.is_none_or(|answer| answer.is_ok()));
        assert_eq!(state.check(), Vec::<String>::new());
    };
    let void = |state: &State| {
        let (version, sums, range) = (state.next_version(), vec![None], None);
        vec![LocalCommand::Staged { ino, version, first: 0, sums, range }]
    };
    let (staged, write) = (void(&state), client(&state, write(ino)));
    log(&mut state, staged, write);
    let (key, version): (String, _) = ("f".into(), state.version());
    let begun = BackingCommand::UploadBegun { ino, key: key.clone(), upload: None };
    log(&mut state, Vec::new(), Command::Backing(begun));
    let sent = BackingCommand::Uploaded { ino, key, etag: "one".into(), len_bytes: 10, version };
    log(&mut state, Vec::new(), Command::Backing(sent));
    assert_eq!(state.extents().block(ino, 0), None);
    let (offset, len_bytes, edges) = (2, 5, vec![0]);
    let (what, keep_size, drop_set_id) = (Allocation::Zero, true, false);
    let zeroed =
        Mutation::Fallocate { ino, offset, len_bytes, what, keep_size, edges, drop_set_id };
    let (staged, zeroed) = (void(&state), client(&state, zeroed));
    log(&mut state, staged, zeroed);
    assert!(state.extents().block(ino, 0).is_some_and(|block| block.dirty));
}
