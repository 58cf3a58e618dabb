//! Directory pages: writes the names and attributes of a directory that objects cannot represent.

use super::observe::{below, first_name};
use super::pieces::{PieceChange, ends};
use super::*;
use crate::namespace::Link;
use std::collections::{BTreeMap, BTreeSet};

/// A page under construction, built in steps from one snapshot of the state. It consists of the
/// ranges of names that are written again, in order. A small page is one range and one object.
pub struct PageDraft {
    dir: Ino,
    prefix: String,
    /// Maximum entries of one piece.
    piece_entries: usize,
    runs: Vec<Run>,
    /// Index of the current run.
    at: usize,
    /// Cookie after which the search for names continues; `None` when it is complete.
    search: Option<Cookie>,
    /// The search exceeded its limit: further names follow the found ones.
    is_cut: bool,
    /// Names up to this one have been processed.
    upto: Option<Name>,
    found: BTreeMap<Name, Dentry>,
    /// Entries of the existing page for names that are not loaded.
    unseen: BTreeMap<Name, Installed>,
    /// All names of those among them with several.
    names: BTreeMap<Ino, Vec<(Ino, Name)>>,
    /// Entries of the current piece.
    entries: Vec<(EntryOrigin, Installed)>,
    /// Inodes whose complete list of names is in an entry of the current piece.
    recorded: BTreeSet<Ino>,
    /// The last name of the previous piece.
    last: Option<Name>,
    changes: PageChanges,
    whole: Vec<Installed>,
}

/// Names in `first <= name < end`.
struct Run {
    first: Name,
    end: Option<Name>,
    /// A piece of it has been completed.
    is_begun: bool,
}

impl Run {
    fn has(&self, name: &Name) -> bool {
        self.first <= *name && self.end.as_ref().is_none_or(|end| name < end)
    }

    fn is_everything(&self) -> bool {
        self.first == first_name() && self.end.is_none()
    }
}

enum EntryOrigin {
    Here(Dentry),
    /// The entry of the existing page.
    There(Installed),
}

/// Result of a step.
#[derive(Debug)]
pub enum Drafted {
    More,
    /// Write a piece that starts at this name, then report it with [`PageDraft::wrote`].
    Piece(Name, Vec<Installed>),
    All,
}

/// Changes of a page's pieces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageChanges {
    /// First names of the pieces that the page loses.
    pub gone: Vec<Name>,
    pub written: Vec<PagePiece>,
    kept: Vec<PagePiece>,
}

impl PageChanges {
    /// Commands that record the changes, in name order and at most `most` per command.
    pub fn replaced(self, dir: Ino, most: usize) -> Vec<BackingCommand> {
        let mut recorded: BTreeMap<Name, (bool, Option<PagePiece>)> = BTreeMap::new();
        for first in self.gone {
            recorded.entry(first).or_default().0 = true;
        }
        for piece in self.written {
            let first = piece.first.clone();
            recorded.entry(first).or_default().1 = Some(piece);
        }
        let recorded: Vec<_> = recorded.into_iter().collect();
        let record = |part: &[(Name, (bool, Option<PagePiece>))]| BackingCommand::PiecesReplaced {
            dir,
            gone: part
                .iter()
                .filter(|(_, (is_gone, _))| *is_gone)
                .map(|(first, _)| first.clone())
                .collect(),
            pieces: part.iter().filter_map(|(_, (_, piece))| piece.clone()).collect(),
        };
        recorded.chunks(most.max(1)).map(record).collect()
    }
}

/// Names for this many pieces are collected at a time; more need another search.
const FOUND_PIECES: usize = 128;

