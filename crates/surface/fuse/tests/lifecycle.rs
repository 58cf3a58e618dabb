//! How mounts begin and end: in order, under load, by other hands, and not at all.

#![allow(dead_code, reason = "each test binary uses its part of the harness")]

mod harness;
mod memfs;

use ebb_fuse::{Ended, Ids, LeftMount, Mount, MountError, MountOptions, Session, abi};
use harness::{Mounted, Point, can_mount};
use memfs::{MemFs, Settings};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_mount_that_nobody_uses_stops_at_once() {
    if !can_mount() {
        return;
    }
    let mut mount = Mounted::new(Settings::default());
    fs::write(mount.path("f"), "x").unwrap();
    let start = Instant::now();
    assert_eq!(mount.stop(), Ended::Stopped);
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(!mount.point.is_mounted());
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
}

/// Threads create, read and remove without a pause while the mount is told to stop. Each
/// operation either works or finds that the mount has gone; none fails in between, none hangs.
#[test]
fn stopping_under_load() {
    if !can_mount() {
        return;
    }
    let mut mount = Mounted::new(Settings::default());
    fs::create_dir(mount.path("d")).unwrap();
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            // The directory is on the mount only: nothing is made below it.
            let path = mount.path("d").join(format!("f{worker}"));
            thread::spawn(move || {
                let round = || -> io::Result<()> {
                    let mut file = File::create_new(&path)?;
                    file.write_all(&[worker; 10_000])?;
                    drop(file);
                    assert_eq!(fs::read(&path)?, [worker; 10_000]);
                    fs::remove_file(&path)
                };
                let mut rounds = 0;
                loop {
                    match round() {
                        Ok(()) => rounds += 1,
                        Err(failure) => return (rounds, failure),
                    }
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(mount.stop(), Ended::Stopped);
    assert!(!mount.point.is_mounted());
    for worker in workers {
        let (rounds, failure) = worker.join().unwrap();
        assert!(rounds > 0);
        assert_eq!(failure.kind(), io::ErrorKind::NotFound, "{failure}");
    }
}

/// A request that is being served when the mount is told to stop gets its answer.
#[test]
fn requests_in_flight_are_finished() {
    if !can_mount() {
        return;
    }
    let mut mount =
        Mounted::new(Settings { read_delay: Duration::from_millis(400), ..Settings::default() });
    fs::write(mount.path("f"), "slow").unwrap();
    mount.notify(ebb_fuse::Notification::Inode {
        ino: mount.tree().find(ebb_model::Ino::ROOT, "f").unwrap(),
        bytes: 0..u64::MAX,
    });
    let mut file = File::open(mount.path("f")).unwrap();
    let reader = thread::spawn(move || {
        let mut content = String::new();
        file.read_to_string(&mut content).map(|_| content)
    });
    thread::sleep(Duration::from_millis(100));
    assert_eq!(mount.stop(), Ended::Stopped);
    assert_eq!(reader.join().unwrap().unwrap(), "slow");
}

/// A process stays in the mount: after the stated waiting time it is cut off.
#[test]
fn stop_cuts_off_remaining_users() {
    if !can_mount() {
        return;
    }
    let mut mount = Mounted::at(Point::new(), Settings::default(), "", Duration::from_millis(300));
    let file =
        File::options().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    mount.signal_stop();
    thread::sleep(Duration::from_millis(100));
    file.write_all_at(b"still served", 0).unwrap();
    assert_eq!(mount.ended(), Ended::CutOff);
    assert!(!mount.point.is_mounted());
    let failure = file.write_all_at(b"too late", 0).unwrap_err();
    assert!(
        matches!(failure.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)),
        "{failure}"
    );
}

/// A request that is never finished does not keep its caller for ever: it is answered EIO.
#[test]
fn requests_that_never_end_are_given_up() {
    if !can_mount() {
        return;
    }
    let settings = Settings { read_delay: Duration::from_secs(3600), ..Settings::default() };
    let mut mount = Mounted::at(Point::new(), settings, "", Duration::from_millis(300));
    fs::write(mount.path("f"), "never").unwrap();
    mount.notify(ebb_fuse::Notification::Inode {
        ino: mount.tree().find(ebb_model::Ino::ROOT, "f").unwrap(),
        bytes: 0..u64::MAX,
    });
    let mut file = File::open(mount.path("f")).unwrap();
    let reader = thread::spawn(move || file.read_to_end(&mut Vec::new()));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(mount.stop(), Ended::CutOff);
    reader.join().unwrap().unwrap_err();
    assert!(!mount.point.is_mounted());
}

/// Situation: far more requests wait than the daemon has threads. Danger: the next caller waits
/// behind them. Expectation: it is served.
#[test]
fn waiting_requests_do_not_block_others() {
    if !can_mount() {
        return;
    }
    const READERS: usize = 100;
    let settings = Settings {
        read_delay: Duration::from_secs(3600),
        caching: ebb_fuse::Caching::Direct { parallel: true },
        ..Settings::default()
    };
    let mut mount = Mounted::at(Point::new(), settings, "", Duration::from_millis(300));
    fs::write(mount.path("f"), "never").unwrap();
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let file = File::open(mount.path("f")).unwrap();
            thread::spawn(move || file.read_at(&mut [0; 1], 0))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let (path, (sender, made)) = (mount.path("g"), std::sync::mpsc::channel());
    thread::spawn(move || sender.send(fs::write(path, "made")));
    made.recv_timeout(Duration::from_secs(20)).expect("who makes a file is served").unwrap();
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    assert_eq!(mount.stop(), Ended::CutOff);
    for reader in readers {
        reader.join().unwrap().unwrap_err();
    }
}

#[test]
fn unmounted_by_other_hands() {
    if !can_mount() {
        return;
    }
    for flags in [0, libc::MNT_DETACH, libc::MNT_FORCE] {
        let mut mount = Mounted::new(Settings::default());
        fs::write(mount.path("f"), "x").unwrap();
        mount.point.umount(flags).unwrap();
        assert_eq!(mount.ended(), Ended::Unmounted);
        assert!(!mount.point.is_mounted());
    }
}

/// Situation: files are closed, without a wait for the result, and the mount is removed at once.
/// Danger: requests that the kernel withdraws look like a failure. Expectation: the session has
/// ended, no more.
#[test]
fn unmounted_while_files_are_closed() {
    if !can_mount() {
        return;
    }
    for _ in 0..50 {
        let mut mount = Mounted::new(Settings::default());
        let users = (0..4).map(|user| {
            let path = mount.path(&user.to_string());
            thread::spawn(move || (0..5).for_each(|_| drop(File::create(&path).unwrap())))
        });
        users.collect::<Vec<_>>().into_iter().for_each(|user| user.join().unwrap());
        mount.point.umount(libc::MNT_DETACH).unwrap();
        assert_eq!(mount.ended(), Ended::Unmounted);
    }
}

#[test]
fn mount_refuses_paths_that_are_no_mount_points() {
    if !can_mount() {
        return;
    }
    let point = Point::new();
    let options = MountOptions::default();
    let refusal = |path: &std::path::Path| Mount::new(path, &options).err().expect("it is refused");
    assert!(matches!(refusal(&point.0.join("missing")), MountError::Missing(_)));
    let file = std::env::temp_dir().join(format!("ebb-fuse-file-{}", std::process::id()));
    fs::write(&file, "").unwrap();
    assert!(matches!(refusal(&file), MountError::NotDirectory(_)));
    fs::remove_file(&file).unwrap();

    let mount = Mounted::new(Settings::default());
    assert!(matches!(refusal(mount.root()), MountError::AlreadyMounted(_)));
    let text = refusal(mount.root()).to_string();
    assert!(text.contains(mount.root().to_str().unwrap()), "{text}");
}

/// A mount that is never served must be removable, and one that does not answer must not block a
/// new mount there.
#[test]
fn a_mount_that_does_not_answer() {
    if !can_mount() {
        return;
    }
    let point = Point::new();
    let silent = Mount::new(&point.0, &MountOptions::default()).unwrap();
    assert!(matches!(
        Mount::new(&point.0, &MountOptions::default()),
        Err(MountError::NotAnswering(_))
    ));
    drop(silent);
    assert!(!point.is_mounted());
    let mut mount = Mounted::at(point, Settings::default(), "", Duration::from_secs(5));
    fs::write(mount.path("f"), "x").unwrap();
    assert_eq!(mount.stop(), Ended::Stopped);
}

/// Not a test by itself: the process that the next one kills.
#[test]
fn serve_until_killed() {
    let Some(path) = std::env::var_os("EBB_FUSE_TEST_POINT") else { return };
    let mount = Mount::new(path.as_ref(), &MountOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = Session::start(mount).await.unwrap();
        let fs = MemFs::new(Settings::default());
        session.serve(&fs, std::future::pending(), Duration::from_secs(5)).await.unwrap();
    });
}

/// The process that serves is killed with SIGKILL. Its mount stays behind, dead; the next
/// mount there finds that out and takes its place.
#[test]
fn a_dead_mount_is_replaced() {
    if !can_mount() {
        return;
    }
    let point = Point::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve_until_killed", "--nocapture"])
        .env("EBB_FUSE_TEST_POINT", &point.0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !point.is_mounted() || fs::write(point.0.join("f"), "x").is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "the child does not mount");
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::metadata(&point.0).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));

    let mut mount = Mounted::at(point, Settings::default(), "", Duration::from_secs(5));
    fs::write(mount.path("g"), "alive").unwrap();
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 1);
    assert_eq!(mount.stop(), Ended::Stopped);
    assert!(!mount.point.is_mounted());
}

