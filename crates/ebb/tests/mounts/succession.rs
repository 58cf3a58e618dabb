//! The daemon of a mount dies, and another one takes over (O-6): programs wait without an error,
//! and each request is executed once.

use crate::detached::serve;
use crate::joining::free_address;
use crate::place::{Place, kill, until};
use crate::switch::Switch;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Work while daemons die: each function repeats one operation and panics at the first error. An
/// operation that was executed twice makes the next one fail.
struct Work {
    root: PathBuf,
    stop: AtomicBool,
    longest_wait_us: AtomicU64,
}

impl Work {
    fn over(root: PathBuf) -> Arc<Work> {
        Arc::new(Work { root, stop: AtomicBool::new(false), longest_wait_us: AtomicU64::new(0) })
    }

    fn start(self: &Arc<Work>, what: fn(&Path, u64)) -> std::thread::JoinHandle<u64> {
        let work = self.clone();
        std::thread::spawn(move || {
            let mut round = 0;
            while !work.stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                what(&work.root, round);
                work.longest_wait_us
                    .fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                round += 1;
            }
            round
        })
    }
}

fn create(root: &Path, round: u64) {
    let path = root.join(format!("created/{round}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
    file.write_all(format!("content {round}").as_bytes()).unwrap();
}

fn rename(root: &Path, round: u64) {
    let at = |round: u64| root.join(format!("renamed/{round}"));
    fs::rename(at(round), at(round + 1)).unwrap();
}

fn append(root: &Path, round: u64) {
    let file = OpenOptions::new().append(true).open(root.join("appended")).unwrap();
    (&file).write_all(format!("{round:07}\n").as_bytes()).unwrap();
    if round.is_multiple_of(16) {
        file.sync_all().unwrap();
    }
}

fn directories(root: &Path, round: u64) {
    let (dir, link, target) =
        (root.join("dirs/d"), root.join("dirs/link"), root.join("dirs/symlink"));
    fs::create_dir(&dir).unwrap();
    fs::hard_link(root.join("appended"), &link).unwrap();
    symlink(format!("to {round}"), &target).unwrap();
    assert_eq!(fs::read_link(&target).unwrap(), Path::new(&format!("to {round}")));
    fs::remove_dir(&dir).unwrap();
    fs::remove_file(&link).unwrap();
    fs::remove_file(&target).unwrap();
}

/// A file is written, truncated, opened with O_TRUNC and written again: a truncation is not
/// repeated over a later write.
fn truncate(root: &Path, round: u64) {
    let path = root.join("truncated");
    let text = format!("{round} ").repeat(1000);
    fs::write(&path, &text).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(5).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text[..5]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 5);
}

fn without_name(root: &Path, round: u64) {
    let path = root.join(format!("dirs/nameless {round}"));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"still there").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still there");
    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(root.join("dirs"))
        .unwrap();
    unnamed.write_all_at(b"unnamed", 0).unwrap();
    assert_eq!(unnamed.metadata().unwrap().len(), 7);
}

fn list(root: &Path, _round: u64) {
    let listed = fs::read_dir(root.join("many"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect::<Vec<_>>();
    assert_eq!((listed.len(), listed.iter().collect::<BTreeSet<_>>().len()), (MANY, MANY));
}

fn lock(root: &Path, _round: u64) {
    let file = OpenOptions::new().read(true).write(true).open(root.join("locked")).unwrap();
    file.lock().unwrap();
    let other = OpenOptions::new().read(true).write(true).open(root.join("locked")).unwrap();
    other.try_lock().unwrap_err();
    file.unlock().unwrap();
}

const MANY: usize = 3000;

fn prepare(root: &Path) {
    for dir in ["created", "renamed", "dirs", "many"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for index in 0..MANY {
        File::create(root.join(format!("many/{index}"))).unwrap();
    }
    fs::write(root.join("renamed/0"), "renamed").unwrap();
    for name in ["appended", "truncated", "locked"] {
        File::create(root.join(name)).unwrap();
    }
}

/// Situation: the daemon of a busy mount is killed again and again, at any moment. Danger: a
/// pending request fails, is lost, or is executed twice by the next daemon. Expectation: no program
/// sees an error, and each request was executed once.
#[test]
fn killed_daemons_do_not_disturb_programs() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "2s"]);
    let check = work_while_daemons_die(&place);
    place.umount();
    check(&place.path("backing"));
}

