//! One encrypted file: a header, the contents in 16-byte blocks at their own offsets behind it, and
//! a tail of zeros. The tail keeps the last block whole, so the stored length still determines the
//! length of the contents.
//!
//! Laws:
//! - A block is stored whole or not at all and does not depend on the length. So a power cut that
//!   keeps the length and loses a block, or keeps the block and loses the length, has the same
//!   effect as on a plain file.
//! - When the contents grow, the bytes behind their former end are zeros, whatever a power cut or a
//!   failed write left there.
//! - The header is written before any contents, once per open and again after a failed sync. A file
//!   without a header holds no forced bytes and reads as zeros.
//! - Changes are serialised: two writes can each change a part of one block. Reads are not: the
//!   node reads and writes a block under the latch of its inode.

use crate::xts::{BLOCK_BYTES, Xts};
use bytes::{Bytes, BytesMut};
use ebb_format::FormatError;
use ebb_format::encryption::{self, FILE_HEADER_BYTES, FileHeader};
use ebb_ports::{DiskError, DiskFile, Entropy, PortFuture};
use futures_util::lock::Mutex;
use std::cell::Cell;
use std::rc::Rc;

/// Offset of the contents, 4 KiB, so blocks of the file system stay blocks of the contents.
pub const CONTENTS_AT: u64 = 4096;

/// Two copies of the header in two sectors of 512 bytes: without a header all contents are lost.
const HEADERS_AT: [usize; 2] = [0, CONTENTS_AT as usize / 2];

/// Zeros behind the contents; their number is constant.
pub const TAIL_BYTES: u64 = BLOCK_BYTES as u64 - 1;

pub const OVERHEAD_BYTES: u64 = CONTENTS_AT + TAIL_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

pub struct EncryptedFile {
    inner: Rc<dyn DiskFile>,
    xts: Rc<Xts>,
    entropy: Rc<dyn Entropy>,
    path: String,
    /// `None` until the file has a header.
    first_unit: Cell<Option<u128>>,
    header_is_written: Cell<bool>,
    /// Whether the stored bytes behind the end of the contents are zeros for certain.
    end_is_clean: Cell<bool>,
    changing: Mutex<()>,
}

impl EncryptedFile {
    pub async fn open(
        inner: Rc<dyn DiskFile>,
        xts: Rc<Xts>,
        entropy: Rc<dyn Entropy>,
        path: &str,
    ) -> Result<EncryptedFile, DiskError> {
        let page = inner.read_at(0, CONTENTS_AT as usize).await?;
        let first_unit = first_unit(&page)
            .map_err(|error| DiskError::Failed { path: path.into(), what: error.to_string() })?;
        Ok(EncryptedFile {
            inner,
            xts,
            entropy,
            path: path.into(),
            first_unit: Cell::new(first_unit),
            header_is_written: Cell::new(false),
            end_is_clean: Cell::new(page.is_empty()),
            changing: Mutex::new(()),
        })
    }

