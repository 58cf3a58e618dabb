//! The pieces of large directories' pages (decision 15): which there are, and which of them no
//! longer say what is so.

use super::follow::{below, first_name};
use super::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of each directory whose page is in pieces, or is becoming so.
pub(super) type AllPieces = BTreeMap<Ino, Arc<Pieces>>;

/// Laws:
/// - `live` are those of the head that is in the bucket, or in some ranges of names those of the
///   one before it, where not all has been told of its write; the first of them begins with the
///   least name.
/// - `left` are all others that may be there. They are deleted when the next head is known to be
///   there, and not before: the head may be theirs.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    /// By their first names.
    live: BTreeMap<Name, Piece>,
    left: BTreeSet<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub(super) id: u64,
    pub(super) entries: u32,
    pub(super) change: PieceChange,
}

/// What entries in the range of a piece have gone through since it was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum PieceChange {
    None,
    /// All of it before the write under way began, or the last one that was broken off. Whatever is
    /// so is written anew.
    Sent,
    Changed,
}

/// Names of an inode that are walked through at each change of it. Those of one with more are all
/// marked once, until any of the marks may have gone.
const FEW_NAMES: u32 = 16;

/// What a piece takes of the memory, about.
const PIECE_BYTES: usize = 100;

impl Pieces {
    fn containing(&mut self, name: &Name) -> Option<&mut Piece> {
        self.live.range_mut::<Name, _>(..=name).next_back().map(|(_, piece)| piece)
    }

    /// What the piece has gone through, if it is the one of this range.
    fn change_of(&self, first: &Name, id: u64, end: Option<&Name>) -> Option<PieceChange> {
        let mut from = self.live.range::<Name, _>(first..);
        let (_, piece) = from.next().filter(|(at, piece)| *at == first && piece.id == id)?;
        (from.next().map(|(next, _)| next) == end).then_some(piece.change)
    }

    /// Whether a piece with names in this range is so.
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
        // A range that has no piece now has fallen to the one before, with what has come there
        // since.
        for (first, change) in fallen {
            if let Some(piece) = self.containing(first) {
                piece.change = piece.change.max(change);
            }
        }
    }
}

/// Where the ranges of pieces end of which the last one ends at `last`.
pub(super) fn ends<'a>(
    pieces: &'a [PagePiece],
    last: Option<&'a Name>,
) -> impl Iterator<Item = Option<&'a Name>> {
    pieces.iter().skip(1).map(|piece| Some(&piece.first)).chain([last])
}