/// The same where another mount has joined: locks are the node's, and nothing is cached for longer
/// than an answer takes.
#[test]
fn killed_daemons_do_not_disturb_programs_on_a_joined_mount() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "2s", "--listen", "127.0.0.1:0"]);
    place.ebb(&["mount", place.url(), "mnt2", "--data", "data2", "--take-over", "join"]).good();
    let check = work_while_daemons_die(&place);
    fs::write(place.path("mnt2/there"), "and the other works too").unwrap();
    assert_eq!(fs::read_to_string(place.path("mnt/there")).unwrap(), "and the other works too");
    place.umount_at("mnt2");
    place.umount();
    check(&place.path("backing"));
}

/// The same where the node is elsewhere, and lives: of a mount of its own directory, next to
/// another one.
#[test]
fn killed_daemons_do_not_disturb_programs_on_a_remote_node() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt2", "--data", "client2"]).good();
    fs::create_dir_all(place.path("mnt2/a/b")).unwrap();
    place.ebb(&["mount", &format!("ebb://{address}/volume/a/b"), "mnt", "--data", "client"]).good();
    // The mount follows its directory through renames.
    fs::rename(place.path("mnt2/a"), place.path("mnt2/c")).unwrap();
    let check = work_while_daemons_die(&place);
    check(&place.path("mnt2/c/b"));
    place.umount();
    place.umount_at("mnt2");
    assert_eq!(place.signal(node, libc::SIGTERM), 0);
    check(&place.path("backing/c/b"));
}

/// Returns a check of the whole work in a directory.
fn work_while_daemons_die(place: &Place) -> impl Fn(&Path) + use<> {
    let root = place.path("mnt");
    prepare(&root);
    let held =
        OpenOptions::new().read(true).write(true).create_new(true).open(root.join("held")).unwrap();
    held.write_all_at(b"held", 0).unwrap();
    fs::remove_file(root.join("held")).unwrap();
    let locked = File::open(root.join("locked")).unwrap();
    let mut half_read = fs::read_dir(root.join("many")).unwrap();
    let mut names: BTreeSet<_> =
        half_read.by_ref().take(MANY / 2).map(|entry| entry.unwrap().file_name()).collect();

    let work = Work::over(root.clone());
    let kinds: [fn(&Path, u64); 8] =
        [create, rename, append, directories, truncate, without_name, list, lock];
    let workers: Vec<_> = kinds.into_iter().map(|kind| work.start(kind)).collect();
    let daemons: BTreeSet<u32> = (0..KILLS)
        .map(|round| {
            std::thread::sleep(Duration::from_millis(150 + 37 * round));
            let daemon = place.record("mnt").daemon;
            let killed = Instant::now();
            kill(daemon.pid, libc::SIGKILL);
            until("another one serves", || place.record("mnt").daemon != daemon);
            println!("another one serves after {} ms", killed.elapsed().as_millis());
            daemon.pid
        })
        .collect();
    work.stop.store(true, Ordering::Relaxed);
    let rounds: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    println!(
        "{} daemons, rounds {rounds:?}, longest wait {} ms",
        daemons.len(),
        work.longest_wait_us.load(Ordering::Relaxed) / 1000
    );
    assert_eq!(daemons.len() as u64, KILLS);

    let mut text = [0; 4];
    held.read_exact_at(&mut text, 0).unwrap();
    assert_eq!((&text, held.metadata().unwrap().nlink()), (b"held", 0));
    names.extend(half_read.map(|entry| entry.unwrap().file_name()));
    assert_eq!(names.len(), MANY);
    drop((held, locked));

    let check = move |root: &Path| {
        assert_eq!(fs::read_dir(root.join("created")).unwrap().count() as u64, rounds[0]);
        for round in 0..rounds[0] {
            assert_eq!(
                fs::read_to_string(root.join(format!("created/{round}"))).unwrap(),
                format!("content {round}")
            );
        }
        assert_eq!(
            fs::read_to_string(root.join(format!("renamed/{}", rounds[1]))).unwrap(),
            "renamed"
        );
        let appended: String = (0..rounds[2]).map(|round| format!("{round:07}\n")).collect();
        assert!(fs::read_to_string(root.join("appended")).unwrap() == appended);
        assert_eq!(fs::read_dir(root.join("dirs")).unwrap().count(), 0);
    };
    check(&root);
    place.ebb(&["fsck", "mnt"]).good();
    check
}

