//! Files with holes: zeros take no space where the file system supports that.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Zeros are left out in blocks of this size.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes at the end of the file.
pub fn write(to: &mut File, body: &[u8]) -> Result<(), Error> {
    let is_hole = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut rest = body;
    while let Some(first) = rest.chunks(BLOCK_BYTES).next() {
        let hole = is_hole(first);
        let len_bytes = rest
            .chunks(BLOCK_BYTES)
            .take_while(|block| is_hole(block) == hole)
            .map(<[u8]>::len)
            .sum();
        let (run, behind) = rest.split_at(len_bytes);
        if hole {
            leave_out(to, run.len() as u64)?
        } else {
            to.write_all(run)?
        }
        rest = behind;
    }
    Ok(())
}

/// Copies a range to the end of another file, by copy_file_range: a file system that can shares the
/// blocks.
pub fn copy(mut from: &File, range: Range<u64>, to: &mut File) -> Result<(), Error> {
    let mut at = range.start;
    while at < range.end {
        let data = find(from, at, libc::SEEK_DATA)?.unwrap_or(range.end).clamp(at, range.end);
        leave_out(to, data - at)?;
        at = data;
        let end = if at < range.end {
            find(from, at, libc::SEEK_HOLE)?.unwrap_or(range.end).min(range.end)
        } else {
            at
        };
        from.seek(SeekFrom::Start(at))?;
        if std::io::copy(&mut from.take(end - at), to)? < end - at {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        at = end;
    }
    Ok(())
}

fn leave_out(to: &mut File, len_bytes: u64) -> Result<(), Error> {
    if len_bytes == 0 {
        return Ok(());
    }
    let end = to.stream_position()? + len_bytes;
    to.set_len(end)?;
    to.seek(SeekFrom::Start(end)).map(drop)
}

/// The next start of data, or of a hole. `None` if there is none before the end of the file.
fn find(file: &File, at: u64, what: i32) -> Result<Option<u64>, Error> {
    // SAFETY: no memory is passed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as i64, what) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            // EINVAL: the file system does not report holes.
            error if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Some(at).filter(|_| what == libc::SEEK_DATA))
            }
            error => Err(error),
        },
    }
}

/// The maximum file length, which is the largest valid offset.
pub fn longest_bytes(mut file: &File) -> u64 {
    let mut fits = |len_bytes| file.seek(SeekFrom::Start(len_bytes)).is_ok();
    let (mut low, mut high) = (0, i64::MAX as u64);
    if fits(high) {
        return high;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *if fits(middle) { &mut low } else { &mut high } = middle;
    }
    low
}
