//! Messages of the kernel, whole, cut short, and hostile.

use bytes::Bytes;
use ebb_fuse::abi::{self, InHeader};
use ebb_fuse::{
    Errno, FlagForm, Handle, Ids, LockRequest, Message, Negotiated, OpenFlags, Operation, Rejected,
    Request, SeekTo, WriteMode,
};
use ebb_model::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn parse(message: &[u8]) -> Result<Message, Rejected> {
    parse_after(abi::init::SETXATTR_EXT, message)
}

fn parse_after(flags: u64, message: &[u8]) -> Result<Message, Rejected> {
    Message::parse(&Negotiated { minor: abi::MINOR, flags }, message, |range| {
        Bytes::copy_from_slice(&message[range])
    })
}

fn message(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 77,
        nodeid: 5,
        uid: 1000,
        gid: 100,
        pid: 4242,
        ..Default::default()
    };
    [header.as_bytes(), &body].concat()
}

fn request(opcode: u32, parts: &[&[u8]]) -> Result<Request, Errno> {
    match parse(&message(opcode, parts)) {
        Ok(Message::Request(request)) => Ok(request),
        Err(Rejected::Answer { unique: 77, opcode: answered, errno }) if answered == opcode => {
            Err(errno)
        }
        other => panic!("{other:?}"),
    }
}

fn operation(opcode: u32, parts: &[&[u8]]) -> Result<Operation, Errno> {
    request(opcode, parts).map(|request| request.operation)
}

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

#[test]
fn header_names_the_caller() {
    let request = request(abi::LOOKUP, &[b"file\0"]).unwrap();
    assert_eq!(request.ino, Ino(5));
    assert_eq!(
        (request.context.ids, request.context.pid),
        (Some(Ids { uid: 1000, gid: 100 }), 4242)
    );
    assert_eq!((request.context.unique, request.context.resent), (77, false));
    assert_eq!(request.operation, Operation::Lookup { name: name(b"file") });

    let mut again = message(abi::LOOKUP, &[b"file\0"]);
    again[15] |= 0x80;
    let Ok(Message::Request(request)) = parse(&again) else { panic!() };
    assert!(request.context.resent);
    assert_eq!(request.context.unique, 77 | abi::UNIQUE_RESEND, "the reply names it as it came");
}

#[test]
fn names_are_checked_here() {
    assert_eq!(
        operation(abi::LOOKUP, &[&[b'n'; 255], b"\0"]),
        Ok(Operation::Lookup { name: name(&[b'n'; 255]) })
    );
    assert_eq!(operation(abi::LOOKUP, &[&[b'n'; 256], b"\0"]), Err(Errno(libc::ENAMETOOLONG)));
    for bad in [&b"\0"[..], b"a/b\0"] {
        assert_eq!(operation(abi::LOOKUP, &[bad]), Err(Errno::INVALID), "{bad:?}");
    }
    for bad in [&b".\0"[..], b"..\0"] {
        assert_eq!(operation(abi::UNLINK, &[bad]), Err(Errno::INVALID), "{bad:?}");
    }
    assert_eq!(operation(abi::LOOKUP, &[b".\0"]), Ok(Operation::LookupSelf), "of a handle");
    assert_eq!(operation(abi::LOOKUP, &[b"..\0"]), Err(Errno::STALE));
    assert_eq!(operation(abi::LOOKUP, &[b"unterminated"]), Err(Errno::IO));
    assert_eq!(operation(abi::UNLINK, &[]), Err(Errno::IO));
}

