//! The pieces of large directories' pages (decision 15): the list of them, and the changes since
//! each was written.

use super::observe::{below, first_name};
use super::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// For each directory with a page in pieces, or with one being written.
pub(super) type AllPieces = BTreeMap<Ino, Arc<Pieces>>;

/// Laws:
/// - `live` are the pieces of the head in the bucket. While the records of a new head are
///   incomplete, some ranges have the pieces of the previous one. The first piece starts at the
///   lowest name.
/// - `left` are all other pieces that can exist. They are deleted only after a later head is
///   confirmed: the head in the bucket can refer to them.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    /// Keyed by their first names.
    live: BTreeMap<Name, Piece>,
    left: BTreeSet<u64>,
}

/// A piece of a page in the bucket, and its changes since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub(super) id: u64,
    pub(super) entries: u32,
    pub(super) change: PieceChange,
}

/// The changes of entries in a piece's range since it was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum PieceChange {
    None,
    /// All changes happened before the write in progress, or an aborted one, began. Such a piece is
    /// written again.
    Sent,
    Changed,
}

/// Names of an inode that every change walks over. With more names all pieces are marked once,
/// until a mark can have been cleared.
const FEW_NAMES: u32 = 16;

/// Approximate memory of a piece.
const PIECE_BYTES: usize = 100;

impl Pieces {
    fn containing(&mut self, name: &Name) -> Option<&mut Piece> {
        self.live.range_mut::<Name, _>(..=name).next_back().map(|(_, piece)| piece)
    }

    /// The change state of the piece with exactly this range and id.
    fn change_of(&self, first: &Name, id: u64, end: Option<&Name>) -> Option<PieceChange> {
        let mut from = self.live.range::<Name, _>(first..);
        let (_, piece) = from.next().filter(|(at, piece)| *at == first && piece.id == id)?;
        (from.next().map(|(next, _)| next) == end).then_some(piece.change)
    }

    /// Whether the change state of any piece with names in this range satisfies `is_so`.
    fn has_in(
        &self,
        first: &Name,
        end: Option<&Name>,
        is_so: impl Fn(PieceChange) -> bool,
    ) -> bool {
        let within = self
            .live
            .range::<Name, _>(first..)
            .take_while(|(at, _)| end.is_none_or(|end| *at < end));
        let containing = self.live.range::<Name, _>(..=first).next_back();
        within.chain(containing).any(|(_, piece)| is_so(piece.change))
    }

    fn replace(&mut self, gone: &[Name], pieces: &[PagePiece], again: bool) {
        let going: BTreeSet<&Name> = gone.iter().collect();
        let kept: BTreeSet<&Name> =
            self.live.keys().filter(|first| !going.contains(first)).collect();
        let is_new = self.live.is_empty();
        let written: Vec<(Name, Piece)> = (pieces.iter().zip(ends(pieces, None)))
            .map(|(PagePiece { first, id, entries }, end)| {
                let kept = kept.range::<Name, _>(first..).next().copied();
                let end = end.into_iter().chain(kept).min();
                let is_changed = if is_new {
                    again
                } else {
                    self.has_in(first, end, |change| change == PieceChange::Changed)
                };
                let change = if is_changed { PieceChange::Changed } else { PieceChange::Sent };
                (first.clone(), Piece { id: *id, entries: *entries, change })
            })
            .collect();
        let mut fallen = Vec::new();
        for first in gone {
            let Some(piece) = self.live.remove(first) else { continue };
            self.left.insert(piece.id);
            fallen.push((first, piece.change));
        }
        for (first, piece) in written {
            self.left.remove(&piece.id);
            self.live.insert(first, piece);
        }
        // A range without a piece of its own now belongs to the piece before it, with its changes.
        for (first, change) in fallen {
            if let Some(piece) = self.containing(first) {
                piece.change = piece.change.max(change);
            }
        }
    }
}

/// The end of each piece's range; the last one ends at `last`.
pub(super) fn ends<'a>(
    pieces: &'a [PagePiece],
    last: Option<&'a Name>,
) -> impl Iterator<Item = Option<&'a Name>> {
    pieces.iter().skip(1).map(|piece| Some(&piece.first)).chain([last])
}

