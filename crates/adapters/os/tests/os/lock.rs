use crate::{disk, run, temporary};
use ebb_os::OsDisk;
use ebb_ports::{Disk, DiskError};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const DIRECTORY: &str = "EBB_TEST_LOCK_DIRECTORY";

/// The other process: takes the lock, reports it, and keeps it until it is killed.
#[test]
fn holder() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let disk = OsDisk::open(Path::new(&dir)).expect("it opens");
    disk.lock().expect("the lock is free");
    println!("\nlocked");
    // Ends when the parent ends, however that happens.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("stdin is a pipe");
}

fn hold(dir: &Path) -> Child {
    let exe = std::env::current_exe().expect("this test has a file");
    let mut child = Command::new(exe)
        .args(["lock::holder", "--exact", "--nocapture"])
        .env(DIRECTORY, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    assert!(
        output.lines().any(|line| line.is_ok_and(|line| line == "locked")),
        "the holder ended early"
    );
    child
}

/// Situation: two nodes start on one data directory. Danger: both write the log. Expectation: the
/// second gets the owner's process id; after a SIGKILL of the first it gets the lock.
#[test]
fn one_process_has_the_directory() {
    let dir = temporary();
    let mut first = hold(dir.path());
    let second = disk(&dir);
    let error = second.lock().expect_err("the first has it");
    assert!(
        matches!(&error, DiskError::InUse { owner } if owner.starts_with(&format!("process {} (", first.id()))),
        "{error}"
    );
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    assert_eq!(second.lock(), Ok(()));
    assert_eq!(second.lock(), Ok(()), "asking again changes nothing");
}

#[test]
fn the_lock_is_not_listed() {
    let dir = temporary();
    let disk = disk(&dir);
    disk.lock().expect("the lock is free");
    assert_eq!(run(disk.list("")), Ok(vec![]));
}
