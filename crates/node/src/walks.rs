//! Who reads the files of a directory one after the other, and what of the next ones is fetched ahead (O-85).

use crate::Node;
use crate::fetch::MAX_REQUEST_BYTES;
use ebb_core::namespace::Link;
use ebb_model::*;
use std::rc::Rc;

/// So many files in a row are a walk. Whoever wants two of them waits for these alone.
const LEAST_RUN: u32 = 3;

/// Several who share the files of a directory among them do not begin them quite in order.
const SLACK_ENTRIES: u64 = 8;

/// Entries that a walk is run ahead by at most.
const MAX_ENTRIES: u64 = 64;

/// Directories. The one that was not used for longest makes way.
const MAX_WALKS: usize = 64;

#[derive(Default)]
pub struct Walks {
    walks: Vec<Walk>,
    begun: u64,
}

struct Walk {
    dir: Ino,
    /// The furthest file that was begun, and where it is in the directory stream.
    file: Ino,
    at: Cookie,
    run: u32,
    /// How far that file has been read so far, and how far the ones before it were.
    read_bytes: u64,
    reach_bytes: u64,
    /// Asked for up to this entry.
    ahead: Cookie,
    /// Number of the last file.
    used: u64,
}

/// What a walk will want next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Entries of the directory stream after the first and up to the last cookie.
    pub after: Cookie,
    pub upto: Cookie,
    /// Of each file so many bytes, from its beginning on.
    pub reach_bytes: u64,
}

impl Walks {
    /// Notes that somebody begins to read a file; gives what is to be asked for, if it is time to.
    pub fn begin(&mut self, dir: Ino, at: Cookie, file: Ino) -> Option<Ahead> {
        self.begun += 1;
        let used = self.begun;
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.dir == dir) else {
            self.add(Walk { dir, file, at, run: 1, read_bytes: 0, reach_bytes: 0, ahead: at, used });
            return None;
        };
        walk.used = used;
        if at.0.abs_diff(walk.at.0) > SLACK_ENTRIES {
            *walk = Walk { dir, file, at, run: 1, read_bytes: 0, reach_bytes: 0, ahead: at, used };
            return None;
        }
        if at <= walk.at {
            return None;
        }
        // Of one that is read past the node nothing is known.
        if walk.read_bytes > 0 {
            walk.reach_bytes = walk.read_bytes;
        }
        (walk.file, walk.at, walk.read_bytes, walk.run) = (file, at, 0, walk.run.saturating_add(1));
        walk.ahead = walk.ahead.max(at);
        let entries = 1u64 << (walk.run.checked_sub(LEAST_RUN)? + 1).min(MAX_ENTRIES.ilog2());
        // Topped up by halves.
        if walk.reach_bytes == 0 || walk.ahead.0 - at.0 > entries / 2 {
            return None;
        }
        Some(Ahead { after: walk.ahead, upto: Cookie(at.0 + entries), reach_bytes: walk.reach_bytes })
    }

    /// Notes how far a file was read. `is_whole`: to its end.
    pub fn read(&mut self, file: Ino, end: u64, is_whole: bool) {
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.file == file) {
            walk.read_bytes = walk.read_bytes.max(if is_whole { u64::MAX } else { end });
        }
    }

    /// So much was asked for.
    pub fn asked(&mut self, dir: Ino, upto: Cookie) {
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.dir == dir) {
            walk.ahead = walk.ahead.max(upto);
        }
    }

    fn add(&mut self, walk: Walk) {
        if self.walks.len() < MAX_WALKS {
            self.walks.push(walk);
        } else if let Some(oldest) = self.walks.iter_mut().min_by_key(|other| other.used) {
            *oldest = walk;
        }
    }
}