/// Newer kernels tell whether an ACL removes set-gid; older ones leave it to us.
#[test]
fn attributes_come_in_two_layouts() {
    let old = abi::SetxattrIn { size: 2, flags: libc::XATTR_CREATE as u32 };
    let new = abi::SetxattrInExt { setxattr_flags: abi::SETXATTR_ACL_KILL_SGID, padding: 0 };
    let set = |drop_set_gid| Operation::SetXattr {
        name: Bytes::from_static(b"user.a"),
        value: Bytes::from_static(b"vv"),
        mode: Some(XattrMode::Create),
        drop_set_gid,
    };
    let rest = b"user.a\0vv";
    assert_eq!(operation(abi::SETXATTR, &[old.as_bytes(), new.as_bytes(), rest]), Ok(set(true)));
    assert_eq!(
        operation(abi::SETXATTR, &[old.as_bytes(), abi::SetxattrInExt::default().as_bytes(), rest]),
        Ok(set(false))
    );
    let Ok(Message::Request(request)) =
        parse_after(0, &message(abi::SETXATTR, &[old.as_bytes(), rest]))
    else {
        panic!()
    };
    assert_eq!(request.operation, set(true), "the caller is no root");
    assert_eq!(operation(abi::SETXATTR, &[old.as_bytes()]), Err(Errno::IO));
}

#[test]
fn namespace_operations() {
    let mknod = |mode, rdev| abi::MknodIn { mode, rdev, umask: 0o22, padding: 0 };
    let made = |mode: u32| operation(abi::MKNOD, &[mknod(mode, 0x103).as_bytes(), b"n\0"]);
    let make = |mode, what| Ok(Operation::Make { name: name(b"n"), mode, what });
    assert_eq!(made(libc::S_IFREG | 0o4644), make(0o4644, Make::Regular));
    assert_eq!(
        made(libc::S_IFCHR | 0o600),
        make(0o600, Make::Special { kind: FileKind::CharDevice, rdev: 0x103 })
    );
    assert_eq!(
        made(libc::S_IFIFO | 0o600),
        make(0o600, Make::Special { kind: FileKind::Fifo, rdev: 0 })
    );
    let asked = request(abi::MKNOD, &[mknod(libc::S_IFREG, 0).as_bytes(), b"n\0"]).unwrap();
    assert_eq!(asked.context.umask, 0o22, "what counts of it is for the file system to say");
    assert_eq!(made(libc::S_IFDIR | 0o755), Err(Errno::INVALID));
    assert_eq!(made(0), Err(Errno::INVALID));
    let mkdir = abi::MkdirIn { mode: libc::S_IFDIR | 0o1755, umask: 0 };
    assert_eq!(operation(abi::MKDIR, &[mkdir.as_bytes(), b"n\0"]), make(0o1755, Make::Directory));
    let target = Bytes::from_static(b"../to");
    assert_eq!(operation(abi::SYMLINK, &[b"n\0../to\0"]), make(0o777, Make::Symlink { target }));

    let rename = |flags| abi::Rename2In { newdir: 9, flags, padding: 0 };
    let renamed = |flags| operation(abi::RENAME2, &[rename(flags).as_bytes(), b"a\0b\0"]);
    let expected =
        |mode| Ok(Operation::Rename { name: name(b"a"), to: Ino(9), new_name: name(b"b"), mode });
    assert_eq!(renamed(0), expected(RenameMode::Replace));
    assert_eq!(renamed(libc::RENAME_NOREPLACE), expected(RenameMode::KeepTarget));
    assert_eq!(renamed(libc::RENAME_EXCHANGE), expected(RenameMode::Exchange));
    let whiteout = |keep_target| expected(RenameMode::Whiteout { keep_target, ino: None });
    assert_eq!(renamed(libc::RENAME_WHITEOUT), whiteout(false));
    assert_eq!(renamed(libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE), whiteout(true));
    assert_eq!(renamed(libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE), Err(Errno::INVALID));
    assert_eq!(renamed(8), Err(Errno::INVALID));
    assert_eq!(renamed(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), Err(Errno::INVALID));
    assert_eq!(
        operation(abi::RENAME, &[abi::RenameIn { newdir: 9 }.as_bytes(), b"a\0"]),
        Err(Errno::IO)
    );
}