/// Commands that record the pieces of an existing head, at most `most` per command.
pub fn found_pieces(dir: Ino, pieces: &[PagePiece], most: usize, now: Time) -> Vec<BackingCommand> {
    let parts: Vec<&[PagePiece]> = match pieces {
        [] => vec![pieces],
        _ => pieces.chunks(most.max(1)).collect(),
    };
    let ends = parts
        .iter()
        .skip(1)
        .map(|next| next.first().map(|piece| piece.first.clone()))
        .chain([None]);
    parts
        .iter()
        .zip(ends)
        .map(|(part, end)| BackingCommand::PiecesFound { dir, pieces: part.to_vec(), end, now })
        .collect()
}

impl Backing {
    pub(super) fn pieces_bytes(&self) -> usize {
        self.pieces
            .values()
            .map(|pieces| (pieces.live.len() + pieces.left.len()) * PIECE_BYTES)
            .sum()
    }

    /// The recorded entry of a name is stale. The caller also marks the page as dirty.
    pub(super) fn entry_changed(&mut self, dir: Ino, name: &Name) {
        if let Some(pieces) = self.pieces.get_mut(&dir)
            && let Some(piece) = Arc::make_mut(pieces).containing(name)
        {
            piece.change = PieceChange::Changed;
        }
    }

    /// Like [`Backing::entry_changed`], for all names of the inode.
    pub(super) fn entries_changed(&mut self, namespace: &Namespace, inode: &Inode) {
        let has_pieces = |parent| self.pieces.contains_key(&parent);
        if self.pieces.is_empty()
            || self.marked.contains(&inode.attr.ino)
            || !namespace.parents(inode).any(has_pieces)
        {
            return;
        }
        if inode.names > FEW_NAMES {
            self.marked.insert(inode.attr.ino);
        }
        for link in namespace
            .links(inode)
            .filter(|link| self.pieces.contains_key(&link.parent))
            .collect::<Vec<_>>()
        {
            if let Some(name) = namespace.name_at(link) {
                self.entry_changed(link.parent, &name);
            }
        }
    }

    pub(super) fn all_entries_changed(&mut self, dir: Ino) {
        if let Some(pieces) = self.pieces.get_mut(&dir) {
            Arc::make_mut(pieces)
                .live
                .values_mut()
                .for_each(|piece| piece.change = PieceChange::Changed);
        }
    }

    /// Records the pieces of an existing head up to `end`.
    pub(super) fn pieces_found(
        &mut self,
        namespace: &Namespace,
        dir: Ino,
        found: &[PagePiece],
        end: Option<&Name>,
        now: Time,
    ) {
        let Some(state) = self.dirs.get(&dir).filter(|_| self.takes_pieces(dir)) else { return };
        let before = self.pieces.get(&dir).cloned().unwrap_or_default();
        if before.live.is_empty() && found.first().is_none_or(|piece| piece.first != first_name()) {
            return;
        }
        // The loaded names can come from another head with other ranges.
        let is_touched = state.load != Load::Unknown
            || namespace.has_more_names_than(dir, 0)
            || !below(&self.removed, dir, first_name()).is_empty();
        let recorded =
            found.iter().zip(ends(found, end)).map(|(PagePiece { first, id, entries }, end)| {
                let change = match before.change_of(first, *id, end) {
                    Some(change) => change,
                    // A piece of a write that was aborted here is at least as new as the list
                    // before it, which has the marks.
                    None if is_touched && (before.live.is_empty() || !before.left.contains(id)) => {
                        PieceChange::Changed
                    }
                    None if before.has_in(first, end, |change| change != PieceChange::None) => {
                        PieceChange::Changed
                    }
                    None => PieceChange::None,
                };
                (first.clone(), Piece { id: *id, entries: *entries, change })
            });
        let is_told = |first: &Name| {
            found.first().is_none_or(|piece| piece.first <= *first)
                && end.is_none_or(|end| first < end)
        };
        let (displaced, others): (Vec<_>, Vec<_>) =
            before.live.iter().partition(|(first, _)| is_told(first));
        // Ids are unique. A head with a repeated id is ignored: with it a live piece could be
        // deleted.
        let ids: BTreeSet<u64> = found.iter().map(|piece| piece.id).collect();
        if ids.len() < found.len() || others.iter().any(|(_, piece)| ids.contains(&piece.id)) {
            return;
        }
        let live: BTreeMap<Name, Piece> = others
            .into_iter()
            .map(|(first, piece)| (first.clone(), *piece))
            .chain(recorded)
            .collect();
        let mut left: BTreeSet<u64> = displaced
            .into_iter()
            .map(|(_, piece)| piece.id)
            .chain(before.left.iter().copied())
            .collect();
        left.retain(|id| !ids.contains(id));
        let is_due =
            !left.is_empty() || live.values().any(|piece| piece.change != PieceChange::None);
        self.marked.clear();
        self.pieces.remove(&dir);
        if !live.is_empty() || !left.is_empty() {
            self.pieces.insert(dir, Arc::new(Pieces { live, left }));
        }
        // Entries that were interpreted with another head must not be installed.
        self.change_dir(dir, |dir| dir.epoch += 1);
        if is_due {
            self.page_changed(namespace, dir, now);
        }
    }