/// Situation: a process waits for a lock, the serving process dies, and the waiting one is killed.
/// Danger: the successor receives the signal before it serves the request, and the process waits
/// until the lock is free. Expectation: it ends.
#[test]
fn lock_waiter_can_be_killed_during_a_take_over() {
    if !can_mount() {
        return;
    }
    let (point, fs) = (Point::new(), MemFs::new(Settings::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mount =
            Mount::new(&point.0, &MountOptions { shared_locks: true, ..MountOptions::default() })
                .unwrap();
        let path = mount.path().to_owned();
        let session = Session::start(mount).await.unwrap();
        let Some(device) = session.device() else {
            println!("skipped: this kernel sends nothing again");
            return;
        };
        let left = LeftMount::new(
            device.try_clone_to_owned().unwrap(),
            path.clone(),
            session.place(),
            session.negotiated(),
        );
        let mut waiter = Command::new("flock").arg(path.join("f")).arg("true").spawn().unwrap();
        let mut serving =
            Box::pin(session.serve(&fs, std::future::pending(), Duration::from_secs(5)));
        let waits = async {
            while fs.tree().lock().unwrap().lock_waits == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            ended = &mut serving => panic!("{ended:?}"),
            () = waits => {}
        }
        // A process that dies answers nothing and takes no mount away.
        std::mem::forget(serving);
        waiter.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;

        let start = Instant::now();
        let ended = async {
            while waiter.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(10)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let session = Session::take_over(left).await.unwrap();
        let ended = session.serve(&fs, ended, Duration::from_secs(1)).await.unwrap();
        assert_eq!(ended, Ended::Stopped, "who was killed still waits");
    });
}

/// Situation: work is deferred while a request is served. Danger: it waits for the next request,
/// and that for it. Expectation: it is done once all requests are answered.
#[test]
fn deferred_work_is_done_while_idle() {
    if !can_mount() {
        return;
    }
    let (point, fs) = (Point::new(), MemFs::new(Settings::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut session =
            Session::start(Mount::new(&point.0, &MountOptions::default()).unwrap()).await.unwrap();
        let (tree, seen) = (fs.tree(), Rc::new(Cell::new(0)));
        let sees = seen.clone();
        let served = tree.clone();
        session.when_idle(move || sees.set(served.lock().unwrap().requests));
        let path = point.0.join("f");
        let done = async {
            let written = tokio::task::spawn_blocking(move || fs::write(path, "x")).await.unwrap();
            written.unwrap();
            let start = Instant::now();
            while seen.get() < tree.lock().unwrap().requests
                && start.elapsed() < Duration::from_secs(10)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(seen.get() > 1 && seen.get() == tree.lock().unwrap().requests);
        };
        assert_eq!(session.serve(&fs, done, Duration::from_secs(5)).await.unwrap(), Ended::Stopped);
    });
}

#[test]
fn options_reach_the_kernel() {
    if !can_mount() {
        return;
    }
    let list = "ro,allow_other,noexec,fsname=s3://bucket/prefix,read_ahead=1048576";
    let mount = Mounted::at(Point::new(), Settings::default(), list, Duration::from_secs(5));
    assert_eq!(fs::write(mount.path("f"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mount.root().to_str().unwrap())).unwrap();
    for part in [
        "ro,",
        "nosuid",
        "nodev",
        "noexec",
        " - fuse.ebb s3://bucket/prefix ",
        "allow_other",
        "default_permissions",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let device = line.split(' ').nth(2).unwrap();
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).unwrap();
    assert_eq!(read_ahead.trim(), "1024");
}

/// On an idmapped mount the kernel rarely names the caller. So it is not offered where the file
/// system checks permissions, nor on a mount of a single user.
#[test]
fn a_mount_may_be_idmapped_where_the_kernel_checks_others() {
    if !can_mount() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let squash = Some(Ids { uid: 1, gid: 1 });
        for (allow_other, default_permissions, squash) in
            [(true, true, None), (false, true, None), (true, false, None), (true, true, squash)]
        {
            let point = Point::new();
            let options = MountOptions {
                allow_other,
                default_permissions,
                squash,
                ..MountOptions::default()
            };
            let agreed =
                Session::start(Mount::new(&point.0, &options).unwrap()).await.unwrap().negotiated();
            let offered =
                agreed.minor >= 41 && allow_other && default_permissions && squash.is_none();
            assert_eq!(agreed.has(abi::init::ALLOW_IDMAP), offered, "{options:?}");
        }
    });
}