impl PageDraft {
    /// The existing pieces that can contain names of the rewritten ranges.
    pub fn needs<'a>(&self, there: &'a PageHead) -> Vec<&'a PagePiece> {
        let overlaps = |piece: &PagePiece, end: Option<&Name>| {
            let beside = |run: &Run| {
                run.end.as_ref().is_some_and(|run_end| *run_end <= piece.first)
                    || end.is_some_and(|end| *end <= run.first)
            };
            self.runs.iter().any(|run| !beside(run))
        };
        there
            .pieces
            .iter()
            .zip(ends(&there.pieces, None))
            .filter(|(piece, end)| overlaps(piece, *end))
            .map(|(piece, _)| piece)
            .collect()
    }

    /// Reports that a piece from [`PageDraft`]'s last step was written under its id.
    pub fn wrote(&mut self, piece: PagePiece) {
        self.changes.written.push(piece);
    }

    fn run_of(&self, name: &Name) -> Option<&Run> {
        self.runs[..self.runs.partition_point(|run| run.first <= *name)]
            .last()
            .filter(|run| run.has(name))
    }

    fn find(&mut self, name: Name, child: Dentry) {
        if self.run_of(&name).is_none() || self.upto.as_ref().is_some_and(|upto| name <= *upto) {
            return;
        }
        self.found.insert(name, child);
        if self.found.len() > self.piece_entries.saturating_mul(FOUND_PIECES) {
            self.found.pop_last();
            self.is_cut = true;
        }
    }

    /// The next name of the current run. `None` at its end, or if a search must come first.
    fn next(&mut self) -> Option<(Name, EntryOrigin)> {
        let found = self.found.first_key_value().map(|(name, _)| name);
        if found.is_none() && self.is_cut {
            self.is_cut = false;
            self.search = Some(Cookie::START);
            return None;
        }
        let unseen = self.unseen.first_key_value().map(|(name, _)| name);
        let is_unseen = unseen.is_some_and(|unseen| found.is_none_or(|found| unseen < found));
        let next = if is_unseen { unseen } else { found }
            .filter(|name| self.runs[self.at].has(name))?
            .clone();
        self.upto = self.upto.take().max(Some(next.clone()));
        let origin = match is_unseen {
            true => EntryOrigin::There(self.unseen.remove(&next)?),
            false => EntryOrigin::Here(self.found.remove(&next)?),
        };
        Some((next, origin))
    }

    /// Completes a piece with the first entries; the other entries begin the next one.
    fn cut(&mut self, entries: usize) -> Drafted {
        for (origin, entry) in self.entries.split_off(entries) {
            match origin {
                EntryOrigin::Here(child) => drop(self.found.insert(entry.name, child)),
                EntryOrigin::There(entry) => drop(self.unseen.insert(entry.name.clone(), entry)),
            }
        }
        self.recorded.clear();
        let entries: Vec<Installed> =
            std::mem::take(&mut self.entries).into_iter().map(|(_, entry)| entry).collect();
        let run = &mut self.runs[self.at];
        let first = match (&self.last, entries.first()) {
            (Some(last), Some(entry)) if run.is_begun => between(last, &entry.name),
            _ => run.first.clone(),
        };
        run.is_begun = true;
        self.last = entries.last().map(|entry| entry.name.clone());
        Drafted::Piece(first, entries)
    }

    fn end_run(&mut self) -> Drafted {
        let run = &self.runs[self.at];
        if run.is_everything() && !run.is_begun {
            self.whole =
                std::mem::take(&mut self.entries).into_iter().map(|(_, entry)| entry).collect();
        } else if self.entries.len() > self.piece_entries {
            return self.cut(self.entries.len() / 2);
        } else if !self.entries.is_empty() || !run.is_begun && run.first == first_name() {
            return self.cut(self.entries.len());
        }
        self.at += 1;
        Drafted::More
    }
}

/// The shortest prefix of `next` that sorts after `last`.
fn between(last: &Name, next: &Name) -> Name {
    let bytes = next.as_bytes();
    let starts = (1..bytes.len()).filter_map(|len| Name::new(&bytes[..len]).ok());
    starts.into_iter().find(|start| start > last).unwrap_or_else(|| next.clone())
}

