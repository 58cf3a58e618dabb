//! Reading the pages of directories: one object, or for a large directory a head and the needed
//! pieces (decisions 2 and 15).

use crate::Node;
use crate::admin::troubles::Subject;
use crate::buckets::ask::{Damage, ask, bucket_refusal};
use ebb_core::backing::{found_pieces, page_key, piece_key};
use ebb_format::page::{self, Head};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ETag, Object, Ports};
use ebb_store::{Latches, Mode};
use futures_util::future::try_join_all;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Pages of directories that are being loaded.
#[derive(Default)]
pub(crate) struct Pages {
    /// The most recently needed one comes last.
    read: RefCell<VecDeque<Read>>,
    /// Held while a head is read and its pieces are logged: those of two heads would be mixed.
    heads: Latches<Ino>,
}

struct Read {
    dir: Ino,
    head: Rc<Head>,
    etag: ETag,
    /// The pieces that were needed last.
    pieces: VecDeque<(u64, Rc<Vec<Installed>>)>,
}

/// About so many pieces are loaded in one part of a listing.
pub(crate) const LOAD_PIECES: usize = 4;

/// Directories whose pages are kept: memory that `--metadata-memory` does not count.
const KEPT_HEADS: usize = 16;

/// Pieces that are kept of one directory: those likely to have the next part of a listing, or the
/// next name.
const KEPT_PIECES: usize = LOAD_PIECES + 1;

/// The page of a directory with some hundred thousand names, for the time limit: the length of a
/// page is not known before it is there.
pub(crate) const LARGE_PAGE_BYTES: u64 = 32 << 20;

impl Pages {
    /// Later reads fetch the page anew.
    pub fn forget(&self, dir: Ino) {
        self.take(dir);
    }

    pub fn head(&self, dir: Ino) -> Option<(Rc<Head>, ETag)> {
        let read = self.take(dir)?;
        let head = (read.head.clone(), read.etag.clone());
        self.read.borrow_mut().push_back(read);
        Some(head)
    }

    fn keep(&self, dir: Ino, head: Rc<Head>, etag: ETag) {
        self.take(dir);
        let mut read = self.read.borrow_mut();
        if read.len() == KEPT_HEADS {
            read.pop_front();
        }
        read.push_back(Read { dir, head, etag, pieces: VecDeque::new() });
    }

    fn take(&self, dir: Ino) -> Option<Read> {
        let mut read = self.read.borrow_mut();
        let at = read.iter().position(|read| read.dir == dir)?;
        read.remove(at)
    }

    fn piece(&self, dir: Ino, id: u64) -> Option<Rc<Vec<Installed>>> {
        let read = self.read.borrow();
        read.iter()
            .find(|read| read.dir == dir)?
            .pieces
            .iter()
            .find(|(kept, _)| *kept == id)
            .map(|(_, entries)| entries.clone())
    }

    fn keep_piece(&self, dir: Ino, id: u64, entries: Rc<Vec<Installed>>) {
        if let Some(read) = self.read.borrow_mut().iter_mut().find(|read| read.dir == dir) {
            read.pieces.push_back((id, entries));
            if read.pieces.len() > KEPT_PIECES {
                read.pieces.pop_front();
            }
        }
    }
}

impl Node {
    /// The object at the page's key. The pieces that it names are logged first: later changes are
    /// marked in these.
    pub(crate) async fn head_of(
        &self,
        dir: Ino,
        key: Option<&str>,
    ) -> Result<Option<(Rc<Head>, ETag)>, RpcError> {
        let Some(key) = key else { return Ok(None) };
        let _guard = self.names.pages.heads.hold(dir, Mode::Exclusive).await;
        let Some((head, etag)) = self.seen_head(dir, key).await? else { return Ok(None) };
        // A read-only node has no changes to mark.
        let is_news =
            !self.read_only() && self.replica.view().backing().wants_pieces(dir, &head.pieces);
        if is_news {
            for found in
                found_pieces(dir, &head.pieces, self.options.record_pieces, self.ports.clock.wall())
            {
                self.commit(Command::Backing(found)).await?;
            }
        }
        Ok(Some((head, etag)))
    }