    pub(super) fn pieces_begun(&mut self, dir: Ino, ids: &[u64]) {
        if self.uploads.contains_key(&dir) {
            Arc::make_mut(self.pieces.entry(dir).or_default()).left.extend(ids);
        }
    }

    /// The write of a page begins: it may lack later changes.
    pub(super) fn pieces_sent(&mut self, dir: Ino) {
        self.marked.clear();
        let Some(pieces) = self.pieces.get_mut(&dir) else { return };
        for piece in Arc::make_mut(pieces)
            .live
            .values_mut()
            .filter(|piece| piece.change == PieceChange::Changed)
        {
            piece.change = PieceChange::Sent;
        }
    }

    /// The head in the bucket has `pieces` in place of those that began with `gone`. Until the last
    /// record of it they count as changed.
    pub(super) fn pieces_replaced(&mut self, dir: Ino, gone: &[Name], pieces: &[PagePiece]) {
        self.marked.clear();
        if let Some(state) = self.dirs.get(&dir)
            && (!pieces.is_empty() || self.pieces.contains_key(&dir))
        {
            let again = state.dirty.is_some_and(|dirty| dirty.again);
            Arc::make_mut(self.pieces.entry(dir).or_default()).replace(gone, pieces, again);
        }
    }

    /// The records of the head in the bucket are complete.
    pub(super) fn pieces_written(&mut self, dir: Ino) {
        if let Some(pieces) = self.pieces.get_mut(&dir) {
            for piece in Arc::make_mut(pieces)
                .live
                .values_mut()
                .filter(|piece| piece.change == PieceChange::Sent)
            {
                piece.change = PieceChange::None;
            }
        }
        self.delete_left(dir);
    }

    /// Like [`Backing::pieces_written`], for a page that is one object.
    pub(super) fn whole_page_written(&mut self, dir: Ino) {
        let gone: Vec<Name> =
            self.pieces.get(&dir).iter().flat_map(|pieces| pieces.live.keys().cloned()).collect();
        self.pieces_replaced(dir, &gone, &[]);
        self.pieces_written(dir);
    }

    /// The write of a page was aborted, possibly of a directory that was removed during it.
    pub(super) fn pieces_aborted(&mut self, dir: Ino) {
        if !self.dirs.contains_key(&dir) {
            self.delete_left(dir);
        }
    }

    /// The directory was removed.
    pub(super) fn pieces_removed(&mut self, dir: Ino) {
        let Some(pieces) = self.pieces.get_mut(&dir) else { return };
        let pieces = Arc::make_mut(pieces);
        let live = std::mem::take(&mut pieces.live);
        pieces.left.extend(live.into_values().map(|piece| piece.id));
        // Pieces of an upload in progress can still arrive.
        if !self.uploads.contains_key(&dir) {
            self.delete_left(dir);
        }
    }

    fn delete_left(&mut self, dir: Ino) {
        let Some(pieces) = self.pieces.get_mut(&dir) else { return };
        let pieces = Arc::make_mut(pieces);
        for id in std::mem::take(&mut pieces.left) {
            self.deletes.insert(&keys::piece_key(dir, id), &None);
        }
        if pieces.live.is_empty() {
            self.pieces.remove(&dir);
        }
    }

    /// Forgets the pieces of a page of another writer, except the objects in the bucket.
    pub(super) fn rebuild_pieces(&mut self, dir: Ino, there: impl Iterator<Item = u64>) {
        self.marked.clear();
        self.pieces.remove(&dir);
        let left: BTreeSet<u64> = there.collect();
        if !left.is_empty() {
            self.pieces.insert(dir, Arc::new(Pieces { live: BTreeMap::new(), left }));
        }
    }