#[test]
fn attributes_to_set() {
    use abi::fattr::*;
    let set = |arg: abi::SetattrIn| match operation(abi::SETATTR, &[arg.as_bytes()]) {
        Ok(Operation::SetAttr { set, handle }) => Ok((set, handle)),
        Err(errno) => Err(errno),
        other => panic!("{other:?}"),
    };
    let full = abi::SetattrIn {
        valid: MODE | SIZE | ATIME | ATIME_NOW | MTIME | FH,
        fh: 3,
        size: 10,
        mtime: -1i64 as u64,
        mtimensec: 999_999_999,
        mode: libc::S_IFREG | 0o4755,
        uid: 1,
        ..Default::default()
    };
    let expected = SetAttr {
        mode: Some(0o4755),
        size_bytes: Some(10),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(Time { secs: -1, nanos: 999_999_999 })),
        ..SetAttr::default()
    };
    assert_eq!(set(full), Ok((expected, Some(Handle(3)))));
    let owner = SetAttr { uid: Some(1), drop_set_id: true, ..SetAttr::default() };
    assert_eq!(set(abi::SetattrIn { valid: UID, ..full }), Ok((owner, None)));
    let kill = SetAttr { drop_set_id: true, ..SetAttr::default() };
    assert_eq!(set(abi::SetattrIn { valid: KILL_SUIDGID, ..full }), Ok((kill, None)));
    assert_eq!(
        set(abi::SetattrIn { valid: MTIME, mtimensec: 1_000_000_000, ..full }),
        Err(Errno::INVALID)
    );
    assert_eq!(set(abi::SetattrIn { valid: SIZE, size: 1 << 63, ..full }), Err(Errno::INVALID));
}

#[test]
fn reads_and_writes() {
    let read = |offset, size| {
        let arg = abi::ReadIn { fh: 3, offset, size, ..Default::default() };
        operation(abi::READ, &[arg.as_bytes()])
    };
    assert_eq!(
        read(5, 1 << 20),
        Ok(Operation::Read { handle: Handle(3), offset: 5, len_bytes: 1 << 20, fills_pages: true })
    );
    assert_eq!(read(5, (1 << 20) + 1), Err(Errno::INVALID));
    assert_eq!(read(i64::MAX as u64, 1), Err(Errno::INVALID));
    assert_eq!(read(u64::MAX, u32::MAX), Err(Errno::INVALID));

    let write = |size, write_flags, flags: i32, data: &[u8]| {
        let arg = abi::WriteIn {
            fh: 3,
            offset: 7,
            size,
            write_flags,
            flags: flags as u32,
            ..Default::default()
        };
        operation(abi::WRITE, &[arg.as_bytes(), data])
    };
    let plain = WriteMode { append: false, force: false, drop_set_id: false, from_cache: false };
    let written = |mode| {
        Ok(Operation::Write {
            handle: Handle(3),
            offset: 7,
            data: Bytes::from_static(b"data"),
            mode,
        })
    };
    assert_eq!(write(4, 0, libc::O_WRONLY, b"data"), written(plain));
    assert_eq!(
        write(4, abi::WRITE_KILL_SUIDGID, 0, b"data"),
        written(WriteMode { drop_set_id: true, ..plain })
    );
    assert_eq!(
        write(4, 0, libc::O_APPEND | libc::O_SYNC, b"data"),
        written(WriteMode { append: true, force: true, ..plain })
    );
    let mapped = WriteMode { from_cache: true, ..plain };
    assert_eq!(
        write(4, abi::WRITE_CACHE, libc::O_APPEND, b"data"),
        written(mapped),
        "a mapping's page has its own place"
    );
    assert_eq!(write(5, 0, 0, b"data"), Err(Errno::IO));
}

#[test]
fn messages_without_reply_get_none() {
    let one = |nodeid, nlookup| abi::ForgetOne { nodeid, nlookup };
    assert_eq!(
        parse(&message(abi::FORGET, &[abi::ForgetIn { nlookup: 3 }.as_bytes()])),
        Ok(Message::Forget(vec![(Ino(5), 3)]))
    );
    let batch = |count| {
        message(
            abi::BATCH_FORGET,
            &[
                abi::BatchForgetIn { count, dummy: 0 }.as_bytes(),
                one(8, 1).as_bytes(),
                one(9, 2).as_bytes(),
            ],
        )
    };
    assert_eq!(parse(&batch(2)), Ok(Message::Forget(vec![(Ino(8), 1), (Ino(9), 2)])));
    for count in [3, u32::MAX] {
        assert_eq!(parse(&batch(count)), Err(Rejected::Silent));
    }
    assert_eq!(parse(&message(abi::FORGET, &[])), Err(Rejected::Silent));
    assert_eq!(parse(&message(abi::INTERRUPT, &[&[0; 8]])), Ok(Message::Interrupt(0)));
    assert_eq!(parse(&message(abi::INTERRUPT, &[])), Err(Rejected::Silent));
    assert_eq!(parse(&message(abi::NOTIFY_REPLY, &[])), Err(Rejected::Silent));
    assert_eq!(parse(b""), Err(Rejected::Silent));
}

