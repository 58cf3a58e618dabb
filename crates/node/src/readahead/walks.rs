//! Detects a client that reads the files of a directory one after the other, or those of a whole
//! tree, and fetches the beginnings of the next ones ahead (O-85).

use crate::Node;
use crate::readahead::streams::MAX_REQUEST_BYTES;
use crate::readahead::tree::{Step, Tree, Way};
use ebb_core::namespace::Link;
use ebb_model::*;
use std::collections::VecDeque;
use std::rc::Rc;

/// So many files in a row are a walk. A reader of two of them waits for these alone.
const LEAST_RUN: u32 = 3;

/// A run shorter than this can turn round, if more steps lead the other way.
const YOUNG_RUN: u32 = 8;

/// Several threads that share the files of a directory do not begin them quite in order.
const SLACK_ENTRIES: u64 = 8;

/// The most files that are fetched ahead of one walk.
const MAX_FILES: usize = 64;

/// Entries that are looked through for the next files, and for the one that comes next in another
/// directory.
const MAX_STEPS: usize = 256;
const MAX_STEPS_ACROSS: usize = 16;

/// The most walks. The least recently used one makes way.
const MAX_WALKS: usize = 64;

#[derive(Default)]
pub struct Walks {
    walks: Vec<Walk>,
    begun: u64,
    /// The file opened last, until it has been looked at.
    opened: Option<Ino>,
}

struct Walk {
    /// The furthest file that was begun, and its place.
    file: Ino,
    at: Link,
    way: Way,
    /// The furthest one the other way, and how many steps led there: a reader that comes to files
    /// out of order may begin with some of these.
    back_at: Link,
    back_run: u32,
    /// Set once it has gone from one directory to the next: the directory that it has not left so
    /// far.
    top: Option<Ino>,
    /// The file that comes next, if it is in another directory.
    across: Option<Ino>,
    run: u32,
    /// How far that file has been read, and how far the earlier ones were.
    read_bytes: u64,
    reach_bytes: u64,
    /// Files requested and not begun yet, and the place of the last one.
    ahead: VecDeque<Asked>,
    upto: Link,
    /// Number of the last file.
    used: u64,
}

struct Asked {
    file: Ino,
    at: Link,
    bytes: u64,
}

impl Walks {
    /// Notes that a client begins to read a file; returns the files to fetch, if it is time to: of
    /// each so many bytes, from its beginning on. At most `most_bytes` of files that no client has
    /// begun to read are requested.
    pub fn begin(&mut self, file: Ino, tree: &Tree, most_bytes: u64) -> Vec<(Ino, u64)> {
        let Some(at) = tree.link(file) else { return Vec::new() };
        self.begun += 1;
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.leads_to(file, at)) {
            walk.used = self.begun;
            return walk.go_on(file, at, tree, most_bytes);
        }
        self.add(Walk::new(file, at, tree, self.begun));
        Vec::new()
    }

    pub fn opened(&mut self, file: Ino) {
        self.opened = Some(file);
    }

    pub fn take_opened(&mut self) -> Option<Ino> {
        self.opened.take()
    }

    /// Notes how far a file was read. `is_whole`: to its end.
    pub fn read(&mut self, file: Ino, end: u64, is_whole: bool) {
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.file == file) {
            walk.read_bytes = walk.read_bytes.max(if is_whole { u64::MAX } else { end });
        }
    }

    /// A new walk replaces an earlier one in the same directory.
    fn add(&mut self, walk: Walk) {
        let before = self.walks.iter().position(|other| other.at.parent == walk.at.parent);
        let oldest = || {
            self.walks
                .iter()
                .enumerate()
                .min_by_key(|(_, other)| other.used)
                .map(|(place, _)| place)
        };
        match before.or_else(|| oldest().filter(|_| self.walks.len() == MAX_WALKS)) {
            Some(place) => self.walks[place] = walk,
            None => self.walks.push(walk),
        }
    }
}

impl Walk {
    fn new(file: Ino, at: Link, tree: &Tree, used: u64) -> Walk {
        let (way, top, upto, ahead) = (Way::Forth, None, at, VecDeque::new());
        let across = across(at, way, tree.above(at.parent), tree);
        Walk {
            file,
            at,
            way,
            back_at: at,
            back_run: 1,
            top,
            across,
            run: 1,
            read_bytes: 0,
            reach_bytes: 0,
            ahead,
            upto,
            used,
        }
    }

    fn leads_to(&self, file: Ino, at: Link) -> bool {
        let is_near = |other: Link| {
            at.parent == other.parent && at.cookie.0.abs_diff(other.cookie.0) <= SLACK_ENTRIES
        };
        let has_deferred = self.run < YOUNG_RUN && is_near(self.back_at);
        is_near(self.at)
            || has_deferred
            || self.across == Some(file)
            || self.ahead.iter().any(|asked| asked.file == file)
    }

