//! The main job end to end, on a real mount over S3, checked against a reference copy on
//! this machine's disk.

mod objects;
pub mod tree;
pub mod work;

use crate::rig::{Rig, Shape};
use crate::{Outcome, tool};
use std::fs;
use std::time::{Duration, Instant};

pub fn run(keep: bool, release: bool) -> Outcome<()> {
    println!("building ebb");
    let binaries = tool::build(&["ebb", "ebb-s3-server"], release)?;
    let archives = work::archives()?;
    let mut rig = Rig::new(Shape::EmbeddedS3, &binaries)?;
    println!("mounting {} at {}", rig.store.url, rig.mountpoint().display());
    let mut table = Table::default();
    story(&mut rig, &archives, &mut table).inspect_err(|_| table.print())?;
    table.print();
    println!("every byte and every attribute came back");
    if keep {
        rig.mount("")?;
        rig.keep();
        println!(
            "mounted at {}; `{} umount` it when you are done",
            rig.mountpoint().display(),
            binaries.join("ebb").display()
        );
        if let Some(pid) = rig.store.server_pid() {
            println!("its S3 server is process {pid}; then remove {}", rig.dir.display());
        }
    }
    Ok(())
}

fn story(rig: &mut Rig, archives: &[std::path::PathBuf], table: &mut Table) -> Outcome<()> {
    let (mount, reference) = (rig.mountpoint(), rig.dir.join("reference"));
    fs::create_dir(&reference)?;
    let took = rig.mount("")?;
    table.add("mount an empty bucket", took, String::new());

    // Everything is done to the reference too, so that nothing is compared with itself.
    for archive in archives {
        work::unpack(archive, &reference)?;
    }
    let began = Instant::now();
    for archive in archives {
        work::unpack(archive, &mount)?;
    }
    let size = tree::size(&reference)?;
    table.add(
        "unpack source trees",
        began.elapsed(),
        format!("{} files, {} MiB", size.files, size.bytes >> 20),
    );

    let began = Instant::now();
    let edits = work::edit(&mount)?;
    table.add("edit, rename, link, xattrs", began.elapsed(), format!("{edits} operations"));
    work::edit(&reference)?;

    let began = Instant::now();
    let listed = tree::size(&mount)?;
    table.add(
        "list with attributes",
        began.elapsed(),
        format!("{} files, {} directories", listed.files, listed.directories),
    );
    let began = Instant::now();
    let found = work::grep(&mount, b"unsafe")?;
    table.add("grep -r unsafe", began.elapsed(), format!("{found} files"));
    if found != work::grep(&reference, b"unsafe")? {
        return Err("grep finds other files than in the reference copy".into());
    }

    let began = Instant::now();
    let point = mount.display().to_string();
    rig.flush()?;
    let fsck = tool::output(&mut rig.ebb(&["fsck", &point]))?;
    table.add("flush and fsck", began.elapsed(), fsck.trim().to_owned());

    // SIGKILL in the middle of work: what had been acknowledged is there after the restart.
    let writer = work::Writer::start(&mount);
    std::thread::sleep(Duration::from_millis(700));
    rig.kill_node()?;
    let acknowledged = writer.stopped()?;
    let took = rig.mount("")?;
    let lost = work::missing(&mount, acknowledged)?;
    table.add(
        "SIGKILL in mid-work, restart",
        took,
        format!("{acknowledged} files acknowledged, {lost} lost"),
    );
    if lost > 0 {
        return Err(format!("{lost} acknowledged files were lost").into());
    }
    let began = Instant::now();
    work::carry_on(&mount, acknowledged)?;
    table.add("carry on after it", began.elapsed(), String::new());
    work::carry_on(&reference, 0)?;

    tree::copy_times(&reference, &mount)?;
    let began = Instant::now();
    rig.umount()?;
    table.add("unmount, all in the bucket", began.elapsed(), String::new());

    rig.drop_cache()?;
    let took = rig.mount("")?;
    table.add("mount with an empty cache", took, String::new());
    let began = Instant::now();
    let compared = tree::compare(&reference, &mount)?;
    table.add(
        "verify against the reference",
        began.elapsed(),
        format!("{} files, {} MiB", compared.files, compared.bytes >> 20),
    );
    rig.umount()?;

    let began = Instant::now();
    let read = objects::compare(rig, &reference)?;
    table.add("read objects by another client", began.elapsed(), read);
    Ok(())
}

#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, Duration, String)>,
}

impl Table {
    fn add(&mut self, what: &'static str, took: Duration, details: String) {
        self.rows.push((what, took, details));
    }

    fn print(&self) {
        println!("\n{:<32} {:>9}", "what", "seconds");
        for (what, took, details) in &self.rows {
            println!("{what:<32} {:>9.3}  {details}", took.as_secs_f64());
        }
        println!();
    }
}
