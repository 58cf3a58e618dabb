//! The size of one request.

use ebb_model::MAX_IO_BYTES;
use std::fs;
use tracing::debug;

/// Limits that the kernel gets at INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestSize {
    pub pages: u16,
    pub write_bytes: u32,
}

impl RequestSize {
    /// The size of a WRITE: the largest power of two that fits the kernel's pages at any offset
    /// within a page. A write that begins inside a block leaves that block without a checksum until
    /// its upload; other lengths, or smaller ones, end up in small folios, which slow down mapped
    /// reads.
    pub fn within(most_pages: usize, page_bytes: usize) -> RequestSize {
        let pages = most_pages.clamp(1, pages_from_anywhere(page_bytes));
        let write_bytes = 1 << (pages * page_bytes - page_bytes).max(page_bytes).ilog2();
        RequestSize { pages: pages as u16, write_bytes }
    }

    /// For new mounts. The kernel's default limit is one page short, and root raises it by one
    /// page; a limit that the user has set stays.
    pub fn of_this_kernel() -> RequestSize {
        let wanted = pages_from_anywhere(page_bytes());
        let limit = limit_pages();
        if limit == KERNEL_DEFAULT_PAGES
            && wanted > limit
            && let Err(failure) = fs::write(LIMIT, wanted.to_string())
        {
            debug!(LIMIT, %failure, "the kernel's limit of pages in a request stays as it is");
        }
        RequestSize::within(limit_pages(), page_bytes())
    }
}

/// The number of pages that [`MAX_IO_BYTES`] can touch.
fn pages_from_anywhere(page_bytes: usize) -> usize {
    MAX_IO_BYTES / page_bytes + 1
}

/// Kernels before Linux 6.13 have no setting and that limit.
fn limit_pages() -> usize {
    let said = fs::read_to_string(LIMIT).ok().and_then(|said| said.trim().parse().ok());
    said.unwrap_or(KERNEL_DEFAULT_PAGES)
}

fn page_bytes() -> usize {
    // SAFETY: takes and returns plain integers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
const KERNEL_DEFAULT_PAGES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_carries_a_power_of_two_from_anywhere_in_a_page() {
        let size = |pages, write_bytes| RequestSize { pages, write_bytes };
        let sizes = [
            (0, size(1, 4096)),
            (1, size(1, 4096)),
            (2, size(2, 4096)),
            (128, size(128, 256 << 10)),
            (129, size(129, 512 << 10)),
            (256, size(256, 512 << 10)),
            (257, size(257, 1 << 20)),
            (65535, size(257, 1 << 20)),
        ];
        for (most, size) in sizes {
            assert_eq!(RequestSize::within(most, 4096), size, "{most}");
        }
        assert_eq!(
            [256, 16].map(|most| RequestSize::within(most, 64 << 10)),
            [size(17, 1 << 20), size(16, 512 << 10)]
        );
    }
}