#[test]
fn unsupported_requests_get_the_errno_that_the_kernel_handles() {
    for opcode in [abi::POLL, abi::BMAP, abi::SETUPMAPPING, 0, 7, 4096, u32::MAX] {
        assert_eq!(operation(opcode, &[&[0; 64]]), Err(Errno::NOT_IMPLEMENTED), "{opcode}");
    }
    assert_eq!(operation(abi::IOCTL, &[&[0; 64]]), Err(Errno::NOT_TTY));
    assert_eq!(operation(abi::IOCTL, &[&[0; 31]]), Err(Errno::IO));
    let lseek = |whence| {
        operation(abi::LSEEK, &[abi::LseekIn { fh: 3, offset: 4, whence, padding: 0 }.as_bytes()])
    };
    assert_eq!(
        lseek(libc::SEEK_HOLE as u32),
        Ok(Operation::Lseek { handle: Handle(3), offset: 4, to: SeekTo::Hole })
    );
    assert_eq!(lseek(libc::SEEK_END as u32), Err(Errno::INVALID));
    let negative =
        abi::LseekIn { fh: 3, offset: -1i64 as u64, whence: libc::SEEK_DATA as u32, padding: 0 };
    assert_eq!(operation(abi::LSEEK, &[negative.as_bytes()]), Err(Errno(libc::ENXIO)));
}

#[test]
fn flags_come_in_two_forms() {
    let ask = |cmd, more: &[u8]| {
        let head =
            abi::IoctlIn { fh: 3, flags: 0, cmd, arg: 0, in_size: more.len() as u32, out_size: 0 };
        operation(abi::IOCTL, &[head.as_bytes(), more])
    };
    let extended = |xflags, projid| abi::Fsxattr { xflags, projid, ..Default::default() };
    use abi::ioctl::*;
    assert_eq!(ask(GETFLAGS, &[]), Ok(Operation::GetFlags { form: FlagForm::Flags }));
    assert_eq!(ask(FSGETXATTR, &[]), Ok(Operation::GetFlags { form: FlagForm::Extended }));
    let flags = InodeFlags::IMMUTABLE;
    assert_eq!(
        ask(SETFLAGS, &[0x10, 0, 0, 0]),
        Ok(Operation::SetFlags { form: FlagForm::Flags, flags })
    );
    assert_eq!(
        ask(FSSETXATTR, extended(8, 0).as_bytes()),
        Ok(Operation::SetFlags { form: FlagForm::Extended, flags })
    );
    assert_eq!(ask(SETFLAGS, &[0x11, 0, 0, 0]), Err(Errno::NOT_SUPPORTED));
    assert_eq!(ask(SETFLAGS, &[0x10]), Err(Errno::IO));
    for refused in [extended(1, 0), extended(8, 1)] {
        assert_eq!(ask(FSSETXATTR, refused.as_bytes()), Err(Errno::NOT_SUPPORTED));
    }
    assert_eq!(ask(FSSETXATTR, &[0; 27]), Err(Errno::IO));
}

