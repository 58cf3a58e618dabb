//! SEEK_DATA and SEEK_HOLE.

use crate::Node;
use ebb_model::*;

impl Node {
    pub(crate) fn seek(&self, ino: Ino, offset: u64, to: Seek) -> Result<u64, RpcError> {
        let size = self.file_size(ino)?;
        let state = self.replica.view();
        let found = match to {
            // The holes of an exposed file may have been stored into, at places that are not known.
            _ if state.extents().is_exposed(ino) => {
                (offset < size).then_some(if to == Seek::Data { offset } else { size })
            }
            Seek::Data => state.extents().seek_data(ino, offset, size),
            Seek::Hole => state.extents().seek_hole(ino, offset, size),
        };
        Ok(found.ok_or(FsError::NoData)?)
    }
}