    /// Whether [`Node::head_of`] will find a page. The future may be dropped at any time.
    pub(crate) async fn see_head(&self, dir: Ino, key: Option<&str>) -> Result<bool, RpcError> {
        let Some(key) = key else { return Ok(false) };
        let _guard = self.names.pages.heads.hold(dir, Mode::Exclusive).await;
        Ok(self.seen_head(dir, key).await?.is_some())
    }

    async fn seen_head(&self, dir: Ino, key: &str) -> Result<Option<(Rc<Head>, ETag)>, RpcError> {
        if let Some(known) = self.names.pages.head(dir) {
            return Ok(Some(known));
        }
        let read = self.read_head(key).await?;
        if let Some((head, etag)) = &read {
            self.names.pages.keep(dir, head.clone(), etag.clone());
        }
        Ok(read)
    }

    pub(crate) async fn read_head(&self, key: &str) -> Result<Option<(Rc<Head>, ETag)>, RpcError> {
        let decode =
            |object: Object| Ok((page::decode(&object.body).map_err(unknown)?, object.meta.etag));
        match self
            .get_sound(key, LARGE_PAGE_BYTES, || self.buckets.bucket().get(key, None, None), decode)
            .await
        {
            Ok((head, etag)) => {
                self.is_sound(key, &(0..u64::MAX));
                Ok(Some((Rc::new(head), etag)))
            }
            Err(BucketError::NotFound { .. }) => Ok(None),
            Err(error) => Err(bucket_refusal(&error)),
        }
    }

    /// The page with the entries of the `needed` pieces, in their order. `None` if the head is out
    /// of date.
    pub(crate) async fn with_pieces(
        &self,
        dir: Ino,
        head: &Rc<Head>,
        needed: Vec<PagePiece>,
    ) -> Result<Option<Rc<Head>>, RpcError> {
        if head.pieces.is_empty() {
            return Ok(Some(head.clone()));
        }
        let pieces = try_join_all(needed.iter().map(|piece| self.piece(dir, head, piece))).await?;
        let Some(pieces) = pieces.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let entries = pieces.iter().flat_map(|piece| piece.iter().cloned()).collect();
        let page = DirectoryPage { entries, ..head.page.clone() };
        Ok(Some(Rc::new(Head { page, pieces: needed, moved: Vec::new() })))
    }

    /// `None` if the page has other pieces now.
    pub(crate) async fn piece(
        &self,
        dir: Ino,
        head: &Head,
        piece: &PagePiece,
    ) -> Result<Option<Rc<Vec<Installed>>>, RpcError> {
        if let Some(entries) = self.names.pages.piece(dir, piece.id) {
            return Ok(Some(entries));
        }
        let key = piece_key(dir, piece.id);
        let decode = |object: Object| decode_piece(dir, piece, &object);
        match self
            .get_sound(
                &key,
                LARGE_PAGE_BYTES,
                || self.buckets.bucket().get(&key, None, None),
                decode,
            )
            .await
        {
            Ok(entries) => {
                self.is_sound(&key, &(0..u64::MAX));
                let entries = Rc::new(entries);
                self.names.pages.keep_piece(dir, piece.id, entries.clone());
                self.trouble(Subject::Piece { dir, piece: piece.id }, None);
                Ok(Some(entries))
            }
            Err(BucketError::NotFound { .. }) => {
                let now = self.read_head(&page_key(dir)).await?;
                match now.is_some_and(|(now, _)| now.pieces == head.pieces) {
                    true => {
                        self.trouble(
                            Subject::Piece { dir, piece: piece.id },
                            Some(format!(
                                "{key}, which the page of directory {dir} names, is gone \
                                from the bucket"
                            )),
                        );
                        Err(FsError::Io.into())
                    }
                    false => {
                        self.names.pages.forget(dir);
                        Ok(None)
                    }
                }
            }
            Err(error) => Err(bucket_refusal(&error)),
        }
    }
}