    async fn contents_len(&self) -> Result<u64, DiskError> {
        Ok(self.inner.len().await?.saturating_sub(OVERHEAD_BYTES))
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Bytes, DiskError> {
        let end = offset.saturating_add(len as u64).min(self.contents_len().await?);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let start = round_down(offset);
        let wanted = (end.next_multiple_of(BLOCK) - start) as usize;
        let stored = self.inner.read_at(CONTENTS_AT + start, wanted).await?;
        // A concurrent truncation can shorten the read.
        let end = if stored.len() == wanted {
            end
        } else {
            end.min((start + stored.len() as u64).saturating_sub(TAIL_BYTES))
        };
        if offset >= end {
            return Ok(Bytes::new());
        }
        let Some(first_unit) = self.first_unit.get() else {
            return Ok(vec![0; (end - offset) as usize].into());
        };
        let mut contents =
            stored.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        contents.truncate((end.next_multiple_of(BLOCK) - start) as usize);
        self.xts.decrypt(first_unit, start, &mut contents);
        Ok(contents.freeze().slice((offset - start) as usize..(end - start) as usize))
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let Some(end) =
            offset.checked_add(data.len() as u64).filter(|end| *end <= u64::MAX - OVERHEAD_BYTES)
        else {
            return Err(self.failed("longer than a file can be"));
        };
        let first_unit = self.write_header().await?;
        let len = self.contents_len().await?;
        let start = round_down(offset);
        if end > len {
            self.clean_end(len).await?;
        }
        let mut contents = Vec::with_capacity((end - start + BLOCK + TAIL_BYTES) as usize);
        if offset > start {
            contents.extend_from_slice(&self.block(start).await?[..(offset - start) as usize]);
        }
        contents.extend_from_slice(data);
        if end < len && end % BLOCK > 0 {
            let last = self.block(round_down(end)).await?;
            contents.extend_from_slice(&last[(end % BLOCK) as usize..]);
        }
        contents.resize((end.next_multiple_of(BLOCK) - start) as usize, 0);
        self.xts.encrypt(first_unit, start, &mut contents);
        let grows = end > len;
        if grows {
            contents.resize((end + TAIL_BYTES - start) as usize, 0);
        }
        let written = self.inner.write_at(CONTENTS_AT + start, contents.into()).await;
        if grows {
            self.end_is_clean.set(written.is_ok());
        }
        written
    }

    /// The contents of a block, padded with zeros behind the end of the contents.
    async fn block(&self, at: u64) -> Result<[u8; BLOCK_BYTES], DiskError> {
        let mut block = [0; BLOCK_BYTES];
        let contents = self.read(at, BLOCK_BYTES).await?;
        block[..contents.len()].copy_from_slice(&contents);
        Ok(block)
    }

    async fn write_header(&self) -> Result<u128, DiskError> {
        if let Some(first_unit) = self.first_unit.get().filter(|_| self.header_is_written.get()) {
            return Ok(first_unit);
        }
        let first_unit = match self.first_unit.get() {
            Some(first_unit) => first_unit,
            None => {
                let stored = self.inner.len().await?;
                if stored > CONTENTS_AT {
                    // Contents of a header that a power cut lost. They must not reappear under
                    // another header.
                    self.inner.punch(CONTENTS_AT, stored - CONTENTS_AT).await?;
                    self.inner.sync_data().await?;
                }
                u128::from(self.entropy.next_u64()) << 64 | u128::from(self.entropy.next_u64())
            }
        };
        // Set before the write: after a failed write the disk can hold this header, and another one
        // must not follow.
        self.first_unit.set(Some(first_unit));
        self.inner.write_at(0, header_page(first_unit)).await?;
        self.header_is_written.set(true);
        Ok(first_unit)
    }

    /// Clears the bytes behind `len`, before the contents grow from there.
    async fn clean_end(&self, len: u64) -> Result<(), DiskError> {
        if !self.end_is_clean.get() {
            if self.clear_behind(len).await? {
                // Without the sync a power cut could keep the growth and restore the old bytes.
                self.inner.sync_data().await?;
            }
            self.end_is_clean.set(true);
        }
        Ok(())
    }

    /// Zeros the bytes behind `len` in its last block and in the tail. It clears a whole block of
    /// the tail, since a partly cleared block would decrypt to garbage. Returns whether any byte
    /// was not zero.
    async fn clear_behind(&self, len: u64) -> Result<bool, DiskError> {
        if self.first_unit.get().is_none() {
            return Ok(false);
        }
        let first_unit = self.write_header().await?;
        let (start, kept) = (round_down(len), (len % BLOCK) as usize);
        let stored = self
            .inner
            .read_at(CONTENTS_AT + start, kept.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES)
            .await?;
        let mut cleared = vec![0; stored.len()];
        if kept > 0 {
            let block = &mut cleared[..BLOCK_BYTES];
            block.copy_from_slice(&stored[..BLOCK_BYTES]);
            self.xts.decrypt(first_unit, start, block);
            block[kept..].fill(0);
            self.xts.encrypt(first_unit, start, block);
        }
        let is_to_clear = cleared != stored;
        if is_to_clear {
            self.inner.write_at(CONTENTS_AT + start, cleared.into()).await?;
        }
        Ok(is_to_clear)
    }

    async fn cut_or_grow(&self, len: u64) -> Result<(), DiskError> {
        if len > u64::MAX - OVERHEAD_BYTES {
            return Err(self.failed("longer than a file can be"));
        }
        let before = self.contents_len().await?;
        if len == before {
            return Ok(());
        }
        match len > before {
            true => self.clean_end(before).await?,
            // Clear before the truncation: a crash in between would leave the truncated bytes
            // behind the end.
            false => drop(self.clear_behind(len).await?),
        }
        self.inner.set_len(if len == 0 { CONTENTS_AT } else { len + OVERHEAD_BYTES }).await
    }

    async fn clear(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let contents_len = self.contents_len().await?;
        let end = offset.saturating_add(len).min(contents_len);
        if offset >= end {
            return Ok(());
        }
        let from = offset.next_multiple_of(BLOCK);
        // Behind the end of the contents no byte needs to be kept.
        let to = if end == contents_len { end.next_multiple_of(BLOCK) } else { round_down(end) };
        if self.first_unit.get().is_some() {
            for edge in [offset..from.min(end), to.max(from.min(end))..end] {
                if !edge.is_empty() {
                    self.write(edge.start, &[0; BLOCK_BYTES][..(edge.end - edge.start) as usize])
                        .await?;
                }
            }
        }
        if from < to { self.inner.punch(CONTENTS_AT + from, to - from).await } else { Ok(()) }
    }

    fn failed(&self, what: &str) -> DiskError {
        DiskError::Failed { path: self.path.clone(), what: what.into() }
    }
}

/// `None` if the disk holds no header.
fn first_unit(page: &[u8]) -> Result<Option<u128>, FormatError> {
    let mut damage = None;
    for at in HEADERS_AT {
        let header = page.get(at..at + FILE_HEADER_BYTES).unwrap_or_default();
        if header.iter().all(|byte| *byte == 0) {
            continue;
        }
        match encryption::decode_header(header) {
            Ok(header) => return Ok(Some(header.first_unit)),
            Err(error) => damage = damage.or(Some(error)),
        }
    }
    damage.map_or(Ok(None), Err)
}

fn header_page(first_unit: u128) -> Bytes {
    let header = encryption::encode_header(&FileHeader { first_unit });
    let mut page = vec![0; HEADERS_AT[1] + FILE_HEADER_BYTES];
    HEADERS_AT.into_iter().for_each(|at| page[at..at + FILE_HEADER_BYTES].copy_from_slice(&header));
    page.into()
}

fn round_down(offset: u64) -> u64 {
    offset - offset % BLOCK
}

impl DiskFile for EncryptedFile {
    fn read_at(&self, offset: u64, len: usize) -> PortFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(self.read(offset, len))
    }

    fn write_at(&self, offset: u64, data: Bytes) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let _turn = self.changing.lock().await;
            if data.is_empty() { Ok(()) } else { self.write(offset, &data).await }
        })
    }

    fn sync_data(&self) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async {
            let synced = self.inner.sync_data().await;
            if synced.is_err() {
                // After a failed sync the system can mark the page clean although the header is not
                // on the disk.
                self.header_is_written.set(false);
            }
            synced
        })
    }

    fn set_len(&self, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let _turn = self.changing.lock().await;
            self.cut_or_grow(len).await
        })
    }

    fn len(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(self.contents_len())
    }

    fn punch(&self, offset: u64, len: u64) -> PortFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let _turn = self.changing.lock().await;
            self.clear(offset, len).await
        })
    }
}