/// Fewer in a row than count as a crash loop.
const KILLS: u64 = 12;

/// Stores through a mapping reach the file, whichever daemon receives the write-back.
#[test]
fn mappings_outlive_the_daemon() {
    let place = Place::new();
    place.mount();
    let path = place.path("mnt/mapped");
    fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (protection, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a mapping at an address of the kernel's choice.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), 1 << 20, protection, how, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let daemon = place.record("mnt").daemon;
    // SAFETY: within the mapping.
    let store = |at: usize, byte: u8| unsafe { *mapped.cast::<u8>().add(at) = byte };
    store(10, b'b');
    kill(daemon.pid, libc::SIGKILL);
    // A page that was not read before.
    store(900_000, b'c');
    // SAFETY: the mapping from above.
    unsafe {
        assert_eq!(libc::msync(mapped, 1 << 20, libc::MS_SYNC), 0);
        libc::munmap(mapped, 1 << 20);
    }
    assert_ne!(place.record("mnt").daemon, daemon);
    drop(file);
    place.umount();
    let found = fs::read(place.path("backing/mapped")).unwrap();
    assert_eq!((found.len(), found[10], found[900_000], found[11]), (1 << 20, b'b', b'c', b'a'));
}

/// Situation: the daemon dies, and before the next one serves, the user runs a command or unmounts.
/// Expectation: the same result as without the death.
#[test]
fn a_mount_that_is_taken_over_is_asked_and_unmounted_like_any() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    let supervisor = place.record("mnt").supervisor.unwrap();
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.kill_daemon("mnt");
    place.ebb(&["status", "mnt"]).good();
    assert_eq!(place.record("mnt").supervisor, Some(supervisor));
    place.kill_daemon("mnt");
    assert!(place.umount().out.contains("everything is in the bucket"));
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
    assert!(!supervisor.is_alive());
    place.ebb(&["umount", "mnt"]).refused(2, "is no mount of ebb");
}

/// A signal to the supervisor ends the mount cleanly, whether or not the daemon gets it too.
#[test]
fn a_signal_to_the_supervisor_is_for_the_daemon() {
    for both in [false, true] {
        let place = Place::new();
        place.mount_with(&["--flush-interval", "1h"]);
        let first = place.record("mnt").daemon;
        place.kill_daemon("mnt");
        fs::write(place.path("mnt/file"), "content").unwrap();
        until("the next one is known", || place.record("mnt").daemon != first);
        let record = place.record("mnt");
        kill(record.supervisor.unwrap().pid, libc::SIGTERM);
        if both {
            kill(record.daemon.pid, libc::SIGTERM);
        }
        until("both end", || !record.is_served());
        assert!(!place.is_mounted("mnt"));
        assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
    }
}

/// Without its supervisor the daemon continues, and the mount dies with it.
#[test]
fn a_daemon_outlives_its_supervisor() {
    let place = Place::new();
    place.mount();
    let record = place.record("mnt");
    kill(record.supervisor.unwrap().pid, libc::SIGKILL);
    until("it is gone", || !record.supervisor.unwrap().is_alive());
    fs::write(place.path("mnt/file"), "content").unwrap();
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: every daemon dies soon after its start. Danger: an endless loop, with programs that
/// wait for ever. Expectation: after a number of daemons the mount is given up, programs get
/// errors, the log tells why, and the next mount has all acknowledged data.
#[test]
fn mount_is_given_up_when_all_daemons_die() {
    let place = Place::new();
    place.mount_with(&["--flush-interval", "1h"]);
    fs::write(place.path("mnt/file"), "content").unwrap();
    let supervisor = place.record("mnt").supervisor.unwrap();
    let open = File::open(place.path("mnt/file")).unwrap();
    until("it is given up", || {
        kill_children_of(supervisor.pid);
        !supervisor.is_alive()
    });
    assert_eq!(
        open.metadata().and_then(|_| (&open).read(&mut [0; 10])).unwrap_err().raw_os_error(),
        Some(libc::ENOTCONN)
    );
    drop(open);
    assert!(
        fs::read_to_string(place.path("data/ebb.log")).unwrap().contains("the mount is given up")
    );
    place.ebb(&["status", "mnt"]).refused(1, "has ended");
    place.ebb(&["umount", "mnt"]).refused(1, "goes on with it");
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

fn kill_children_of(supervisor: u32) {
    let daemon = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))
        .unwrap_or_default();
    if let Ok(daemon) = daemon.trim().parse() {
        // SAFETY: takes plain integers. It may have just ended.
        unsafe { libc::kill(daemon, libc::SIGKILL) };
    }
}