impl Node {
    /// Somebody begins to read a file: asks for what who reads all files of its directory will want next, which is
    /// at most as much as is read ahead within one file.
    pub(crate) fn walk_ahead(self: &Rc<Self>, file: Ino) {
        let state = self.replica.view();
        let Some(Link { parent: dir, cookie }) = state.namespace().primary_link(file) else { return };
        let Some(ahead) = self.downloads.walks.borrow_mut().begin(dir, cookie, file) else { return };
        let Ok((entries, _)) = state.namespace().read_dir(dir, ahead.after, (ahead.upto.0 - ahead.after.0) as usize) else { return };
        let most_bytes = self.most_ahead_bytes(file);
        let (mut wanted, mut bytes, mut upto) = (Vec::new(), 0u64, ahead.after);
        for (entry, attr) in entries.into_iter().take_while(|(entry, _)| entry.cookie <= ahead.upto) {
            if let Some(home) = state.extents().home(entry.ino).filter(|_| entry.kind == FileKind::Regular) {
                let reach_bytes = ahead.reach_bytes.min(attr.size_bytes).min(home.valid_bytes);
                bytes = bytes.saturating_add(reach_bytes);
                if bytes > most_bytes {
                    break;
                }
                wanted.push((entry.ino, reach_bytes));
            }
            upto = entry.cookie;
        }
        drop(state);
        self.downloads.walks.borrow_mut().asked(dir, upto);
        for (ino, reach_bytes) in wanted {
            self.start_downloads(ino, 0..reach_bytes, MAX_REQUEST_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(1);

    /// Begins files and reads them up to a byte; gives what was asked for ahead, as ranges of entries.
    fn walk(walks: &mut Walks, files: impl IntoIterator<Item = u64>, read_bytes: u64, is_whole: bool) -> Vec<(u64, u64)> {
        let mut asked = Vec::new();
        for at in files {
            if let Some(ahead) = walks.begin(DIR, Cookie(at), Ino(100 + at)) {
                asked.push((ahead.after.0, ahead.upto.0));
                walks.asked(DIR, ahead.upto);
            }
            walks.read(Ino(100 + at), read_bytes, is_whole);
        }
        asked
    }

    #[test]
    fn a_walk_is_run_ahead_of_from_its_third_file_on() {
        let mut walks = Walks::default();
        assert_eq!(walk(&mut walks, 1..3, 10, true), []);
        let asked = walk(&mut walks, 3..1000, 10, true);
        assert_eq!(asked[..3], [(3, 5), (5, 8), (8, 13)]);
        assert!(asked.windows(2).all(|pair| pair[0].1 == pair[1].0), "nothing is left out or asked for twice: {asked:?}");
        assert!(asked.last().unwrap().1 >= 999 + MAX_ENTRIES / 2);
    }

    #[test]
    fn files_that_are_not_read_to_their_end_are_fetched_no_further() {
        let mut walks = Walks::default();
        walk(&mut walks, 1..3, 4096, false);
        assert_eq!(walks.begin(DIR, Cookie(3), Ino(103)), Some(Ahead { after: Cookie(3), upto: Cookie(5), reach_bytes: 4096 }));
        let mut walks = Walks::default();
        assert_eq!(walk(&mut walks, 1..100, 0, false), [], "nothing is read of them");
    }

    #[test]
    fn files_in_any_order_are_no_walk() {
        let mut walks = Walks::default();
        let files = (0..2000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44);
        assert_eq!(walk(&mut walks, files, 10, true), []);
        let backwards = (0..200).rev();
        assert_eq!(walk(&mut walks, backwards, 10, true), []);
    }

    #[test]
    fn who_share_the_files_of_a_directory_walk_together() {
        let mut walks = Walks::default();
        let files = (0..100).flat_map(|four| [4 * four + 1, 4 * four + 3, 4 * four, 4 * four + 2]);
        let asked = walk(&mut walks, files, 10, true);
        assert!(asked.last().is_some_and(|(_, upto)| *upto > 400), "{asked:?}");
    }

    #[test]
    fn many_directories_take_bounded_memory() {
        let mut walks = Walks::default();
        for dir in 0..10_000 {
            assert_eq!(walks.begin(Ino(dir), Cookie(1), Ino(7)), None);
        }
        assert_eq!(walks.walks.len(), MAX_WALKS);
    }
}
