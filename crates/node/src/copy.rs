//! copy_file_range: bytes go from one file to another without leaving the node. To the log a
//! copy is a write.

use crate::Node;
use crate::mutate::Order;
use ebb_model::*;
use std::rc::Rc;

impl Node {
    /// What `from` has there when it is read, at most what one write takes. Where nothing is
    /// left of it nothing is written, and the answer says so.
    pub(crate) async fn copy(
        self: &Rc<Self>,
        order: &Order,
        (from, from_offset): (Ino, u64),
        (ino, offset): (Ino, u64),
        len_bytes: u64,
        drop_set_id: bool,
    ) -> Result<Mutated, RpcError> {
        let source_bytes = self.file_size(from)?;
        self.file_size(ino)?;
        let left = source_bytes.saturating_sub(from_offset);
        let len_bytes = len_bytes.min(left).min(MAX_IO_BYTES as u64);
        if from == ino && from_offset.abs_diff(offset) < len_bytes {
            return Err(FsError::Invalid.into());
        }
        let data = self.read(from, from_offset, len_bytes as u32).await?;
        self.write(order, ino, Some(offset), data, drop_set_id).await
    }
}