pub(crate) fn decode_piece(
    dir: Ino,
    piece: &PagePiece,
    object: &Object,
) -> Result<Vec<Installed>, Damage> {
    let content = page::decode_piece(&object.body).map_err(unknown)?;
    if (content.dir, content.id) != (dir, piece.id) {
        return Err(Damage {
            at: 0..u64::MAX,
            what: format!("it is piece {:x} of {}", content.id, content.dir),
        });
    }
    Ok(content.entries)
}

/// The page's entry of one name.
pub(crate) async fn entry_of(
    (ports, patience): (&Ports, Duration),
    bucket: &dyn Bucket,
    head: &Head,
    name: &Name,
) -> Result<Option<Installed>, EntryError> {
    let find = |entries: Vec<Installed>| entries.into_iter().find(|entry| entry.name == *name);
    let Some(piece) = head.piece_of(name) else { return Ok(find(head.page.entries.clone())) };
    let key = piece_key(head.page.dir, piece.id);
    let object = ask(ports, patience, LARGE_PAGE_BYTES, || bucket.get(&key, None, None))
        .await
        .map_err(EntryError::Bucket)?;
    let entries = decode_piece(head.page.dir, piece, &object)
        .map_err(|damage| EntryError::Damage { key, what: damage.what })?;
    Ok(find(entries))
}

pub(crate) enum EntryError {
    Bucket(BucketError),
    Damage { key: String, what: String },
}

fn unknown(error: ebb_format::FormatError) -> Damage {
    Damage { at: 0..u64::MAX, what: format!("the attributes that it holds are unknown: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use ebb_core::backing::PageChanges;
    use ebb_format::record::{self, GroupId, Payload, Position, RecordHeader, Term};
    use ebb_format::segment::Generation;

    /// Situation: a page of a hundred million entries, with the longest names. Danger: its list of
    /// pieces is longer than a record can be. Expectation: it is logged in several records.
    #[test]
    fn page_changes_of_many_pieces_fit_log_records() {
        let name = |at: u64| Name::new(format!("{at:0255}").as_bytes()).unwrap();
        let pieces: Vec<PagePiece> = (0..5000)
            .map(|at| PagePiece { first: name(at), id: u64::MAX, entries: u32::MAX })
            .collect();
        let mut parts = PageChanges::default();
        parts.gone = (2500..7500).map(name).collect();
        parts.written.clone_from(&pieces);
        let most = Options::default().record_pieces;
        let replaced = parts.replaced(Ino::ROOT, most);
        let found = found_pieces(Ino::ROOT, &pieces, most, Time::from_secs(1));
        assert!(found.len() > 1 && replaced.len() > 1);
        for command in found.into_iter().chain(replaced) {
            let header = RecordHeader {
                generation: Generation(1),
                group: GroupId::PARTITION,
                position: Position(0),
                synced: Position(0),
                term: Term(1),
                index: LogIndex(1),
            };
            let payload: Payload = Payload::Command(Command::Backing(command));
            assert!(record::encode(&header, &payload, &mut Vec::new()).is_ok());
        }
    }

    #[test]
    fn pages_of_many_directories_are_not_kept() {
        let pages = Pages::default();
        let time = Time::from_secs(0);
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let record = InstalledRecord {
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
        let page =
            DirectoryPage { dir: Ino(0), parent: None, record, hidden: vec![], entries: vec![] };
        let keep = |dir| pages.keep(Ino(dir), Rc::new(page.clone().into()), ETag("tag".into()));
        (0..KEPT_HEADS as u64).for_each(keep);
        assert!(pages.head(Ino(0)).is_some(), "all have room");
        keep(KEPT_HEADS as u64);
        assert!(pages.head(Ino(0)).is_some(), "it was needed last");
        assert!(pages.head(Ino(1)).is_none());
        keep(2);
        assert_eq!(pages.read.borrow().len(), KEPT_HEADS);
    }
}