    /// Whether the delete of a piece must wait: without its pieces a page is unreadable.
    pub fn awaits_head(&self, key: &str) -> bool {
        keys::piece_of(key).is_some_and(|(dir, _)| self.deletes.contains_key(&keys::page_key(dir)))
    }

    /// Keys of pieces that can exist and belong to no confirmed head.
    pub fn pieces_left(&self) -> impl Iterator<Item = String> {
        self.pieces
            .iter()
            .flat_map(|(dir, pieces)| pieces.left.iter().map(|id| keys::piece_key(*dir, *id)))
    }

    pub(super) fn live_pieces(&self, dir: Ino) -> impl Iterator<Item = (&Name, &Piece)> {
        self.pieces.get(&dir).into_iter().flat_map(|pieces| &pieces.live)
    }

    /// Whether all pieces in use are recorded. A later page of another writer can have others.
    pub(super) fn knows_pieces(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|state| !state.stored || state.page.is_some())
    }

    /// The recorded pieces of the page in the bucket.
    pub fn pieces_of(&self, dir: Ino) -> Vec<PagePiece> {
        let piece = |(first, piece): (&Name, &Piece)| PagePiece {
            first: first.clone(),
            id: piece.id,
            entries: piece.entries,
        };
        self.live_pieces(dir).map(piece).collect()
    }

    /// Whether a head just read has another list of pieces than the recorded one, and is of another
    /// writer, so it must be recorded.
    pub fn wants_pieces(&self, dir: Ino, there: &[PagePiece]) -> bool {
        let live = self.live_pieces(dir).map(|(first, piece)| (first, piece.id));
        self.takes_pieces(dir) && !live.eq(there.iter().map(|piece| (&piece.first, piece.id)))
    }

    fn takes_pieces(&self, dir: Ino) -> bool {
        let is_others =
            self.dirs.get(&dir).is_some_and(|state| state.stored && state.page.is_none());
        is_others && !self.uploads.contains_key(&dir) && !self.is_complete(dir)
    }

    pub(super) fn has_piece(&self, dir: Ino, id: u64) -> bool {
        self.pieces.get(&dir).is_some_and(|pieces| {
            pieces.left.contains(&id) || pieces.live.values().any(|piece| piece.id == id)
        })
    }

    pub(super) fn piece_items(&self) -> impl Iterator<Item = BackingItem> {
        self.pieces.iter().flat_map(|(&dir, pieces)| {
            let live = pieces.live.iter().map(move |(first, piece)| BackingItem::Piece {
                dir,
                first: first.clone(),
                piece: *piece,
            });
            live.chain(pieces.left.iter().map(move |id| BackingItem::PieceLeft { dir, id: *id }))
        })
    }

    pub(super) fn restore_piece(&mut self, dir: Ino, first: Name, piece: Piece) {
        Arc::make_mut(self.pieces.entry(dir).or_default()).live.insert(first, piece);
    }

    pub(super) fn restore_left(&mut self, dir: Ino, id: u64) {
        Arc::make_mut(self.pieces.entry(dir).or_default()).left.insert(id);
    }

    pub(super) fn check_pieces(&self, problems: &mut Vec<String>) {
        for (&dir, pieces) in &self.pieces {
            let is_dirty = self.dirs.get(&dir).is_some_and(|dir| dir.dirty.is_some())
                || self.uploads.contains_key(&dir);
            let is_changed = pieces.live.values().any(|piece| piece.change != PieceChange::None);
            if (is_changed || !pieces.left.is_empty()) && !is_dirty {
                problems.push(format!(
                    "pieces of {dir} are dirty or pending deletion, and its page is clean"
                ));
            }
            if !pieces.live.is_empty() && !self.dirs.get(&dir).is_some_and(|dir| dir.stored) {
                problems.push(format!("the page of {dir} in pieces is not stored"));
            }
            if pieces.live.is_empty() && pieces.left.is_empty() {
                problems.push(format!("the list of pieces of {dir} is empty and not removed"));
            }
            if pieces.live.keys().next().is_some_and(|first| *first != first_name()) {
                problems.push(format!("the first piece of {dir} starts too late"));
            }
            let mut ids = pieces.left.clone();
            for id in pieces.live.values().map(|piece| piece.id) {
                if !ids.insert(id) || self.deletes.contains_key(&keys::piece_key(dir, id)) {
                    problems.push(format!(
                        "piece {id:x} of {dir} is listed twice, or pending deletion"
                    ));
                }
            }
        }
    }
}