impl Backing {
    /// The page of all names as one object. `old` is the existing page, required if
    /// [`PageStep::Write`] requests it: its entries for names that are not loaded are kept.
    pub fn page(
        &self,
        namespace: &Namespace,
        dir: Ino,
        old: Option<&DirectoryPage>,
    ) -> Option<DirectoryPage> {
        let mut draft = self.draft(namespace, dir, usize::MAX / 2)?;
        let old = old.cloned().map(PageHead::from);
        if let Some(old) = &old {
            self.keep_unseen(namespace, &mut draft, &old.page.entries);
        }
        while !matches!(self.draft_on(namespace, &mut draft, usize::MAX), Drafted::All) {}
        Some(self.finish_page(namespace, draft, old.as_ref())?.0.page)
    }

    /// An empty draft; `None` for a directory that is not in the tree.
    pub fn draft_page(
        &self,
        namespace: &Namespace,
        dir: Ino,
        piece_entries: usize,
    ) -> Option<PageDraft> {
        let mut draft = self.draft(namespace, dir, piece_entries)?;
        let pieces: Vec<_> = self.live_pieces(dir).collect();
        if pieces.is_empty() {
            return Some(draft);
        }
        draft.runs.clear();
        let mut is_joined = false;
        for (at, (first, piece)) in pieces.iter().enumerate() {
            let is_changed = piece.change != PieceChange::None;
            if !is_changed && !is_joined {
                draft.changes.kept.push(PagePiece {
                    first: (*first).clone(),
                    id: piece.id,
                    entries: piece.entries,
                });
                continue;
            }
            let end = pieces.get(at + 1).map(|(first, _)| (*first).clone());
            match draft.runs.last_mut().filter(|run| run.end.as_ref() == Some(first)) {
                Some(run) => run.end = end,
                None => draft.runs.push(Run { first: (*first).clone(), end, is_begun: false }),
            }
            draft.changes.gone.push((*first).clone());
            // A piece with few entries absorbs its successor.
            is_joined = is_changed && (piece.entries as usize) < piece_entries / 4;
        }
        let kept: usize = draft.changes.kept.iter().map(|piece| piece.entries as usize).sum();
        if kept * 4 <= piece_entries {
            // The page can fit one object now.
            draft.changes.gone = pieces.iter().map(|(first, _)| (*first).clone()).collect();
            draft.changes.kept.clear();
            draft.runs = vec![Run { first: first_name(), end: None, is_begun: false }];
        }
        draft.search = (!draft.runs.is_empty()).then_some(Cookie::START);
        Some(draft)
    }

    /// One run with all names.
    fn draft(&self, namespace: &Namespace, dir: Ino, piece_entries: usize) -> Option<PageDraft> {
        Some(PageDraft {
            dir,
            prefix: self.prefix_of(namespace, dir)?,
            piece_entries,
            runs: vec![Run { first: first_name(), end: None, is_begun: false }],
            at: 0,
            search: Some(Cookie::START),
            is_cut: false,
            upto: None,
            found: BTreeMap::new(),
            unseen: BTreeMap::new(),
            names: BTreeMap::new(),
            entries: Vec::new(),
            recorded: BTreeSet::new(),
            last: None,
            changes: PageChanges::default(),
            whole: Vec::new(),
        })
    }

    /// `old` are entries of the existing page, with complete pieces that the draft
    /// [needs](PageDraft::needs).
    pub fn keep_unseen(&self, namespace: &Namespace, draft: &mut PageDraft, old: &[Installed]) {
        let names = recorded_names(old);
        for entry in old {
            if self.is_unseen(namespace, draft.dir, &entry.name)
                && draft.run_of(&entry.name).is_some()
            {
                if let Some(names) = names.get(&entry.ino) {
                    draft.names.entry(entry.ino).or_insert_with(|| names.to_vec());
                }
                draft.unseen.insert(entry.name.clone(), telling(entry.clone(), None));
            }
        }
    }

