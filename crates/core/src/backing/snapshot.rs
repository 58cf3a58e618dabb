//! The backing as a sequence of items, for snapshots.

use super::pieces::Piece;
use super::*;

/// One item of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BackingItem {
    Backed(bool),
    File { ino: Ino, state: FileBacking },
    Directory { ino: Ino, state: DirBacking },
    Upload { ino: Ino, state: Upload },
    Delete { key: String, etag: Option<String> },
    Hidden { dir: Ino, segment: String },
    Former { dir: Ino, segment: String },
    Removed { dir: Ino, name: Name },
    UnresolvedLinks { ino: Ino, names: Vec<(Ino, Name)> },
    Piece { dir: Ino, first: Name, piece: Piece },
    PieceLeft { dir: Ino, id: u64 },
    UploadSince { ino: Ino, since: Version },
}

impl Backing {
    /// All items, in an order determined by the state.
    pub fn items(&self) -> impl Iterator<Item = BackingItem> {
        let files = self.files.iter().map(|(ino, state)| BackingItem::File { ino, state });
        let dirs = self.dirs.iter().map(|(ino, state)| BackingItem::Directory { ino, state });
        let uploads = self
            .uploads
            .iter()
            .map(|(ino, state)| BackingItem::Upload { ino: *ino, state: state.clone() });
        let deletes = self.deletes.iter().map(|(key, etag)| BackingItem::Delete { key, etag });
        let hidden =
            self.hidden.iter().map(|((dir, segment), ())| BackingItem::Hidden { dir, segment });
        let former =
            self.former.iter().map(|((dir, segment), ())| BackingItem::Former { dir, segment });
        let removed =
            self.removed.iter().map(|((dir, name), ())| BackingItem::Removed { dir, name });
        let unseen = self
            .unresolved_links
            .inodes()
            .map(|ino| BackingItem::UnresolvedLinks { ino, names: self.unresolved_links.of(ino) });
        std::iter::once(BackingItem::Backed(self.backed))
            .chain(files)
            .chain(dirs)
            .chain(uploads)
            .chain(deletes)
            .chain(hidden)
            .chain(former)
            .chain(removed)
            .chain(unseen)
            .chain(self.piece_items())
            .chain(
                self.uploads
                    .iter()
                    .map(|(ino, state)| BackingItem::UploadSince { ino: *ino, since: state.since }),
            )
    }

    /// Restores one item of a snapshot. Indices are rebuilt; [`Backing::check`] verifies the
    /// result.
    pub(crate) fn restore(&mut self, item: BackingItem) {
        match item {
            BackingItem::Backed(backed) => self.backed = backed,
            BackingItem::File { ino, state } => {
                if let Some(BackingObject { key: Some(key), .. }) = &state.object {
                    self.explicit_keys.insert(key, &ino);
                }
                self.new_file(ino, &state);
            }
            BackingItem::Directory { ino, state } => {
                if let Some(prefix) = &state.prefix {
                    self.redirects.insert(prefix, &ino);
                }
                self.requeue(true, ino, None, state.dirty.as_ref().map(|dirty| dirty.since));
                self.dirs.insert(&ino, &state);
            }
            BackingItem::Upload { ino, state } => {
                self.uploads.insert(ino, state);
            }
            BackingItem::Delete { key, etag } => {
                self.deletes.insert(&key, &etag);
            }
            BackingItem::Hidden { dir, segment } => {
                self.hidden.insert(&(dir, segment), &());
            }
            BackingItem::Former { dir, segment } => {
                self.former.insert(&(dir, segment), &());
            }
            BackingItem::Removed { dir, name } => {
                self.removed.insert(&(dir, name), &());
            }
            BackingItem::UnresolvedLinks { ino, names } => {
                self.unresolved_links.insert(ino, &names)
            }
            BackingItem::Piece { dir, first, piece } => self.restore_piece(dir, first, piece),
            BackingItem::PieceLeft { dir, id } => self.restore_left(dir, id),
            BackingItem::UploadSince { ino, since } => {
                if let Some(upload) = self.uploads.get_mut(&ino) {
                    upload.since = since;
                }
            }
        }
    }
}
