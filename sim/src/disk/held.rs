//! Files that a process beside the node has open or mapped.

use super::SimDisk;
use super::names::CachedRef;
use bytes::Bytes;
use ebb_ports::DiskError;

/// An open file; closed on drop, and by a power cut of the machine.
pub struct Holder {
    disk: SimDisk,
    path: String,
    file: CachedRef,
}

impl SimDisk {
    /// Opens a file in another process.
    pub fn hold(&self, path: &str) -> Result<Holder, DiskError> {
        let file = self.shared.names.borrow().file(path)?;
        file.borrow_mut().holders += 1;
        Ok(Holder { disk: self.clone(), path: path.to_owned(), file })
    }
}

impl Holder {
    /// Stores bytes through a mapping, up to the end of the file. Returns their number.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> usize {
        let len =
            (bytes.len() as u64).min(self.file.borrow().len().saturating_sub(offset)) as usize;
        let stored = self.file.borrow_mut().write(offset, &bytes[..len], self.disk.room_bytes());
        self.disk.note(
            self.disk.shared.executor.world(),
            "disk.store",
            format_args!("{} at {offset} {stored} bytes", self.path),
        );
        stored
    }

    /// All that the file has.
    pub fn load(&self) -> Bytes {
        let file = self.file.borrow();
        file.read(0, file.len() as usize)
    }

    /// msync(2).
    pub fn force(&self) {
        let mut file = self.file.borrow_mut();
        let until = file.sequence();
        file.sync(until);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.file.borrow_mut().holders -= 1;
    }
}