    /// Processes the next `most` names, on the state for which the draft was created.
    pub fn draft_on(&self, namespace: &Namespace, draft: &mut PageDraft, most: usize) -> Drafted {
        if let Some(after) = draft.search {
            let mut looked = 0;
            for (name, child) in namespace.children_after(draft.dir, after).take(most) {
                looked += 1;
                draft.search = Some(child.cookie);
                draft.find(name, child);
            }
            if looked == most {
                return Drafted::More;
            }
            draft.search = None;
        }
        for _ in 0..most {
            if draft.at == draft.runs.len() {
                return Drafted::All;
            }
            let Some((name, origin)) = draft.next() else {
                if draft.search.is_some() {
                    return Drafted::More;
                }
                match draft.end_run() {
                    Drafted::More => continue,
                    drafted => return drafted,
                }
            };
            let entry = match &origin {
                EntryOrigin::Here(child) => self.entry(namespace, draft, &name, *child),
                EntryOrigin::There(entry) => {
                    let is_first = draft.recorded.insert(entry.ino);
                    let names = draft.names.get(&entry.ino).filter(|_| is_first).map(Vec::as_slice);
                    Some(telling(entry.clone(), names.as_ref()))
                }
            };
            draft.entries.extend(entry.map(|entry| (origin, entry)));
            if draft.entries.len() == 2 * draft.piece_entries {
                return draft.cut(draft.piece_entries);
            }
        }
        Drafted::More
    }

    /// The object for the page's key, of a [complete](Drafted::All) draft.
    pub fn finish_page(
        &self,
        namespace: &Namespace,
        draft: PageDraft,
        old: Option<&PageHead>,
    ) -> Option<(PageHead, PageChanges)> {
        let PageDraft { dir, whole, changes, .. } = draft;
        let inode = namespace.inode(dir)?;
        let parent = inode.first.and_then(|link| Some((link.parent, namespace.name_at(link)?)));
        let mut hidden: Vec<String> = below(&self.hidden, dir, String::new())
            .into_iter()
            .map(|(_, segment)| segment)
            .collect();
        if let Some(old) =
            old.filter(|_| self.dirs.get(&dir).is_some_and(|dir| dir.load == Load::Unknown))
        {
            hidden.extend(
                old.page
                    .hidden
                    .iter()
                    .filter(|segment| !self.former.contains_key(&(dir, segment.to_string())))
                    .cloned(),
            );
            hidden.sort_unstable();
            hidden.dedup();
        }
        let record = self.installed_record(namespace, inode, usize::MAX);
        let page = DirectoryPage { dir, parent, record, hidden, entries: whole };
        let mut pieces = [&changes.kept[..], &changes.written[..]].concat();
        pieces.sort_unstable_by(|one, other| one.first.cmp(&other.first));
        let moved = if pieces.is_empty() { Vec::new() } else { self.moved(namespace, dir, old) };
        Some((PageHead { page, pieces, moved }, changes))
    }

