//! A large file goes on changing while it is uploaded. Blocks that the upload has not read yet are
//! set aside before they are overwritten, so that the object is the file as it was at one version.

use crate::Node;
use bytes::Bytes;
use ebb_model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes set aside for one upload. An upload that would need more is given up, and tried
/// again while writers of the file wait.
const MAX_PRESERVED_BYTES: u64 = 32 << 20;

/// The kept content of a block that was zeros.
static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

#[derive(Default)]
pub struct Preserved {
    uploads: RefCell<BTreeMap<Ino, Upload>>,
}

struct Upload {
    size_bytes: u64,
    /// Blocks below this one have been read.
    next: u64,
    blocks: BTreeMap<u64, Kept>,
    /// The object carries checksums of its content.
    summed: bool,
    broken: bool,
}

/// The content of a block when the upload began.
#[derive(Clone)]
pub enum Kept {
    Bytes(Bytes),
    /// The same as in the file's home object.
    InObject,
}

/// Whether another block can be set aside.
enum Room {
    /// It is set aside already.
    Kept,
    Full,
    Free,
}

impl Preserved {
    pub fn begin(&self, ino: Ino, size_bytes: u64, summed: bool) {
        self.uploads.borrow_mut().insert(
            ino,
            Upload { size_bytes, next: 0, blocks: BTreeMap::new(), summed, broken: false },
        );
    }

    pub fn end(&self, ino: Ino) {
        self.uploads.borrow_mut().remove(&ino);
    }

    /// The upload has reached `block`: lower blocks need not be kept any longer.
    pub fn advance(&self, ino: Ino, block: u64) {
        if let Some(upload) = self.uploads.borrow_mut().get_mut(&ino) {
            upload.next = block;
            upload.blocks = upload.blocks.split_off(&block);
        }
    }

    /// Whether an upload of bytes of the range is under way.
    pub fn is_sending(&self, ino: Ino, range: &Range<u64>) -> bool {
        self.uploads.borrow().get(&ino).is_some_and(|upload| range.start < upload.size_bytes)
    }

    pub fn block(&self, ino: Ino, block: u64) -> Option<Kept> {
        self.uploads.borrow().get(&ino).and_then(|upload| upload.blocks.get(&block).cloned())
    }

    /// Blocks of a range that the upload has yet to read; `None` if no upload needs them.
    fn needed(&self, ino: Ino, range: &Range<u64>) -> Option<Range<u64>> {
        let uploads = self.uploads.borrow();
        let upload = uploads.get(&ino).filter(|upload| !upload.broken)?;
        let end = range.end.min(upload.size_bytes).div_ceil(BLOCK_BYTES);
        let start = (range.start / BLOCK_BYTES).max(upload.next);
        (start < end).then_some(start..end)
    }

    fn room(&self, ino: Ino, block: u64) -> Room {
        match self.uploads.borrow().get(&ino) {
            Some(upload) if upload.blocks.contains_key(&block) => Room::Kept,
            Some(upload)
                if (upload.blocks.len() as u64 + 1) * BLOCK_BYTES > MAX_PRESERVED_BYTES =>
            {
                Room::Full
            }
            _ => Room::Free,
        }
    }

    /// Stores into the file are not noticed from here on before the upload has read the stored
    /// bytes.
    pub fn exposed(&self, ino: Ino) {
        self.uploads
            .borrow_mut()
            .get_mut(&ino)
            .into_iter()
            .for_each(|upload| upload.broken |= upload.summed);
    }

    /// The upload can no longer be completed.
    pub fn break_off(&self, ino: Ino) {
        self.uploads.borrow_mut().get_mut(&ino).into_iter().for_each(|upload| upload.broken = true);
    }

    /// The file is cut to this length.
    pub fn cut(&self, ino: Ino, len: u64) {
        if let Some(upload) = self.uploads.borrow_mut().get_mut(&ino) {
            upload.broken |= len < upload.size_bytes;
        }
    }

    /// A block that the upload needed is gone.
    pub fn is_broken(&self, ino: Ino) -> bool {
        self.uploads.borrow().get(&ino).is_some_and(|upload| upload.broken)
    }
}

impl Node {
    /// Called before bytes of a file are overwritten, with the inode's latch held exclusively.
    pub(crate) async fn preserve(&self, ino: Ino, range: Range<u64>) -> Result<(), RpcError> {
        let Some(blocks) = self.flusher.preserved.needed(ino, &range) else { return Ok(()) };
        for block in blocks {
            if !self.set_aside(ino, block).await? {
                break;
            }
        }
        Ok(())
    }

    /// Called before bytes of a file become zeros, likewise. Blocks that are zeros already, of
    /// which there may be many, need no copy.
    pub(crate) async fn preserve_zeroed(
        &self,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<(), RpcError> {
        let Some(blocks) = self.flusher.preserved.needed(ino, &range) else { return Ok(()) };
        let mut at = blocks.start;
        loop {
            let data = self.replica.view().extents().seek_data(
                ino,
                at * BLOCK_BYTES,
                blocks.end * BLOCK_BYTES,
            );
            let Some(block) = data.map(|offset| offset / BLOCK_BYTES) else { return Ok(()) };
            if !self.set_aside(ino, block).await? {
                return Ok(());
            }
            at = block + 1;
        }
    }

    /// False if the upload is given up.
    async fn set_aside(&self, ino: Ino, block: u64) -> Result<bool, RpcError> {
        let (present, zero) = {
            let state = self.replica.view();
            let exposed = state.extents().is_exposed(ino);
            (
                exposed || state.extents().block(ino, block).is_some(),
                !exposed && state.extents().is_zero(ino, block),
            )
        };
        let kept = match self.flusher.preserved.room(ino, block) {
            Room::Kept => return Ok(true),
            Room::Full => None,
            Room::Free if zero => Some(Kept::Bytes(Bytes::from_static(&ZEROS))),
            Room::Free if present => {
                let start = block * BLOCK_BYTES;
                self.read_local(ino, &(start..start + BLOCK_BYTES)).await?.map(Kept::Bytes)
            }
            Room::Free => Some(Kept::InObject),
        };
        let mut uploads = self.flusher.preserved.uploads.borrow_mut();
        let Some(upload) = uploads.get_mut(&ino) else { return Ok(false) };
        match kept {
            Some(kept) => {
                upload.blocks.insert(block, kept);
            }
            None => upload.broken = true,
        }
        Ok(!upload.broken)
    }
}