/// Situation: the binary of a mount is replaced, by a good one and by one that does not work.
/// Expectation: the mount continues with the new one, or with the previous one, unnoticed by
/// programs.
#[test]
fn a_mount_is_upgraded_while_it_is_used() {
    let place = Place::new();
    let binary = place.path("ebb");
    let replace = |with: &[u8]| {
        fs::write(place.path("new"), with).unwrap();
        fs::set_permissions(place.path("new"), PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(place.path("new"), &binary).unwrap();
    };
    let working = fs::read(env!("CARGO_BIN_EXE_ebb")).unwrap();
    replace(&working);
    place.program(&binary, &["mount", place.url(), "mnt", "--data", "data"]).good();
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(place.path("mnt/open"))
        .unwrap();
    fs::remove_file(place.path("mnt/open")).unwrap();
    let served_by =
        || fs::read_link(format!("/proc/{}/exe", place.record("mnt").daemon.pid)).unwrap();
    let before = place.record("mnt");

    replace(&working);
    assert_ne!(served_by(), binary);
    assert!(place.ebb(&["upgrade", "mnt"]).good().out.contains("is served by process"));
    let upgraded = place.record("mnt");
    assert!(
        upgraded.daemon != before.daemon
            && upgraded.supervisor == before.supervisor
            && served_by() == binary
    );
    open.write_all_at(b"upgraded", 0).unwrap();

    replace(b"#!/bin/sh\nexit 1\n");
    place.ebb(&["upgrade", "mnt"]).refused(1, "cannot take over: exit status: 1");
    assert_eq!(place.record("mnt").daemon, upgraded.daemon);

    replace(b"#!/bin/sh\n[ \"$1\" = version ]\n");
    place.ebb(&["upgrade", "mnt"]).refused(1, "the binary of before");
    let mut text = [0; 8];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"upgraded");

    replace(&working);
    let told = place.ebb(&["upgrade", "mnt", "--json"]).good().json();
    assert_eq!(
        (&told[0]["mountpoint"], &told[0]["daemon"]),
        (&place.text("mnt").into(), &place.record("mnt").daemon.pid.into())
    );
    assert_eq!(served_by(), binary);
    drop(open);
    place.umount();
}

/// Situation: for a while no daemon can be started, here because its log cannot be opened.
/// Expectation: callers wait for as long as that lasts.
#[test]
fn a_daemon_that_cannot_be_started_is_tried_again() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "content").unwrap();
    fs::rename(place.path("data"), place.path("data away")).unwrap();
    place.kill_daemon("mnt");
    let path = place.path("mnt/other");
    let caller = std::thread::spawn(move || fs::write(path, "written"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!caller.is_finished());
    fs::rename(place.path("data away"), place.path("data")).unwrap();
    caller.join().unwrap().unwrap();
    place.umount();
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
    assert_eq!(fs::read_to_string(place.path("backing/other")).unwrap(), "written");
}

