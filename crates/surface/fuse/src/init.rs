//! Negotiation with the kernel at the start of a connection.

use crate::abi::{self, init};
use crate::request_size::RequestSize;
use zerocopy::FromBytes;

/// Features that are requested where the kernel offers them.
const WANTED: u64 =
    // Several reads of one file in the air at once.
    init::ASYNC_READ
    // WRITEs of more than a page, and with MAX_PAGES of up to 1 MiB.
    | init::BIG_WRITES
    | init::MAX_PAGES
    // Lookups and readdirs of one directory need no lock: the namespace orders them.
    | init::PARALLEL_DIROPS
    // `ls -l` in one pass. Not AUTO, which returns to plain READDIR: then a reader of a listing
    // that the kernel has cached requests the attributes one by one.
    | init::DO_READDIRPLUS
    // Targets of symbolic links are cached like pages, and dropped like pages.
    | init::CACHE_SYMLINKS
    // Set-id bits are dropped by the namespace, atomically with the write or change of owner; in
    // exchange the kernel does not request `security.capability` before every write.
    | init::HANDLE_KILLPRIV_V2
    // The kernel checks permissions against ACLs too, and caches them: each inode's is requested
    // once. The effect of an ACL on the mode is left to us, and so is the umask, which counts only
    // in directories without a default ACL.
    | init::POSIX_ACL
    | init::DONT_MASK
    // SETXATTR then tells whether an ACL drops set-group-id.
    | init::SETXATTR_EXT
    // Flags above bit 31.
    | init::INIT_EXT
    // Entries can be expired instead of dropped, which does not unhash open directories.
    | init::HAS_EXPIRE_ONLY
    // Shared mappings of files opened with direct I/O.
    | init::DIRECT_IO_ALLOW_MMAP
    // Inodes that the kernel has forgotten are looked up by their id alone: for handles of
    // name_to_handle_at(2), and NFS servers on top.
    | init::EXPORT_SUPPORT
    // Requests can be sent again to a successor of this process.
    | init::HAS_RESEND;

// Not requested, with the reason:
// - ATOMIC_O_TRUNC: the kernel would truncate a running program before it finds ETXTBSY.
// - ASYNC_DIO: pages that the kernel reads ahead during a direct write stay stale in its cache.
// - AUTO_INVAL_DATA: drops pages on every change of mtime, the mount's own included.
// - EXPLICIT_INVAL_DATA: requested per mount ([`crate::Consistency`]). Without it the kernel drops
//   the pages of a file whose length changes.
// - WRITEBACK_CACHE: one SETATTR per created file, no passthrough, times from the kernel.
// - POSIX_LOCKS, FLOCK_LOCKS: requested per mount ([`crate::MountOptions::shared_locks`]). Without
//   them the kernel keeps the locks of this mount alone.
// - SPLICE_*: saves one copy of large messages and costs two more system calls on all.
// - SECURITY_CTX: SELinux labels arrive as ordinary extended attributes.
// - SUBMOUNTS, MAP_ALIGNMENT, HAS_INODE_DAX: virtio-fs.
// - OVER_IO_URING: no row of the benchmarks gains by it (decision 23).
// - ALLOW_IDMAP: requested per mount ([`crate::MountOptions::allow_other`]). The kernel then names
//   the caller only in requests that create an inode.
// - REQUEST_TIMEOUT: this session does not serve it.

/// Depth of file system stacking: files passed to the kernel must lie on a file system that is
/// stacked on no other. Other file systems may be stacked on the mount as deep as the kernel's
/// limit allows.
const STACK_DEPTH: u32 = 1;

/// The result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The kernel's minor version of ABI 7, or the newest that this crate knows.
    pub minor: u32,
    /// `abi::init` flags.
    pub flags: u64,
}

impl Negotiated {
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// A notification can make the kernel look up every name again
    /// ([`crate::Notification::AllEntries`]).
    pub fn epoch(&self) -> bool {
        self.minor >= 44
    }

    /// The kernel removes set-gid from a new file whose group its creator is not in. Linux does
    /// since 6.0, and has a version number of its own since 6.1.
    pub fn drops_set_gid(&self) -> bool {
        self.minor >= 37
    }

    /// The kernel checks the caller that sets flags of chattr(1). Linux does since 5.13, which is
    /// recognised by its feature for ACLs.
    pub fn checks_flags(&self) -> bool {
        self.says_when_acls_drop_set_gid()
    }

    /// SETXATTR tells when an access ACL drops set-gid: `Operation::SetXattr`.
    pub fn says_when_acls_drop_set_gid(&self) -> bool {
        self.has(init::SETXATTR_EXT)
    }
}

#[derive(PartialEq, Debug)]
pub(crate) enum Answer {
    Agreed(Negotiated),
    /// The kernel speaks a newer major version and must send INIT again with ours.
    Again,
    TooOld {
        major: u32,
        minor: u32,
    },
}