    /// Whether a file is further than all before.
    fn steps_to(&mut self, at: Link) -> bool {
        if at.parent != self.at.parent || self.way.leads(self.at.cookie, at.cookie) {
            return true;
        }
        if self.run >= YOUNG_RUN
            || at.parent != self.back_at.parent
            || !self.way.other().leads(self.back_at.cookie, at.cookie)
        {
            return false;
        }
        (self.back_at, self.back_run) = (at, self.back_run + 1);
        let turns = self.back_run > self.run;
        if turns {
            (self.at, self.back_at) = (self.back_at, self.at);
            // This step is counted later, as any other.
            (self.run, self.back_run) = (self.back_run - 1, self.run);
            self.way = self.way.other();
            self.ahead.clear();
        }
        turns
    }

    fn go_on(&mut self, file: Ino, at: Link, tree: &Tree, most_bytes: u64) -> Vec<(Ino, u64)> {
        let is_passed = |other: Link| {
            let is_beyond = self.way.leads(other.cookie, at.cookie);
            other.parent == at.parent
                && is_beyond
                && other.cookie.0.abs_diff(at.cookie.0) > SLACK_ENTRIES
        };
        // A reader that has come to this one has passed over the much earlier ones.
        let before = self.ahead.iter().position(|asked| asked.file == file).unwrap_or(0);
        self.ahead.drain(..before.saturating_sub(SLACK_ENTRIES as usize));
        self.ahead.retain(|asked| asked.file != file && !is_passed(asked.at));
        if !self.steps_to(at) {
            return Vec::new();
        }
        // The reads of a file past the node are unknown.
        if self.read_bytes > 0 {
            self.reach_bytes = self.read_bytes;
        }
        let within = self.top.unwrap_or(self.at.parent);
        if at.parent != self.at.parent {
            // At most one level up.
            self.top =
                Some(if tree.is_below(at.parent, within) { within } else { tree.above(within) });
            self.back_at = at;
        }
        (self.file, self.at, self.read_bytes, self.run) = (file, at, 0, self.run.saturating_add(1));
        self.across = across(at, self.way, tree.above(self.top.unwrap_or(at.parent)), tree);
        if self.ahead.is_empty() {
            self.upto = at;
        }
        let window = self
            .run
            .checked_sub(LEAST_RUN)
            .map_or(0, |beyond| 1usize << (beyond + 1).min(MAX_FILES.ilog2()));
        // Refilled when half of it is used.
        if self.reach_bytes == 0 || window == 0 || self.ahead.len() > window / 2 {
            return Vec::new();
        }
        let mut room_bytes =
            most_bytes.saturating_sub(self.ahead.iter().map(|asked| asked.bytes).sum());
        let mut wanted = Vec::new();
        for (at, file) in files_beyond(self.upto, self.way, self.top, tree, MAX_STEPS)
            .take(window - self.ahead.len())
        {
            let bytes = stored_bytes(file, tree).min(self.reach_bytes);
            let Some(left) = room_bytes.checked_sub(bytes) else { break };
            (room_bytes, self.upto) = (left, at);
            self.ahead.push_back(Asked { file, at, bytes });
            wanted.push((file, bytes));
        }
        wanted
    }
}

/// The file that comes next within `top`, if it is in another directory.
fn across(at: Link, way: Way, top: Ino, tree: &Tree) -> Option<Ino> {
    files_beyond(at, way, Some(top), tree, MAX_STEPS_ACROSS)
        .next()
        .filter(|(next, _)| next.parent != at.parent)
        .map(|(_, file)| file)
}

/// The files beyond an entry, as far as it is certain that there are no others: those within `top`,
/// or those of its directory.
fn files_beyond(
    at: Link,
    way: Way,
    top: Option<Ino>,
    tree: &Tree,
    most_steps: usize,
) -> impl Iterator<Item = (Link, Ino)> {
    let steps = tree.beyond(at, way, top.unwrap_or(at.parent), move |_| top.is_some());
    let is_complete = |dir| tree.state.backing().is_complete(dir);
    let certain = steps.take(most_steps).map_while(move |step| match (step, way) {
        (Step::Entry(at, ino, FileKind::Regular), _) => Some(Some((at, ino))),
        // The last entries of the directory come first.
        (Step::Entry(_, dir, FileKind::Directory), Way::Back)
            if top.is_some() && !is_complete(dir) =>
        {
            None
        }
        (Step::End(dir), Way::Forth) if !is_complete(dir) => None,
        _ => Some(None),
    });
    certain.flatten()
}