    /// Names in the directory with objects at neither their own keys nor those of other names.
    fn moved(&self, namespace: &Namespace, dir: Ino, old: Option<&PageHead>) -> Vec<Name> {
        let inodes = self.explicit_keys.iter().filter_map(|(_, ino)| namespace.inode(ino));
        let links = inodes.flat_map(|inode| {
            namespace.links(&inode).filter(|link| link.parent == dir).collect::<Vec<_>>()
        });
        let here = links.filter_map(|link| namespace.name_at(link));
        let old = old
            .into_iter()
            .flat_map(|old| &old.moved)
            .filter(|name| self.is_unseen(namespace, dir, name))
            .cloned();
        here.chain(old).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether at most the existing page has an entry for the name.
    fn is_unseen(&self, namespace: &Namespace, dir: Ino, name: &Name) -> bool {
        !self.is_complete(dir)
            && namespace.dentry(dir, name).is_none()
            && !self.removed.contains_key(&(dir, name.clone()))
    }

    /// `None` if the object or prefix represents the name completely, or will after its upload.
    fn entry(
        &self,
        namespace: &Namespace,
        draft: &mut PageDraft,
        name: &Name,
        child: Dentry,
    ) -> Option<Installed> {
        let Dentry { ino, kind, cookie } = child;
        let inode = namespace.inode(ino)?;
        let listed = format!("{}{}", draft.prefix, keys::segment_of(name));
        let what = match kind {
            FileKind::Regular => {
                let FileBacking { object, recorded, .. } = self.files.get(&ino)?;
                let object = object?;
                let is_primary = inode.first == Some(Link { parent: draft.dir, cookie });
                let key = match object.key {
                    Some(key) => key,
                    None if is_primary => keys::own_key(&draft.prefix, name, ino),
                    None => self.key_of(namespace, ino)?,
                };
                if !recorded && key == listed {
                    return None;
                }
                let key = (key != listed).then_some(key);
                InstalledKind::Object {
                    key,
                    etag: object.etag,
                    len_bytes: object.len_bytes,
                    modified: inode.attr.mtime,
                }
            }
            FileKind::Directory => {
                let state = self.dirs.get(&ino)?;
                let page = state.has_page();
                let prefix =
                    state.prefix.unwrap_or_else(|| keys::own_prefix(&draft.prefix, name, ino));
                let prefix = (prefix != listed + "/").then_some(prefix);
                if !state.recorded && prefix.is_none() {
                    return None;
                }
                InstalledKind::Directory { prefix, page }
            }
            FileKind::Symlink => {
                InstalledKind::Recorded(Make::Symlink { target: inode.target.clone() })
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                InstalledKind::Recorded(Make::Special { kind, rdev: inode.attr.rdev })
            }
        };
        let most_links = if draft.recorded.insert(ino) { usize::MAX } else { 1 };
        Some(Installed {
            name: name.clone(),
            ino,
            what,
            record: Some(self.installed_record(namespace, inode, most_links)),
        })
    }

    fn installed_record(
        &self,
        namespace: &Namespace,
        inode: Inode,
        most_links: usize,
    ) -> InstalledRecord {
        let attr = &inode.attr;
        let seen = namespace
            .links(&inode)
            .filter_map(|link| Some((link.parent, namespace.name_at(link)?)));
        // If not all names are loaded, the primary name is the one at the backing object's key.
        let unseen = self.unresolved_links(attr.ino);
        let has_several = unseen.len() + inode.names as usize > 1;
        let links = unseen
            .iter()
            .cloned()
            .chain(seen)
            .take(if has_several { most_links } else { 0 })
            .collect();
        InstalledRecord {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            links,
            xattrs: inode.recorded_xattrs().into_iter().collect(),
        }
    }
}

/// The names of inodes with several, each listed in one entry. With the list in every entry a page
/// would grow with the square of the number of names. The other entries hold only the primary name.
pub(super) fn recorded_names(entries: &[Installed]) -> BTreeMap<Ino, &[(Ino, Name)]> {
    let mut recorded = BTreeMap::new();
    for entry in entries {
        if let Some(record) = entry.record.as_ref().filter(|record| record.links.len() > 1) {
            recorded.entry(entry.ino).or_insert(&record.links[..]);
        }
    }
    recorded
}

/// Sets the names of an inode with several: all of them, or only the primary one.
pub(super) fn telling(mut entry: Installed, names: Option<&&[(Ino, Name)]>) -> Installed {
    if let Some(record) = entry.record.as_mut().filter(|record| !record.links.is_empty()) {
        match names {
            Some(names) => record.links = names.to_vec(),
            None => record.links.truncate(1),
        }
    }
    entry
}