/// Not a test by itself: the next test runs it as an ordinary user.
#[test]
fn mount_as_ordinary_user() {
    let Some(path) = std::env::var_os("EBB_FUSE_TEST_USER_POINT") else { return };
    assert_ne!(unsafe { libc::geteuid() }, 0);
    let mut mount =
        Mounted::at(Point(path.into()), Settings::default(), "fsname=a\\b", Duration::from_secs(5));
    fs::write(mount.path("f"), "mine").unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "mine");
    assert!(matches!(
        Mount::new(mount.root(), &MountOptions::default()),
        Err(MountError::AlreadyMounted(_))
    ));
    assert_eq!(mount.stop(), Ended::Stopped);
    assert!(!mount.point.is_mounted());

    let refused = Mount::new(mount.root(), &"allow_other".parse().unwrap());
    assert!(
        matches!(refused, Err(MountError::HelperFailed(reason)) if reason.contains("allow_other"))
    );
    drop(Mount::new(mount.root(), &MountOptions::default()).unwrap());
    assert!(!mount.point.is_mounted(), "a mount that was never served is taken away too");
    println!("an ordinary user was here");
}

#[test]
fn ordinary_users_mount_through_the_helper() {
    if !can_mount() {
        return;
    }
    if let Err(failure) = Command::new("fusermount3").arg("-V").output() {
        println!("skipped: fusermount3 cannot be run: {failure}");
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        println!("skipped: /dev/fuse is closed to ordinary users; chmod 666 is what udev does");
        return;
    }
    const NOBODY: u32 = 65534;
    let point = Point::new();
    std::os::unix::fs::chown(&point.0, Some(NOBODY), Some(NOBODY)).unwrap();
    // The directory of the test's binary may be closed to other users.
    let program = std::env::temp_dir().join(format!("ebb-fuse-user-{}", std::process::id()));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "mount_as_ordinary_user", "--nocapture"])
        .env("EBB_FUSE_TEST_USER_POINT", &point.0)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    fs::remove_file(&program).unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("was here"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
