//! `./demo`: the main job end to end on a real mount over S3, verified against a reference copy on
//! this machine's disk.

mod cluster;
mod objects;

use clap::Parser;
use ebb_rig::rig::{Rig, Shape};
use ebb_rig::{Outcome, guard, tool, tree, work};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the main job of ebb on a real mount, against an S3 server in memory, and verifies every
/// byte of it.
#[derive(Parser)]
#[command(name = "./demo")]
struct Cli {
    /// Leave the mount and its S3 server running at the end.
    #[arg(long, conflicts_with = "cluster")]
    keep: bool,
    /// Replicate a volume on three nodes instead, and kill its leader while three mounts write.
    #[arg(long)]
    cluster: bool,
}

fn main() -> ExitCode {
    let Cli { keep, cluster } = Cli::parse();
    let outcome = match (guard::is_above(), cluster) {
        (false, _) => guard::run(),
        (true, false) => run(keep).map(|()| ExitCode::SUCCESS),
        (true, true) => {
            binaries().and_then(|binaries| cluster::run(&binaries)).map(|()| ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("demo: {error}");
        ExitCode::FAILURE
    })
}

fn run(keep: bool) -> Outcome<()> {
    let binaries = binaries()?;
    let archives = work::archives()?;
    let mut rig = Rig::new(Shape::EmbeddedS3, &binaries)?;
    println!("mounting {} at {}\n", rig.store.url, rig.mountpoint().display());
    story(&mut rig, &archives)?;
    println!("\nevery byte and every attribute came back");
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

/// The job, step by step. Everything is done to the reference copy too, so that nothing is compared
/// with itself.
fn story(rig: &mut Rig, archives: &[PathBuf]) -> Outcome<()> {
    let (mount, reference) = (rig.mountpoint(), rig.dir.join("reference"));
    fs::create_dir(&reference)?;
    step("mount an empty bucket", || {
        rig.mount("")?;
        Ok(String::new())
    })?;
    step("unpack source trees", || {
        for archive in archives {
            work::unpack(archive, &mount)?;
        }
        for archive in archives {
            work::unpack(archive, &reference)?;
        }
        let size = tree::size(&reference)?;
        Ok(format!("{} files, {} MiB", size.files, size.bytes >> 20))
    })?;
    step("edit, rename, link, set xattrs", || {
        work::edit(&reference)?;
        Ok(format!("{} operations", work::edit(&mount)?))
    })?;
    step("list with attributes", || {
        let listed = tree::size(&mount)?;
        Ok(format!("{} files, {} directories", listed.files, listed.directories))
    })?;
    step("grep -r unsafe", || {
        let found = work::grep(&mount, b"unsafe")?;
        if found != work::grep(&reference, b"unsafe")? {
            return Err("grep finds other files than in the reference copy".into());
        }
        Ok(format!("{found} files"))
    })?;
    step("flush and fsck", || {
        rig.flush()?;
        let report = tool::output(&mut rig.ebb(&["fsck", &mount.display().to_string()]))?;
        Ok(report.trim().to_owned())
    })?;
    let mut acknowledged = 0;
    step("SIGKILL in mid-work, restart", || {
        let writer = work::Writer::start(&mount);
        std::thread::sleep(Duration::from_millis(700));
        rig.kill_node()?;
        acknowledged = writer.stopped()?;
        rig.mount("")?;
        match work::missing(&mount, acknowledged)? {
            0 => Ok(format!("{acknowledged} files acknowledged, 0 lost")),
            lost => Err(format!("{lost} of {acknowledged} acknowledged files were lost").into()),
        }
    })?;
    step("carry on", || {
        work::carry_on(&mount, acknowledged)?;
        work::carry_on(&reference, 0)?;
        tree::copy_times(&reference, &mount)?;
        Ok(String::new())
    })?;
    step("unmount: everything to the bucket", || {
        rig.umount()?;
        Ok(String::new())
    })?;
    rig.drop_cache()?;
    step("mount with an empty cache", || {
        rig.mount("")?;
        Ok(String::new())
    })?;
    step("verify against the reference", || {
        let compared = tree::compare(&reference, &mount)?;
        rig.umount()?;
        Ok(format!("{} files, {} MiB", compared.files, compared.bytes >> 20))
    })?;
    step("read objects by another client", || objects::compare(rig, &reference))
}

/// Runs one step of the job; prints its name before it begins, then its duration and its result.
fn step(name: &str, run: impl FnOnce() -> Outcome<String>) -> Outcome<()> {
    print!("{name:<34}");
    std::io::stdout().flush()?;
    let began = Instant::now();
    let result = run().inspect_err(|_| println!("failed"))?;
    println!("{:>8.3} s  {result}", began.elapsed().as_secs_f64());
    Ok(())
}

/// The directory of `ebb` and `ebb-s3-server`: this program's own, or EBB_BINARIES.
fn binaries() -> Outcome<PathBuf> {
    if let Some(dir) = std::env::var_os("EBB_BINARIES") {
        return Ok(dir.into());
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().ok_or("this program is in no directory")?.to_owned())
}
