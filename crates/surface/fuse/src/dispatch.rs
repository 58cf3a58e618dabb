//! Passes a parsed request to the file system, and its result to the kernel.

use crate::reply::{
    Responder, attr_out, create_out, entry_out, flags_out, lk_out, lookup_out, open_out,
    opendir_out, statfs_out, statx_out,
};
use crate::session::SessionShared;
use crate::{DirBuffer, Errno, Filesystem, OpenFlags, Operation, Request, abi};
use ebb_model::MAX_XATTR_VALUE_BYTES;
use zerocopy::IntoBytes;

/// Serves one request. Ends when it is answered.
pub(crate) async fn serve<F: Filesystem>(
    fs: &F,
    request: Request,
    reply: Responder,
    shared: &SessionShared,
) {
    let Request { context: cx, ino, operation, .. } = request;
    let cx = &cx;
    let hears_close =
        |flags: OpenFlags| shared.hears_closes || flags.writes() && fs.reports_at_close();
    match operation {
        Operation::Lookup { name } => {
            reply.value(fs.lookup(cx, ino, name).await.map(|lookup| lookup_out(&lookup)))
        }
        Operation::LookupSelf => {
            reply.value(fs.lookup_self(cx, ino).await.map(|entry| entry_out(&entry)))
        }
        Operation::GetAttr { handle } => {
            reply.value(fs.getattr(cx, ino, handle).await.map(|attr| attr_out(&attr)))
        }
        Operation::Statx { handle } => {
            reply.value(fs.getattr(cx, ino, handle).await.map(|attr| statx_out(&attr)))
        }
        Operation::SetAttr { set, handle } => {
            reply.value(fs.setattr(cx, ino, set, handle).await.map(|attr| attr_out(&attr)))
        }
        Operation::ReadLink => reply.bytes(fs.readlink(cx, ino).await),
        Operation::Make { name, mode, what } => {
            reply.value(fs.make(cx, ino, name, mode, what).await.map(|entry| entry_out(&entry)));
        }
        Operation::Unlink { name } => reply.empty(fs.unlink(cx, ino, name).await),
        Operation::Rmdir { name } => reply.empty(fs.rmdir(cx, ino, name).await),
        Operation::Rename { name, to, new_name, mode } => {
            reply.empty(fs.rename(cx, ino, name, to, new_name, mode).await)
        }
        Operation::Link { ino: linked, name } => {
            reply.value(fs.link(cx, linked, ino, name).await.map(|entry| entry_out(&entry)))
        }
        Operation::Open { flags } => reply
            .value(fs.open(cx, ino, flags).await.map(|open| open_out(&open, hears_close(flags)))),
        Operation::Create { name, mode, flags } => {
            reply.value(
                fs.create(cx, ino, name, mode, flags)
                    .await
                    .map(|created| create_out(&created, hears_close(flags))),
            );
        }
        Operation::Tmpfile { mode, flags } => {
            reply.value(
                fs.tmpfile(cx, ino, mode, flags)
                    .await
                    .map(|created| create_out(&created, hears_close(flags))),
            );
        }
        Operation::Read { handle, offset, len_bytes, fills_pages } => {
            reply.bytes(fs.read(cx, ino, handle, offset, len_bytes, fills_pages).await)
        }
        Operation::Write { handle, offset, data, mode } => {
            let written = fs.write(cx, ino, handle, offset, data, mode).await;
            reply.value(written.map(|size| abi::WriteOut { size, padding: 0 }));
        }
        Operation::Flush { handle, owner } => reply.empty(fs.flush(cx, ino, handle, owner).await),
        Operation::Release { handle, flags } => {
            reply.empty(fs.release(cx, ino, handle, flags).await)
        }
        Operation::Fsync { handle, data_only } => {
            reply.empty(fs.fsync(cx, ino, handle, data_only).await)
        }
        Operation::StatFs => reply.value(fs.statfs(cx, ino).await.map(|stat| statfs_out(&stat))),
        Operation::SetXattr { value, .. } if value.len() > MAX_XATTR_VALUE_BYTES => {
            reply.error(Errno::TOO_BIG)
        }
        Operation::SetXattr { name, value, mode, drop_set_gid } => {
            reply.empty(fs.setxattr(cx, ino, name, value, mode, drop_set_gid).await);
        }
        Operation::GetXattr { name, limit_bytes } => {
            reply.bytes(fs.getxattr(cx, ino, name).await.and_then(|v| sized(&v, limit_bytes)))
        }
        Operation::ListXattr { limit_bytes } => {
            reply.bytes(
                fs.listxattr(cx, ino)
                    .await
                    .and_then(|names| sized(&terminated(&names), limit_bytes)),
            );
        }
        Operation::RemoveXattr { name } => reply.empty(fs.removexattr(cx, ino, name).await),
        Operation::OpenDir { flags } => {
            reply.value(fs.opendir(cx, ino, flags).await.map(|open| opendir_out(&open)))
        }
        Operation::ReadDir { handle, position, limit_bytes, plus } => {
            let mut entries = DirBuffer::new(limit_bytes, plus);
            let result = match entries.begin(ino, position) {
                Some(after) => fs.readdir(cx, ino, handle, after, &mut entries).await,
                None => Ok(()),
            };
            // Entries that were pushed are references that the kernel must receive. It asks again
            // for the entries behind them, and then gets the error.
            let result = if entries.holds_entries() { Ok(()) } else { result };
            reply.bytes(result.map(|()| entries.into_bytes()));
        }
        Operation::ReleaseDir { handle } => reply.empty(fs.releasedir(cx, ino, handle).await),
        Operation::FsyncDir { handle, data_only } => {
            reply.empty(fs.fsyncdir(cx, ino, handle, data_only).await)
        }
        Operation::Access { access } => reply.empty(fs.access(cx, ino, access).await),
        Operation::GetLk { owner, range, mode } => {
            reply.value(fs.getlk(cx, ino, owner, range, mode).await.map(lk_out))
        }
        Operation::SetLk { lock, wait } => {
            let wait = wait.then(|| shared.interrupts.expect(cx.unique));
            reply.empty(fs.setlk(cx, ino, lock, wait).await);
        }
        Operation::Fallocate { handle, offset, len_bytes, mode } => {
            reply.empty(fs.fallocate(cx, ino, handle, offset, len_bytes, mode).await);
        }
        Operation::Lseek { handle, offset, to } => {
            reply.value(
                fs.lseek(cx, ino, handle, offset, to).await.map(|offset| abi::LseekOut { offset }),
            );
        }
        Operation::GetFlags { form } => {
            reply.bytes(fs.flags(cx, ino).await.map(|flags| flags_out(form, flags)))
        }
        Operation::SetFlags { flags, .. } => {
            reply.value(fs.set_flags(cx, ino, flags).await.map(|()| abi::IoctlOut::default()))
        }
        Operation::CopyFileRange { from, to, len_bytes, wide } => {
            let copied = fs.copy_file_range(cx, from, to, len_bytes).await;
            match wide {
                true => {
                    reply.value(copied.map(|bytes_copied| abi::CopyFileRangeOut { bytes_copied }))
                }
                // No more bytes than requested, which fits.
                false => reply
                    .value(copied.map(|bytes| abi::WriteOut { size: bytes as u32, padding: 0 })),
            }
        }
        Operation::SyncFs => reply.empty(fs.syncfs(cx, ino).await),
        Operation::Destroy => reply.empty(Ok(())),
    }
    fs.answered(cx);
}

/// The reply to getxattr(2) and listxattr(2): the length if they pass no buffer, the bytes if they
/// fit.
fn sized(value: &[u8], limit_bytes: u32) -> Result<Vec<u8>, Errno> {
    match limit_bytes as usize {
        0 => Ok(abi::GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes().to_vec()),
        limit if value.len() > limit => Err(Errno::RANGE),
        _ => Ok(value.to_vec()),
    }
}

fn terminated(names: &[bytes::Bytes]) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        list.extend_from_slice(name);
        list.push(0);
    }
    list
}
