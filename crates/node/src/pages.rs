//! Reading the pages of directories: one object, or of a large directory a head and those of its pieces that are
//! needed (decisions 2 and 15).

use crate::Node;
use crate::bucket::Damage;
use crate::load::bucket_refusal;
use ebb_core::backing::{page_key, piece_key};
use ebb_format::page::{self, Head};
use ebb_model::*;
use ebb_ports::{Bucket, BucketError, ETag, Object};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Pages of directories that are being loaded.
#[derive(Default)]
pub(crate) struct Pages {
    read: RefCell<BTreeMap<Ino, Read>>,
}

struct Read {
    head: Rc<Head>,
    etag: ETag,
    /// Those that were needed last.
    pieces: VecDeque<(u64, Rc<Vec<Installed>>)>,
}

/// Pieces that are kept of one directory: those that the next part of a listing, or the next name, is likely in.
const KEPT_PIECES: usize = 4;

/// The page of a directory with some hundred thousand names, for the time that it may take: how
/// long one is is not known before it is there.
pub(crate) const LARGE_PAGE_BYTES: u64 = 32 << 20;

impl Pages {
    /// What is read from now on is read anew.
    pub fn forget(&self, dir: Ino) {
        self.read.borrow_mut().remove(&dir);
    }

    fn head(&self, dir: Ino) -> Option<Rc<Head>> {
        self.read.borrow().get(&dir).map(|read| read.head.clone())
    }

    /// Tag of the head that was read last.
    pub fn etag(&self, dir: Ino) -> Option<ETag> {
        self.read.borrow().get(&dir).map(|read| read.etag.clone())
    }

    fn keep(&self, dir: Ino, head: Rc<Head>, etag: ETag) {
        self.read.borrow_mut().insert(dir, Read { head, etag, pieces: VecDeque::new() });
    }

    fn piece(&self, dir: Ino, id: u64) -> Option<Rc<Vec<Installed>>> {
        let read = self.read.borrow();
        read.get(&dir)?.pieces.iter().find(|(kept, _)| *kept == id).map(|(_, entries)| entries.clone())
    }

    fn keep_piece(&self, dir: Ino, id: u64, entries: Rc<Vec<Installed>>) {
        if let Some(read) = self.read.borrow_mut().get_mut(&dir) {
            read.pieces.push_back((id, entries));
            if read.pieces.len() > KEPT_PIECES {
                read.pieces.pop_front();
            }
        }
    }
}

impl Node {
    /// The object at the page's key. What pieces it names is logged first: changes from then on are marked in these.
    pub(crate) async fn head_of(&self, dir: Ino, key: Option<&str>) -> Result<Option<Rc<Head>>, RpcError> {
        let Some(key) = key else { return Ok(None) };
        let head = match self.pages.head(dir) {
            Some(head) => head,
            None => {
                let Some((head, etag)) = self.read_head(key).await? else { return Ok(None) };
                self.pages.keep(dir, head.clone(), etag);
                head
            }
        };
        let is_news = self.replica.view().backing().wants_pieces(dir, &head.pieces);
        if is_news {
            self.commit(Command::Backing(BackingCommand::PiecesFound { dir, pieces: head.pieces.clone() })).await?;
        }
        Ok(Some(head))
    }

    pub(crate) async fn read_head(&self, key: &str) -> Result<Option<(Rc<Head>, ETag)>, RpcError> {
        let decode = |object: Object| Ok((page::decode(&object.body).map_err(unknown)?, object.meta.etag));
        match self.get_sound(key, &(0..LARGE_PAGE_BYTES), || self.bucket().get(key, None, None), decode).await {
            Ok((head, etag)) => Ok(Some((Rc::new(head), etag))),
            Err(BucketError::NotFound { .. }) => Ok(None),
            Err(error) => Err(bucket_refusal(&error)),
        }
    }

    /// The page with the entries of those pieces that are `needed`, in their order. `None` if the head is out of date.
    pub(crate) async fn with_pieces(&self, dir: Ino, head: &Rc<Head>, needed: Vec<PagePiece>) -> Result<Option<Rc<Head>>, RpcError> {
        if head.pieces.is_empty() {
            return Ok(Some(head.clone()));
        }
        let mut entries = Vec::new();
        for piece in &needed {
            let Some(of_piece) = self.piece(dir, head, piece).await? else { return Ok(None) };
            entries.extend(of_piece.iter().cloned());
        }
        let page = DirectoryPage { entries, ..head.page.clone() };
        Ok(Some(Rc::new(Head { page, pieces: needed, moved: Vec::new() })))
    }

    /// `None` if the page is in other pieces by now.
    pub(crate) async fn piece(&self, dir: Ino, head: &Head, piece: &PagePiece) -> Result<Option<Rc<Vec<Installed>>>, RpcError> {
        if let Some(entries) = self.pages.piece(dir, piece.id) {
            return Ok(Some(entries));
        }
        let key = piece_key(dir, piece.id);
        let decode = |object: Object| decode_piece(dir, piece, &object);
        match self.get_sound(&key, &(0..LARGE_PAGE_BYTES), || self.bucket().get(&key, None, None), decode).await {
            Ok(entries) => {
                let entries = Rc::new(entries);
                self.pages.keep_piece(dir, piece.id, entries.clone());
                Ok(Some(entries))
            }
            Err(BucketError::NotFound { .. }) => {
                let now = self.read_head(&page_key(dir)).await?;
                match now.is_some_and(|(now, _)| now.pieces == head.pieces) {
                    true => {
                        self.trouble(
                            &format!("load {dir}"),
                            Some(format!("{key}, which the page of directory {dir} names, is gone from the bucket")),
                        );
                        Err(FsError::Io.into())
                    }
                    false => {
                        self.pages.forget(dir);
                        Ok(None)
                    }
                }
            }
            Err(error) => Err(bucket_refusal(&error)),
        }
    }
}

pub(crate) fn decode_piece(dir: Ino, piece: &PagePiece, object: &Object) -> Result<Vec<Installed>, Damage> {
    let content = page::decode_piece(&object.body).map_err(unknown)?;
    if (content.dir, content.id) != (dir, piece.id) {
        return Err(Damage { at: 0, what: format!("it is piece {:x} of {}", content.id, content.dir) });
    }
    Ok(content.entries)
}

/// The entry of one name.
pub(crate) async fn entry_of(bucket: &dyn Bucket, head: &Head, name: &Name) -> Result<Option<Installed>, EntryError> {
    let find = |entries: Vec<Installed>| entries.into_iter().find(|entry| entry.name == *name);
    let Some(piece) = head.piece_of(name) else { return Ok(find(head.page.entries.clone())) };
    let key = piece_key(head.page.dir, piece.id);
    let object = bucket.get(&key, None, None).await.map_err(EntryError::Bucket)?;
    let entries = decode_piece(head.page.dir, piece, &object).map_err(|damage| EntryError::Damage { key, what: damage.what })?;
    Ok(find(entries))
}

pub(crate) enum EntryError {
    Bucket(BucketError),
    Damage { key: String, what: String },
}

fn unknown(error: ebb_format::FormatError) -> Damage {
    Damage { at: 0, what: format!("the attributes that it holds are unknown: {error}") }
}