/// `body` is INIT without its header; `None` if it is not one. `also` are flags that this mount
/// requests beside [`WANTED`], and `size` limits the size of requests.
pub(crate) fn negotiate(
    body: &[u8],
    also: u64,
    size: RequestSize,
) -> Option<(Answer, abi::InitOut)> {
    let (offer, rest) = abi::InitIn::read_from_prefix(body).ok()?;
    let mut out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
    if offer.major > abi::MAJOR {
        return Some((Answer::Again, out));
    }
    if offer.major < abi::MAJOR || offer.minor < abi::MINOR_LEAST {
        return Some((Answer::TooOld { major: offer.major, minor: offer.minor }, out));
    }
    let mut offered = u64::from(offer.flags);
    if offered & init::INIT_EXT != 0 {
        let (flags2, _) = u32::read_from_prefix(rest).ok()?;
        offered |= u64::from(flags2) << 32;
    }
    let agreed =
        Negotiated { minor: offer.minor.min(abi::MINOR), flags: offered & (WANTED | also) };
    out.max_readahead = offer.max_readahead;
    out.flags = agreed.flags as u32;
    out.flags2 = (agreed.flags >> 32) as u32;
    out.max_background = MAX_BACKGROUND;
    out.congestion_threshold = MAX_BACKGROUND / 4 * 3;
    out.max_write = size.write_bytes;
    out.max_pages = size.pages;
    out.time_gran = 1;
    if agreed.has(init::PASSTHROUGH) {
        out.max_stack_depth = STACK_DEPTH;
    }
    Some((Answer::Agreed(agreed), out))
}

/// Read-ahead and asynchronous requests that the kernel keeps in flight: enough to hide the latency
/// of a bucket, too few for one reader to fill the queue.
const MAX_BACKGROUND: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const SIZE: RequestSize = RequestSize { pages: 257, write_bytes: 1 << 20 };

    fn offer(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let head = abi::InitIn { major, minor, max_readahead: 131072, flags: flags as u32 };
        [head.as_bytes(), ((flags >> 32) as u32).as_bytes(), &[0; 44]].concat()
    }

    #[test]
    fn init_with_a_new_kernel_negotiates_exactly_the_wanted_flags() {
        let (answer, out) = negotiate(&offer(7, 99, u64::MAX), 0, SIZE).unwrap();
        assert_eq!(answer, Answer::Agreed(Negotiated { minor: abi::MINOR, flags: WANTED }));
        assert_eq!(u64::from(out.flags2) << 32 | u64::from(out.flags), WANTED);
        assert_eq!(
            (out.major, out.minor, out.max_write, out.max_pages),
            (7, abi::MINOR, 1 << 20, 257)
        );
        assert_eq!(out.max_stack_depth, 0);
    }

    /// Stacking limits the file systems that can be mounted on top, so it is only requested if
    /// enabled.
    #[test]
    fn passthrough_is_for_mounts_that_want_it() {
        let (answer, out) = negotiate(&offer(7, 45, u64::MAX), init::PASSTHROUGH, SIZE).unwrap();
        assert_eq!(
            answer,
            Answer::Agreed(Negotiated { minor: abi::MINOR, flags: WANTED | init::PASSTHROUGH })
        );
        assert_eq!(out.max_stack_depth, STACK_DEPTH);
        let (_, out) =
            negotiate(&offer(7, 45, !init::PASSTHROUGH), init::PASSTHROUGH, SIZE).unwrap();
        assert_eq!(out.max_stack_depth, 0);
    }

    #[test]
    fn a_mount_may_want_more() {
        let locks = init::POSIX_LOCKS | init::FLOCK_LOCKS;
        let (_, out) = negotiate(&offer(7, 45, u64::MAX), locks, SIZE).unwrap();
        assert_eq!(u64::from(out.flags2) << 32 | u64::from(out.flags), WANTED | locks);
    }

    #[test]
    fn the_oldest_kernel_has_no_upper_flags() {
        let offered = init::ASYNC_READ | init::MAX_PAGES | init::HAS_RESEND;
        let (answer, out) = negotiate(&offer(7, abi::MINOR_LEAST, offered), 0, SIZE).unwrap();
        let flags = init::ASYNC_READ | init::MAX_PAGES;
        assert_eq!(answer, Answer::Agreed(Negotiated { minor: abi::MINOR_LEAST, flags }));
        assert_eq!(out.flags2, 0);
    }

    #[test]
    fn other_versions() {
        assert_eq!(negotiate(&offer(8, 0, 0), 0, SIZE).unwrap().0, Answer::Again);
        assert_eq!(
            negotiate(&offer(7, 30, u64::MAX), 0, SIZE).unwrap().0,
            Answer::TooOld { major: 7, minor: 30 }
        );
        assert_eq!(
            negotiate(&offer(6, 99, 0), 0, SIZE).unwrap().0,
            Answer::TooOld { major: 6, minor: 99 }
        );
        assert!(negotiate(&offer(7, 40, init::INIT_EXT)[..16], 0, SIZE).is_none());
        assert!(negotiate(&[0; 15], 0, SIZE).is_none());
    }
}