/// Situation: the disk fails to force a file, and the daemon dies. Danger: the next daemon does not
/// know of it, and its fsync succeeds for data that was never forced. Expectation: no daemon takes
/// over.
#[test]
fn failed_force_prevents_a_successor() {
    let mut place = Place::new();
    place.fail_forcing();
    place.mount_with(&["--flush-interval", "1h"]);
    let mut file = File::create(place.path("mnt/file")).unwrap();
    file.write_all(b"content").unwrap();
    fs::write(place.path("disk fails"), "").unwrap();
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    assert_eq!(errno(file.sync_all()), Some(libc::EIO));
    fs::remove_file(place.path("disk fails")).unwrap();
    until("it says so", || !place.record("mnt").allow_handover);
    place.ebb(&["upgrade", "mnt"]).refused(1, "nobody can take it over");
    let supervisor = place.record("mnt").supervisor.unwrap();
    place.kill_daemon("mnt");
    until("it ends too", || !supervisor.is_alive());
    assert_eq!(errno(file.sync_all()), Some(libc::ENOTCONN));
    drop(file);
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

/// A mount that is served in the foreground, and the number of its command.
fn foreground(place: &mut Place) -> usize {
    let url = place.url().to_owned();
    let child = place.start_silent(&["mount", &url, "mnt", "--data", "data", "--foreground"]);
    until("it is mounted", || {
        place.is_mounted("mnt")
            && place.find_record("mnt").is_some_and(|record| record.allow_handover)
    });
    child
}

/// Situation: a mount is a service in the foreground. Danger: the death of its daemon ends the
/// mount. Expectation: as in the background; the command stays, reports the death, and ends with
/// the mount.
#[test]
fn in_the_foreground_a_daemon_is_replaced_too() {
    let mut place = Place::new();
    let child = foreground(&mut place);
    let file = OpenOptions::new().append(true).create(true).open(place.path("mnt/file")).unwrap();
    (&file).write_all(b"before ").unwrap();
    let daemon = place.record("mnt").daemon;
    kill(daemon.pid, libc::SIGKILL);
    (&file).write_all(b"after").unwrap();
    drop(file);
    until("the record is of another daemon", || place.record("mnt").daemon.pid != daemon.pid);
    place.ebb(&["upgrade", "mnt"]).good();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "before after");
    assert_eq!(place.signal(child, libc::SIGTERM), 0);
    assert!(!place.is_mounted("mnt"));
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "before after");
    let log = fs::read_to_string(place.path("started.log")).unwrap();
    assert!(log.contains("another one takes over"), "{log}");
}

/// Both ends of a new pseudo-terminal.
fn terminal() -> (File, File) {
    let open = |path: &Path| {
        let flags = libc::O_NOCTTY | libc::O_CLOEXEC;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
    };
    let ours = open(Path::new("/dev/ptmx"));
    let (mut number, unlocked) = (0u32, 0i32);
    // SAFETY: both pointers are valid for writes.
    let made = unsafe {
        libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &unlocked) == 0
            && libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTN, &mut number) == 0
    };
    assert!(made, "{}", std::io::Error::last_os_error());
    (ours, open(Path::new(&format!("/dev/pts/{number}"))))
}