/// What is to be told of the pieces of a head that is there, at most so many in one record.
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

    /// What is said of a name in a directory is no longer true. Its page is to be written besides.
    pub(super) fn entry_changed(&mut self, dir: Ino, name: &Name) {
        if let Some(pieces) = self.pieces.get_mut(&dir)
            && let Some(piece) = Arc::make_mut(pieces).containing(name)
        {
            piece.change = PieceChange::Changed;
        }
    }

    /// As [`Backing::entry_changed`], of all names of the inode.
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

    /// Of the pieces of a head that is there, those up to `end`.
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
        // What names are known here may be from another head, in which they were in other ranges.
        let is_touched = state.load != Load::Unknown
            || namespace.has_more_names_than(dir, 0)
            || !below(&self.removed, dir, first_name()).is_empty();
        let told =
            found.iter().zip(ends(found, end)).map(|(PagePiece { first, id, entries }, end)| {
                let change = match before.change_of(first, *id, end) {
                    Some(change) => change,
                    // One of a write that was broken off here says no less than the list from
                    // before, which has the marks.
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
        // Nobody gives an id twice: what says so is believed nothing of pieces, or one that is
        // there might be deleted.
        let ids: BTreeSet<u64> = found.iter().map(|piece| piece.id).collect();
        if ids.len() < found.len() || others.iter().any(|(_, piece)| ids.contains(&piece.id)) {
            return;
        }
        let live: BTreeMap<Name, Piece> =
            others.into_iter().map(|(first, piece)| (first.clone(), *piece)).chain(told).collect();
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
        // What was made of another head is not installed any more.
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

    /// The write of a page has begun: what changes from now on it may lack.
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

    /// A head is in the bucket that has `pieces` in the place of those that began with `gone`.
    /// Until all of it has been told they count as to be written.
    pub(super) fn pieces_replaced(&mut self, dir: Ino, gone: &[Name], pieces: &[PagePiece]) {
        self.marked.clear();
        if let Some(state) = self.dirs.get(&dir)
            && (!pieces.is_empty() || self.pieces.contains_key(&dir))
        {
            let again = state.dirty.is_some_and(|dirty| dirty.again);
            Arc::make_mut(self.pieces.entry(dir).or_default()).replace(gone, pieces, again);
        }
    }

    /// All of the head that is in the bucket has been told.
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

    /// As [`Backing::pieces_written`], of a head that has all entries itself.
    pub(super) fn whole_page_written(&mut self, dir: Ino) {
        let gone: Vec<Name> =
            self.pieces.get(&dir).iter().flat_map(|pieces| pieces.live.keys().cloned()).collect();
        self.pieces_replaced(dir, &gone, &[]);
        self.pieces_written(dir);
    }

    /// The write of a page has been broken off, perhaps of a directory that has gone meanwhile.
    pub(super) fn pieces_aborted(&mut self, dir: Ino) {
        if !self.dirs.contains_key(&dir) {
            self.delete_left(dir);
        }
    }

    /// The directory has been removed.
    pub(super) fn pieces_removed(&mut self, dir: Ino) {
        let Some(pieces) = self.pieces.get_mut(&dir) else { return };
        let pieces = Arc::make_mut(pieces);
        let live = std::mem::take(&mut pieces.live);
        pieces.left.extend(live.into_values().map(|piece| piece.id));
        // Some may still be on their way.
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

    /// Nothing is known of the pieces of a page that somebody else has written, but what is in the
    /// bucket.
    pub(super) fn rebuild_pieces(&mut self, dir: Ino, there: impl Iterator<Item = u64>) {
        self.marked.clear();
        self.pieces.remove(&dir);
        let left: BTreeSet<u64> = there.collect();
        if !left.is_empty() {
            self.pieces.insert(dir, Arc::new(Pieces { live: BTreeMap::new(), left }));
        }
    }

    /// Whether the object of a piece is not to be deleted yet: without its pieces a page cannot be
    /// read.
    pub fn awaits_head(&self, key: &str) -> bool {
        keys::piece_of(key).is_some_and(|(dir, _)| self.deletes.contains_key(&keys::page_key(dir)))
    }

    /// Keys of pieces that may be in the bucket and are of no head that is known to be there.
    pub fn pieces_left(&self) -> impl Iterator<Item = String> {
        self.pieces
            .iter()
            .flat_map(|(dir, pieces)| pieces.left.iter().map(|id| keys::piece_key(*dir, *id)))
    }

    pub(super) fn live_pieces(&self, dir: Ino) -> impl Iterator<Item = (&Name, &Piece)> {
        self.pieces.get(&dir).into_iter().flat_map(|pieces| &pieces.live)
    }

    /// Whether no pieces are in use but those that are known. Of a page of another's hand a later
    /// one may still come.
    pub(super) fn knows_pieces(&self, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|state| !state.stored || state.page.is_some())
    }

    /// The pieces of the page that is in the bucket, for all that is known.
    pub fn pieces_of(&self, dir: Ino) -> Vec<PagePiece> {
        let piece = |(first, piece): (&Name, &Piece)| PagePiece {
            first: first.clone(),
            id: piece.id,
            entries: piece.entries,
        };
        self.live_pieces(dir).map(piece).collect()
    }

    /// Whether the list of pieces in the head that is there is to be told, as soon as that has been
    /// read: it is not the one that is known, and of another's hand.
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
                    "pieces of {dir} are to be written, or deleted, and its page is not"
                ));
            }
            if !pieces.live.is_empty() && !self.dirs.get(&dir).is_some_and(|dir| dir.stored) {
                problems.push(format!("the page of {dir} is in pieces and is not there"));
            }
            if pieces.live.is_empty() && pieces.left.is_empty() {
                problems.push(format!("an empty list of the pieces of {dir} is kept"));
            }
            if pieces.live.keys().next().is_some_and(|first| *first != first_name()) {
                problems.push(format!("names of {dir} are in front of its first piece"));
            }
            let mut ids = pieces.left.clone();
            for id in pieces.live.values().map(|piece| piece.id) {
                if !ids.insert(id) || self.deletes.contains_key(&keys::piece_key(dir, id)) {
                    problems
                        .push(format!("piece {id:x} of {dir} is there twice, or to be deleted"));
                }
            }
        }
    }
}
