//! Bytes of files: reading and writing, holes, and the effects of a write that fails half-way.

use super::*;

impl Tree {
    pub(super) fn write(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        match self.nodes[&id].kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let size = self.nodes[&id].content.size();
        let offset = offset.unwrap_or(size);
        if asked.cut_short {
            return self.write_some(asked, id, offset, &[data.to_vec()]);
        }
        let cut_short = match asked.outcome {
            Some(Outcome::CutShort { attr, len_bytes }) => Some((attr, *len_bytes)),
            _ => None,
        };
        if let Some((_, len_bytes)) = cut_short {
            if !asked.may_be_short {
                return Err(format!("{len_bytes} bytes in place of {} written", data.len()));
            }
            expect_replaced(offset, len_bytes, data.len() as u64, size)?;
        }
        let data = &data[..cut_short.map_or(data.len(), |(_, len_bytes)| len_bytes as usize)];
        let node = self.change(id);
        let before = node.content.clone();
        node.remember(offset..offset + data.len() as u64);
        node.content.write(offset, data);
        node.smeared.iter_mut().for_each(|content| content.write(offset, data));
        if asked.is_unanswered() && node.content.size() == size {
            add_new(&mut node.smeared, &before);
        }
        node.times.modify(Moment::Now);
        match cut_short {
            Some((attr, _)) => self.tell(id, attr, &asked.span),
            None => self.expect_attr(asked, id),
        }
    }

    /// A write without an answer that a full disk has cut short before it lengthened the file. If
    /// the write does not lengthen the file, the whole write covers this case. Each of `data` can
    /// be the bytes that it writes.
    fn write_some(
        &mut self,
        asked: &Asked<'_>,
        id: NodeId,
        offset: u64,
        data: &[Vec<u8>],
    ) -> Result<(), Mismatch> {
        let node = self.change(id);
        let size = node.content.size();
        let end = offset + data.iter().map(Vec::len).max().unwrap_or(0) as u64;
        if !(offset + 1..end).contains(&size) {
            return Err("the file has the same length if this write is cut short".into());
        }
        node.remember(offset..size);
        let mut touched = node.content.clone();
        for data in data {
            touched.write(offset, data);
            touched.resize(size);
            add_new(&mut node.smeared, &touched);
        }
        node.times.modify(Moment::Now);
        self.untold(asked, id);
        Ok(())
    }

    pub(super) fn fallocate(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        span: (u64, u64),
        what: Allocation,
        keep_size: bool,
    ) -> Result<(), Mismatch> {
        let id = match self.at(ino) {
            Ok(id) => id,
            Err(errors) => return asked.expect_one_of(&errors),
        };
        match self.nodes[&id].kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let (offset, len_bytes) = span;
        let node = self.change(id);
        node.remember(if what == Allocation::Zero {
            offset..offset.saturating_add(len_bytes)
        } else {
            0..0
        });
        let size = if keep_size {
            node.content.size()
        } else {
            node.content.size().max(offset + len_bytes)
        };
        for content in std::iter::once(&mut node.content).chain(&mut node.smeared) {
            if what == Allocation::Zero {
                content.zero(offset, len_bytes);
            }
            content.resize(size);
        }
        node.times.modify(Moment::Now);
        node.changed = true;
        self.expect_attr(asked, id)
    }

    pub(super) fn copy(
        &mut self,
        asked: &Asked<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len_bytes: u64,
    ) -> Result<(), Mismatch> {
        let mut errors = Vec::new();
        for ino in [from.0, to.0] {
            match self.at(ino).map(|id| self.nodes[&id].kind) {
                Err(more) => errors.extend(more),
                Ok(FileKind::Regular) => {}
                Ok(FileKind::Directory) => errors.push(FsError::IsDirectory),
                Ok(_) => errors.push(FsError::Invalid),
            }
        }
        if !errors.is_empty() {
            return asked.expect_one_of(&errors);
        }
        let (source, target) = (self.by_ino[&from.0], self.by_ino[&to.0]);
        let left = self.nodes[&source].content.size().saturating_sub(from.1);
        let len_bytes = len_bytes.min(left).min(MAX_IO_BYTES as u64);
        if source == target && from.1.abs_diff(to.1) < len_bytes {
            return asked.expect_one_of(&[FsError::Invalid]);
        }
        let read = |content: &Content| content.read(from.1, len_bytes as usize);
        let data = read(&self.nodes[&source].content);
        let others: Vec<Vec<u8>> = self.nodes[&source].smeared.iter().map(read).collect();
        if asked.cut_short {
            return self.write_some(asked, target, to.1, &[&[data][..], &others].concat());
        }
        let len_bytes = match asked.outcome {
            Some(Outcome::Copied { len_bytes: copied, .. }) if *copied < len_bytes => {
                if !asked.may_be_short {
                    return Err(format!("{copied} bytes in place of {len_bytes} copied"));
                }
                expect_replaced(to.1, *copied, len_bytes, self.nodes[&target].content.size())?;
                *copied
            }
            _ => len_bytes,
        };
        let data = &data[..len_bytes as usize];
        let node = self.change(target);
        if len_bytes > 0 {
            node.remember(to.1..to.1 + len_bytes);
            let before = node.content.clone();
            node.content.write(to.1, data);
            node.smeared.iter_mut().for_each(|content| content.write(to.1, data));
            for other in others {
                let mut content = before.clone();
                content.write(to.1, &other[..len_bytes as usize]);
                add_new(&mut node.smeared, &content);
            }
            if asked.is_unanswered() && node.content.size() == before.size() {
                add_new(&mut node.smeared, &before);
            }
            node.times.modify(Moment::Now);
        }
        match asked.outcome {
            None => {
                self.untold(asked, target);
                Ok(())
            }
            Some(Outcome::Copied { attr, len_bytes: copied }) if *copied == len_bytes => {
                self.tell(target, attr, &asked.span)
            }
            Some(other) => Err(format!("{other:?} in place of {len_bytes} bytes copied")),
        }
    }