/// Situation: a terminal or service manager signals daemon and command; the command passes the
/// signal on, and the mount takes its time. Danger: the echo counts as a second signal, which does
/// not wait for the bucket. Expectation: it is ignored.
#[test]
fn signal_to_daemon_and_command_counts_once() {
    let mut place = Place::new();
    let child = foreground(&mut place);
    let file = File::create(place.path("mnt/file")).unwrap();
    (&file).write_all(b"content").unwrap();
    kill(place.record("mnt").daemon.pid, libc::SIGTERM);
    // The daemon has begun to end.
    std::thread::sleep(Duration::from_millis(5));
    kill(place.pid(child), libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(400));
    drop(file);
    assert_eq!(place.ended(child), 0);
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: the bucket is away, the daemon has died, no daemon can take over, and the command
/// gets a signal to end. Danger: it keeps starting daemons. Expectation: it ends.
#[test]
fn a_command_that_is_told_to_end_starts_no_more_daemons() {
    let switch = Switch::default();
    let mut place = Place::behind(&switch);
    let child = foreground(&mut place);
    switch.close();
    place.kill_daemon("mnt");
    std::thread::sleep(Duration::from_millis(500));
    assert_ne!(place.signal(child, libc::SIGTERM), 0);
}

/// Situation: a daemon without a possible successor is killed. Danger: the command ends silently.
/// Expectation: it reports that, and its exit status names the signal.
#[test]
fn a_command_says_that_its_daemon_was_killed() {
    let mut place = Place::new();
    let url = place.url().to_owned();
    let child = place.start_silent(&["mount", &url, "mnt", "--data", "data", "--foreground"]);
    until("it is mounted", || {
        place.is_mounted("mnt")
            && place.find_record("mnt").is_some_and(|record| record.allow_handover)
    });
    let supervisor = place.record("mnt").supervisor.unwrap();
    until("it is given up", || {
        kill_children_of(supervisor.pid);
        !supervisor.is_alive()
    });
    assert_eq!(place.ended(child), 128 + libc::SIGKILL);
    let log = fs::read_to_string(place.path("started.log")).unwrap();
    assert!(log.contains("the mount is given up"), "{log}");
}

/// Situation: a foreground mount loses its terminal. Danger: SIGHUP upgrades or kills it.
/// Expectation: the mount ends as by SIGTERM, and the bucket has everything.
#[test]
fn a_mount_ends_with_its_terminal() {
    let mut place = Place::new();
    let (url, data) = (place.url().to_owned(), place.text("data"));
    let (terminal, side) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebb"));
    command.args(["mount", &url, &place.text("mnt"), "--data", &data, "--foreground"]).stderr(side);
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(|| {
            // It may be ignored in the test's own process, as under nohup.
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            match libc::setsid() == -1 || libc::ioctl(libc::STDERR_FILENO, libc::TIOCSCTTY, 0) == -1
            {
                true => Err(std::io::Error::last_os_error()),
                false => Ok(()),
            }
        });
    }
    let child = place.adopt(command.spawn().unwrap());
    // It has the other end of the terminal open, too.
    drop(command);
    until("it is mounted", || {
        place.is_mounted("mnt")
            && place.find_record("mnt").is_some_and(|record| record.allow_handover)
    });
    fs::write(place.path("mnt/file"), "content").unwrap();
    let daemon = place.record("mnt").daemon;
    drop(terminal);
    assert_eq!(place.ended(child), 0);
    assert!(!daemon.is_alive() && !place.is_mounted("mnt"));
    assert_eq!(fs::read_to_string(place.path("backing/file")).unwrap(), "content");
}

/// Situation: a foreground command is killed. Danger: its daemon continues unsupervised with the
/// mount and the data directory. Expectation: it dies too, and the next mount has all acknowledged
/// data.
#[test]
fn killed_foreground_command_kills_its_daemon() {
    let mut place = Place::new();
    let child = foreground(&mut place);
    fs::write(place.path("mnt/file"), "content").unwrap();
    let daemon = place.record("mnt").daemon;
    assert_eq!(place.signal(child, libc::SIGKILL), -1);
    until("the daemon ends", || !daemon.is_alive());
    place.mount();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), "content");
    place.umount();
}

/// Situation: a page is being read from a bucket that is away when another mount attaches, for
/// which the kernel is told to drop its caches, and waits for that page; then the daemon is killed.
/// Danger: the process does not end, because it waits for a reader that waits for a daemon.
/// Expectation: another daemon serves, and the read succeeds.
#[test]
fn killed_daemon_ends_while_the_kernel_drops_pages() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    place.mount();
    fs::write(place.path("mnt/file"), vec![7; 1 << 20]).unwrap();
    place.umount();
    place.drop_cache();
    let address = free_address();
    place.mount_with(&["--listen", &address]);
    let volume = format!("ebb://{address}/{}", place.url().rsplit('/').next().unwrap());
    let file = File::open(place.path("mnt/file")).unwrap();
    switch.close();
    let reader = std::thread::spawn(move || {
        let mut content = Vec::new();
        (&file).read_to_end(&mut content).map(|_| content)
    });
    std::thread::sleep(Duration::from_millis(300));
    std::thread::scope(|scope| {
        let other =
            scope.spawn(|| place.ebb(&["mount", &volume, "mnt2", "--data", "data2"]).good());
        let daemon = place.record("mnt").daemon.pid;
        until("the kernel waits for the page", || is_stuck(daemon, "ebb-notify"));
        kill(daemon, libc::SIGKILL);
        switch.open();
        until("another daemon serves", || place.record("mnt").daemon.pid != daemon);
        assert!(reader.join().unwrap().unwrap() == [7; 1 << 20]);
        other.join().unwrap();
    });
    place.umount_at("mnt2");
    place.umount();
}

/// Whether the thread of that name waits uninterruptibly in the kernel.
fn is_stuck(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads
        .map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default())
        .any(|stat| stat.contains(&format!("({name}) D")))
}