/// The bytes of a file that the bucket has.
fn stored_bytes(file: Ino, tree: &Tree) -> u64 {
    let size = tree.state.namespace().attr(file).map_or(0, |attr| attr.size_bytes);
    tree.state.extents().object(file).map_or(0, |home| home.valid_bytes.min(size))
}

impl Node {
    /// A client opens a file to read it. The open does not wait for [`Node::walk_ahead`]: that runs
    /// with the next one at the latest.
    pub(crate) fn opens_to_read(self: &Rc<Self>, file: Ino) {
        self.look_for_walks();
        self.readahead.opened(file);
    }

    /// Looks at the file opened last.
    pub(crate) fn look_for_walks(self: &Rc<Self>) {
        if let Some(file) = self.readahead.take_opened() {
            self.walk_ahead(file);
        }
    }

    /// A client begins to read a file: requests the files that a reader of all files of its
    /// directory, or of several, will want next, at most as many bytes as are read ahead within one
    /// file.
    pub(crate) fn walk_ahead(self: &Rc<Self>, file: Ino) {
        let most_bytes = self.most_ahead_bytes(file);
        let wanted = self.readahead.walk(file, &self.replica.view(), most_bytes);
        for (ino, bytes) in wanted {
            self.start_downloads(ino, 0..bytes, MAX_REQUEST_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_core::partition::Partition;
    use ebb_core::state::State;

    struct Volume {
        state: State,
        walks: Walks,
    }

    impl Volume {
        fn new() -> Volume {
            let time = Time::from_secs(0);
            let (atime, mtime, ctime, btime) = (time, time, time, time);
            let root = InstalledRecord {
                mode: 0o755,
                nlink: 2,
                uid: 0,
                gid: 0,
                atime,
                mtime,
                ctime,
                btime,
                xattrs: vec![],
                links: vec![],
            };
            let mut volume = Volume {
                state: State::of(Partition::new(IdRange::whole(IdEpoch(1)), root, false)),
                walks: Walks::default(),
            };
            volume.apply(&Command::SessionOpen {
                session: SessionId(1),
                client: "test".into(),
                replaces: None,
            });
            volume
        }

        fn apply(&mut self, command: &Command) {
            let next = LogIndex(self.state.applied().0 + 1);
            assert!(self.state.apply(next, command).answer.is_none_or(|answer| answer.is_ok()));
        }

        fn make(&mut self, parent: Ino, what: Make) -> Ino {
            let ino = self.state.namespace().next_ino(parent.slot()).expect("an id is left");
            let tx = TxId { session: SessionId(1), slot: 0, sequence: self.state.applied().0 };
            let stamp = Stamp { time: Time::from_secs(1), version: self.state.next_version() };
            let name = Name::new(ino.to_string().as_bytes()).unwrap();
            self.apply(&Command::Client {
                tx,
                caller: Caller::ROOT,
                stamp,
                mutation: Mutation::Make { parent, name, ino, mode: 0o755, what },
            });
            ino
        }

        /// Makes so many files in a new directory.
        fn dir(&mut self, parent: Ino, files: usize) -> (Ino, Vec<Ino>) {
            let dir = self.make(parent, Make::Directory);
            (dir, (0..files).map(|_| self.make(dir, Make::Regular)).collect())
        }

        /// Begins files and reads them; returns the files fetched ahead.
        fn read(&mut self, files: impl IntoIterator<Item = Ino>) -> Vec<Ino> {
            let mut asked = Vec::new();
            for file in files {
                asked.extend(
                    self.walks
                        .begin(file, &Tree { state: &self.state }, 1 << 20)
                        .into_iter()
                        .map(|(file, _)| file),
                );
                self.walks.read(file, 10, true);
            }
            asked
        }
    }

    #[test]
    fn a_walk_is_run_ahead_of_from_its_third_file_on() {
        let mut volume = Volume::new();
        let (_, files) = volume.dir(Ino::ROOT, 200);
        assert_eq!(volume.read(files[..2].iter().copied()), []);
        assert_eq!(volume.read([files[2]]), files[3..5]);
        assert_eq!(volume.read(files[3..150].iter().copied()), files[5..]);
        assert_eq!(volume.read(files[150..].iter().copied()), [], "nothing is asked for twice");
    }

    #[test]
    fn readahead_follows_files_in_reverse_order() {
        let mut volume = Volume::new();
        let (_, mut files) = volume.dir(Ino::ROOT, 200);
        files.reverse();
        assert_eq!(volume.read(files[..2].iter().copied()), []);
        assert_eq!(volume.read([files[2]]), files[3..5]);
        assert_eq!(volume.read(files[3..].iter().copied()), files[5..]);
    }

    #[test]
    fn readahead_continues_into_the_next_directory() {
        for (each, is_back) in [(1, false), (2, false), (5, false), (2, true), (5, true)] {
            let mut volume = Volume::new();
            let (top, _) = volume.dir(Ino::ROOT, 0);
            volume.dir(Ino::ROOT, 5);
            let mut files = Vec::new();
            for _ in 0..10 {
                let (above, in_it) = volume.dir(top, 1);
                files.extend(in_it);
                files.extend((0..10).flat_map(|_| volume.dir(above, each).1));
            }
            let mut asked = match is_back {
                false => volume.read(files.iter().copied()),
                true => volume.read(files.iter().rev().copied()),
            };
            if is_back {
                asked.reverse();
            }
            assert!(
                asked.windows(2).all(|pair| pair[0] < pair[1]),
                "each once, in order: {asked:?}"
            );
            let elsewhere = asked.iter().filter(|file| !files.contains(file)).count();
            assert!(
                elsewhere == 0 && asked.len() + 10 >= files.len(),
                "{} of {}, {elsewhere} elsewhere",
                asked.len(),
                files.len()
            );
        }
    }

    #[test]
    fn readahead_of_one_directory_stays_in_it() {
        let mut volume = Volume::new();
        let (dir, files) = volume.dir(Ino::ROOT, 20);
        volume.dir(dir, 20);
        volume.dir(Ino::ROOT, 20);
        assert_eq!(volume.read(files.iter().copied()), files[3..]);
    }

    #[test]
    fn readahead_ignores_single_files_of_many_directories() {
        for which in 0..3 {
            let mut volume = Volume::new();
            let files: Vec<Ino> = (0..1000).map(|_| volume.dir(Ino::ROOT, 3).1[which]).collect();
            assert_eq!(volume.read(files), []);
            assert_eq!(volume.walks.walks.len(), MAX_WALKS);
        }
    }

    #[test]
    fn files_in_any_order_are_no_walk() {
        let mut volume = Volume::new();
        let (_, files) = volume.dir(Ino::ROOT, 2000);
        assert_eq!(volume.read((0..2000).map(|at| files[at * 787 % 2000])), []);
    }

    #[test]
    fn readahead_joins_readers_of_one_directory() {
        let mut volume = Volume::new();
        let (_, files) = volume.dir(Ino::ROOT, 400);
        let asked =
            volume.read((0..100).flat_map(|four| [1, 3, 0, 2].map(|at| files[4 * four + at])));
        assert!(asked.len() < files.len() && asked.last() == files.last(), "{asked:?}");
    }

    /// Danger: each step the other way counts as turning round, and none leads anywhere.
    #[test]
    fn readahead_tolerates_files_out_of_order() {
        let order = |pair: fn(usize) -> usize| (0..400).map(pair);
        let apart = (0..392).map(|at| if at % 2 == 0 { at / 2 + 4 } else { at / 2 });
        for (what, order) in [
            ("pairs", order(|at| at ^ 1).collect::<Vec<_>>()),
            ("fours", order(|at| at ^ 3).collect()),
            ("two readers", apart.collect()),
        ] {
            for is_back in [false, true] {
                let mut volume = Volume::new();
                let (_, mut files) = volume.dir(Ino::ROOT, 400);
                if is_back {
                    files.reverse();
                }
                let mut asked = volume.read(order.iter().map(|at| files[*at]));
                asked.sort_unstable();
                asked.dedup();
                let needed = order.iter().collect::<std::collections::BTreeSet<_>>().len();
                assert!(
                    asked.len() + 30 >= needed,
                    "{what}, {is_back}: {} of {needed}",
                    asked.len()
                );
            }
        }
    }

    /// Danger: files passed over in earlier directories block the read-ahead of the next ones.
    #[test]
    fn readahead_tolerates_skipped_files_in_each_directory() {
        for is_back in [false, true] {
            let mut volume = Volume::new();
            let (top, _) = volume.dir(Ino::ROOT, 0);
            let dirs: Vec<Vec<Ino>> = (0..300).map(|_| volume.dir(top, 3).1).collect();
            let wanted: Vec<Ino> = dirs.iter().flat_map(|files| [files[0], files[2]]).collect();
            let asked = match is_back {
                false => volume.read(wanted.iter().copied()),
                true => volume.read(wanted.iter().rev().copied()),
            };
            let last = if is_back { wanted.first() } else { wanted.last() };
            assert!(
                asked.contains(last.unwrap()),
                "{is_back}: {} of {}",
                asked.len(),
                wanted.len()
            );
        }
    }

    #[test]
    fn readahead_tolerates_skipped_files() {
        let mut volume = Volume::new();
        let (_, files) = volume.dir(Ino::ROOT, 400);
        let asked = volume.read(files.iter().step_by(3).copied());
        assert!(asked.len() < files.len() && asked.last() == files.last(), "{asked:?}");
    }
}