    /// Only zeros can be passed over; the node decides whether zeros are a hole.
    pub(super) fn seek(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        offset: u64,
        to: Seek,
    ) -> Result<(), Mismatch> {
        let node = match self.at(ino) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(node) => &self.nodes[&node],
        };
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let size = node.content.size();
        let passed = match (asked.outcome, to) {
            (None, _) => return Ok(()),
            (Some(Outcome::Failed(FsError::NoData)), Seek::Data) => offset..size,
            (Some(Outcome::Failed(FsError::NoData)), Seek::Hole) if offset >= size => return Ok(()),
            (Some(Outcome::Offset(found)), Seek::Data) if (offset..size).contains(found) => {
                offset..*found
            }
            (Some(Outcome::Offset(found)), Seek::Hole) if *found == size && offset < size => {
                return Ok(());
            }
            // A hole is at least one byte.
            (Some(Outcome::Offset(found)), Seek::Hole) if (offset..size).contains(found) => {
                *found..*found + 1
            }
            (Some(other), _) => {
                return Err(format!("{other:?} is no offset in {size} bytes behind {offset}"));
            }
        };
        let zeros = vec![0; passed.end.saturating_sub(passed.start) as usize];
        match node.content.first_stranger(&node.smeared, passed.start, &zeros) {
            None => Ok(()),
            Some(at) => Err(format!("passes over byte {at}, which is data")),
        }
    }

    /// A write that failed: its bytes may be there or not, its length is not.
    pub fn smear_write(&mut self, ino: Ino, offset: Option<u64>, data: &[u8]) {
        let Ok(id) = self.at(ino) else { return };
        let node = self.change(id);
        let mut touched = node.content.clone();
        let size = touched.size();
        touched.write(offset.unwrap_or(size), data);
        touched.resize(size);
        add_new(&mut node.smeared, &touched);
    }

    /// As [`Tree::smear_write`], of a copy.
    pub fn smear_copy(&mut self, from: (Ino, u64), to: (Ino, u64), len_bytes: u64) {
        let Ok(source) = self.at(from.0) else { return };
        let source = &self.nodes[&source];
        let len_bytes =
            len_bytes.min(source.content.size().saturating_sub(from.1)).min(MAX_IO_BYTES as u64);
        let data: Vec<Vec<u8>> = std::iter::once(&source.content)
            .chain(&source.smeared)
            .map(|content| content.read(from.1, len_bytes as usize))
            .collect();
        data.iter().for_each(|data| self.smear_write(to.0, Some(to.1), data));
    }

    /// Like [`Tree::smear_write`], for zeros that replace the present bytes.
    pub fn smear_zeros(&mut self, ino: Ino, offset: u64, len_bytes: u64) {
        let Ok(id) = self.at(ino) else { return };
        let node = self.change(id);
        let mut touched = node.content.clone();
        touched.zero(offset, len_bytes);
        add_new(&mut node.smeared, &touched);
    }

    pub(super) fn read(
        &mut self,
        asked: &Asked<'_>,
        ino: Ino,
        offset: u64,
        len_bytes: usize,
    ) -> Result<(), Mismatch> {
        let node = match self.at(ino) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(node) => &self.nodes[&node],
        };
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return asked.expect_one_of(&[FsError::IsDirectory]),
            _ => return asked.expect_one_of(&[FsError::Invalid]),
        }
        let data = match asked.outcome {
            None => return Ok(()),
            Some(Outcome::Data(data)) => data,
            Some(other) => return Err(format!("{other:?} in place of data")),
        };
        let expected = (len_bytes as u64).min(node.content.size().saturating_sub(offset));
        if data.len() as u64 != expected {
            return Err(format!("{} bytes in place of {expected}", data.len()));
        }
        match node.content.first_stranger(&node.smeared, offset, data) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} is {:#x}, which is not what was written",
                data[(at - offset) as usize]
            )),
        }
    }

    /// Everything that was written so far survives a power cut.
    pub fn forced_all(&mut self) {
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.forced(node);
        }
    }

    pub(super) fn forced(&mut self, node: NodeId) {
        if !self.nodes[&node].unforced.is_empty() {
            let node = self.change(node);
            node.unforced.clear();
            node.changed_bytes.clear();
        }
    }
}

/// A write is cut short only where it has replaced bytes of the file.
fn expect_replaced(offset: u64, len_bytes: u64, wanted: u64, size: u64) -> Result<(), Mismatch> {
    if (1..wanted).contains(&len_bytes) && offset + len_bytes <= size {
        return Ok(());
    }
    Err(format!("{len_bytes} of {wanted} bytes written at {offset} to a file of {size}"))
}
