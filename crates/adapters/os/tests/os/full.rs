use crate::run;
use bytes::Bytes;
use ebb_os::OsDisk;
use ebb_ports::{Disk, DiskError, OpenMode};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use tempfile::TempDir;

/// A mounted tmpfs of this many bytes.
struct Small(TempDir);

impl Small {
    /// `None` if the test has no permission to mount.
    fn mount(bytes: usize) -> Option<Small> {
        let dir = crate::temporary();
        let target = CString::new(dir.path().as_os_str().as_bytes()).expect("paths have no NUL");
        let options = CString::new(format!("size={bytes}")).expect("no NUL");
        // SAFETY: all pointers are to strings that end in NUL.
        let result = unsafe {
            libc::mount(
                c"none".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        if result == 0 {
            return Some(Small(dir));
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let target = CString::new(self.0.path().as_os_str().as_bytes()).expect("paths have no NUL");
        // SAFETY: the pointer is to a string that ends in NUL.
        let result = unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Situation: the node's disk is full. Danger: a partial write counts as complete, or the error
/// looks like a broken disk. Expectation: `NoSpace`, and free space again after a punch. (tmpfs in
/// older kernels has no RWF_NOWAIT, so reads take the slow path.)
#[test]
fn a_full_disk_says_so_and_recovers() {
    let Some(small) = Small::mount(1 << 20) else {
        eprintln!("skipped: mounting needs root");
        return;
    };
    run(async {
        let disk = OsDisk::open(small.0.path()).expect("it opens");
        let file = disk.open("f", OpenMode::Create).await.expect("created");
        file.write_at(0, vec![1; 512 << 10].into()).await.expect("there is room");
        assert_eq!(
            file.write_at(512 << 10, vec![2; 1 << 20].into()).await,
            Err(DiskError::NoSpace)
        );
        assert_eq!(disk.space().await.expect("it is known").free_bytes, 0);
        assert_eq!(file.read_at(0, 512 << 10).await.expect("read"), vec![1; 512 << 10]);
        file.punch(0, 256 << 10).await.expect("punched");
        disk.open("g", OpenMode::Create)
            .await
            .expect("created")
            .write_at(0, Bytes::from_static(b"fits"))
            .await
            .expect("there is room");
    });
}