#[test]
fn lock_requests_parse_owner_range_and_mode() {
    let lock = |kind, start, end, lk_flags| {
        let lk = abi::FileLock { start, end, kind, pid: 9 };
        abi::LkIn { fh: 3, owner: 4, lk, lk_flags, padding: 0 }
    };
    let ask = |opcode, lock: abi::LkIn| operation(opcode, &[lock.as_bytes()]);
    let range = LockRange::new(5, MAX_LOCK_OFFSET).unwrap();
    let expected = LockRequest {
        handle: Handle(3),
        owner: 4,
        flock: false,
        range,
        mode: Some(LockMode::Exclusive),
        pid: 9,
    };
    let (read, write, unlock) = (libc::F_RDLCK as u32, libc::F_WRLCK as u32, libc::F_UNLCK as u32);
    assert_eq!(
        ask(abi::SETLKW, lock(write, 5, MAX_LOCK_OFFSET, 0)),
        Ok(Operation::SetLk { lock: expected, wait: true })
    );
    let flock = LockRequest { flock: true, range: LockRange::WHOLE, mode: None, ..expected };
    assert_eq!(
        ask(abi::SETLK, lock(unlock, 0, MAX_LOCK_OFFSET, abi::LK_FLOCK)),
        Ok(Operation::SetLk { lock: flock, wait: false })
    );
    for (kind, mode) in [(read, Some(LockMode::Shared)), (unlock, None)] {
        assert_eq!(
            ask(abi::GETLK, lock(kind, 5, MAX_LOCK_OFFSET, 0)),
            Ok(Operation::GetLk { owner: 4, range, mode })
        );
    }
    for (kind, start, end) in [(77, 0, 0), (write, 5, 4), (read, 0, u64::MAX)] {
        assert_eq!(ask(abi::SETLK, lock(kind, start, end, 0)), Err(Errno::INVALID));
    }
}

#[test]
fn a_length_that_is_not_the_message_s() {
    let mut short = message(abi::GETATTR, &[&[0; 16]]);
    short.pop();
    assert_eq!(
        parse(&short),
        Err(Rejected::Answer { unique: 77, opcode: abi::GETATTR, errno: Errno::IO })
    );
    let mut long = message(abi::GETATTR, &[&[0; 16]]);
    long.push(0);
    assert!(parse(&long).is_err());
}

#[test]
fn opens_say_how() {
    let open = abi::OpenIn { flags: (libc::O_RDWR | libc::O_NOFOLLOW) as u32, open_flags: 0 };
    let flags = OpenFlags { bits: libc::O_RDWR | libc::O_NOFOLLOW };
    assert_eq!(operation(abi::OPEN, &[open.as_bytes()]), Ok(Operation::Open { flags }));
    assert!(
        flags.reads() && flags.writes() && !flags.appends() && !flags.excludes() && !flags.forces()
    );
}

proptest! {
    /// For arbitrary bytes: no panic, nothing longer than the message, and a reply to each message
    /// that has a header and takes one.
    #[test]
    fn any_bytes(opcode in 0u32..60, body in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..400) {
        let mut bytes = message(opcode, &[&body]);
        check(&bytes, opcode);
        bytes.truncate(cut);
        if let Ok(len) = u32::try_from(bytes.len()) && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        if bytes.len() >= size_of::<InHeader>() {
            check(&bytes, opcode);
        } else {
            prop_assert_eq!(parse(&bytes), Err(Rejected::Silent));
        }
    }

    #[test]
    fn a_valid_message_with_flipped_bytes(opcode in 0u32..60, flips in proptest::collection::vec((0usize..200, any::<u8>()), 0..8)) {
        let mut bytes = message(opcode, &[&[1; 88], b"name\0other\0", &[0; 60]]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        // No panic is the claim: the flips may have hit the header.
        if let Ok(Message::Request(Request { operation: Operation::Write { data, .. }, .. })) = parse(&bytes) {
            prop_assert!(data.len() <= bytes.len());
        }
    }
}

fn check(bytes: &[u8], opcode: u32) {
    let silent =
        [abi::FORGET, abi::BATCH_FORGET, abi::INTERRUPT, abi::NOTIFY_REPLY].contains(&opcode);
    match parse(bytes) {
        Ok(Message::Request(request)) => {
            assert!(!silent);
            if let Operation::Write { data, .. } = &request.operation {
                assert!(data.len() <= bytes.len());
            }
        }
        Ok(Message::Forget(_) | Message::Interrupt(_)) | Err(Rejected::Silent) => {
            assert!(silent, "{opcode} gets no answer")
        }
        Err(Rejected::Answer { unique, errno, .. }) => {
            assert!(!silent && unique == 77 && errno.0 > 0)
        }
    }
}
