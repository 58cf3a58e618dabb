//! A large file that is being sent to the bucket goes on changing. What the upload has
//! not read yet is set aside before it is overwritten, so that the object is the file as
//! it was at one version (DESIGN §5).

use crate::Node;
use bytes::Bytes;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes set aside for one upload. An upload that would need more is given up, and tried
/// again while writers of the file wait.
const MAX_PRESERVED_BYTES: u64 = 32 << 20;

#[derive(Default)]
pub struct Preserved {
    uploads: RefCell<BTreeMap<Ino, Upload>>,
}

struct Upload {
    size_bytes: u64,
    /// Blocks below this one have been read.
    next: u64,
    blocks: BTreeMap<u64, Bytes>,
    broken: bool,
}

impl Preserved {
    pub fn begin(&self, ino: Ino, size_bytes: u64) {
        self.uploads.borrow_mut().insert(ino, Upload { size_bytes, next: 0, blocks: BTreeMap::new(), broken: false });
    }

    pub fn end(&self, ino: Ino) {
        self.uploads.borrow_mut().remove(&ino);
    }

    /// The upload goes on with `block`: blocks below need not be kept any longer.
    pub fn advance(&self, ino: Ino, block: u64) {
        if let Some(upload) = self.uploads.borrow_mut().get_mut(&ino) {
            upload.next = block;
            upload.blocks = upload.blocks.split_off(&block);
        }
    }

    pub fn block(&self, ino: Ino, block: u64) -> Option<Bytes> {
        self.uploads.borrow().get(&ino).and_then(|upload| upload.blocks.get(&block).cloned())
    }

    /// Something that the upload still needed is gone.
    pub fn is_broken(&self, ino: Ino) -> bool {
        self.uploads.borrow().get(&ino).is_some_and(|upload| upload.broken)
    }
}

impl Node {
    /// Called before bytes of a file are overwritten, with the inode's lock held exclusively.
    pub(crate) async fn preserve(&self, ino: Ino, range: Range<u64>) -> Result<(), RpcError> {
        let wanted: Vec<u64> = {
            let uploads = self.flusher.preserved.uploads.borrow();
            let Some(upload) = uploads.get(&ino).filter(|upload| !upload.broken) else { return Ok(()) };
            let end = range.end.min(upload.size_bytes).div_ceil(BLOCK_BYTES);
            let blocks = (range.start / BLOCK_BYTES).max(upload.next)..end;
            blocks.filter(|block| !upload.blocks.contains_key(block)).collect()
        };
        for block in wanted {
            let present = self.replica.view().extents().block(ino, block).is_some();
            let room = {
                let uploads = self.flusher.preserved.uploads.borrow();
                uploads.get(&ino).is_some_and(|upload| (upload.blocks.len() as u64 + 1) * BLOCK_BYTES <= MAX_PRESERVED_BYTES)
            };
            let kept = if present && room {
                let start = block * BLOCK_BYTES;
                self.read_local(ino, &(start..start + BLOCK_BYTES)).await?
            } else {
                None
            };
            let mut uploads = self.flusher.preserved.uploads.borrow_mut();
            let Some(upload) = uploads.get_mut(&ino) else { return Ok(()) };
            match kept {
                Some(bytes) => {
                    upload.blocks.insert(block, bytes);
                }
                None => upload.broken = true,
            }
        }
        Ok(())
    }

    /// Called before the size of a file is set: a cut takes away what an upload needs.
    pub(crate) fn break_upload_at(&self, ino: Ino, size_bytes: Option<u64>) {
        let mut uploads = self.flusher.preserved.uploads.borrow_mut();
        if let (Some(upload), Some(len)) = (uploads.get_mut(&ino), size_bytes) {
            upload.broken |= len < upload.size_bytes;
        }
    }
}
