//! `ebb fsck`: of a node, or of a data directory that none has open. Exit statuses are fsck(8)'s.

use crate::ask::{Last, ResolvedTarget};
use crate::encryption::{self, DataDir};
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::progress::Progress;
use crate::settings;
use crate::signals::Signals;
use ebb_cli::args::{Fsck, Output, Rollback};
use ebb_cli::places::RunDir;
use ebb_fuse::Mount;
use ebb_model::{AdminReply, AdminRequest, FsckBatch, FsckPoint, FsckReport, Problem};
use ebb_node::{FsckError, OpenError};
use ebb_ports::{Bucket, Ports};
use std::fs;
use std::io::{self, ErrorKind, IsTerminal};
use std::path::Path;
use std::rc::Rc;

/// All problems are repaired.
const REPAIRED: u8 = 1;

/// Something is wrong, and still is.
const LEFT: u8 = 4;

pub async fn run(args: Fsck) -> Result<(), Failure> {
    match check(&args).await {
        Err(Failure::Failed(text)) => Err(Failure::Unchecked(text)),
        ended => ended,
    }
}

async fn check(args: &Fsck) -> Result<(), Failure> {
    let path = &args.target.path;
    let on_mount = is_on_mount(path);
    let is_data_dir = match is_data_dir(path) {
        Err(error)
            if error.kind() == ErrorKind::PermissionDenied
                && !on_mount
                && !Mount::has(path).unwrap_or(false) =>
        {
            return Err(Failure::of(path.display(), error));
        }
        // Other errors are reported by the mount or node that is asked next.
        found => found.unwrap_or(false),
    };
    if is_data_dir && !on_mount {
        if args.online {
            return Err(Failure::Usage(format!(
                "{} is in no daemon's use: without --online it is checked as it is",
                path.shown()
            )));
        }
        if args.repair {
            return Err(Failure::Usage(format!(
                "{} is repaired while it is mounted: mount it, and repair the mount",
                path.shown()
            )));
        }
        let report = of_data(path, args).await?;
        return tell(report, args.target.output);
    }
    if !on_mount && Mount::has(path).is_ok_and(|has| !has) {
        return Err(Failure::Usage(format!(
            "{} is on no mount of ebb, nor is it a data directory",
            path.display()
        )));
    }
    let node = ResolvedTarget::of(path, &args.target.tls)?;
    let report = of_node(&node, args.bucket).await?;
    if !args.repair || report.problems.iter().all(|problem| problem.remedy.is_none()) {
        return tell(report, args.target.output);
    }
    if !agreed(&report, args.yes)? {
        output::reply(&AdminReply::Fsck(report), args.target.output)?;
        return Err(Failure::Found(LEFT));
    }
    let all = report.problems.len();
    for Problem { what, remedy } in &report.problems {
        let Some(remedy) = remedy else { continue };
        match node.ask(AdminRequest::Repair { remedy: remedy.clone() }).await {
            Ok(_) => output::say(format!("repaired: {what}")),
            Err(error) => {
                output::say(format!("not repaired: {what}: {}", error.text().unwrap_or_default()))
            }
        }
    }
    // A second check finds the problems that are left.
    let report = of_node(&node, args.bucket).await?;
    let is_clean = report.problems.is_empty();
    output::reply(&AdminReply::Fsck(report), args.target.output)?;
    Err(Failure::Found(if is_clean && all > 0 { REPAIRED } else { LEFT }))
}

fn tell(report: FsckReport, output: Output) -> Result<(), Failure> {
    let is_clean = report.problems.is_empty();
    output::reply(&AdminReply::Fsck(report), output)?;
    if is_clean { Ok(()) } else { Err(Failure::Found(LEFT)) }
}

/// Shows the repairs, and asks for consent unless it was given before.
fn agreed(report: &FsckReport, yes: bool) -> Result<bool, Failure> {
    for Problem { what, remedy } in &report.problems {
        if let Some(remedy) = remedy {
            output::say(format!("{what}\n    --repair {}", ebb_cli::fsck::remedy(remedy)));
        }
    }
    if yes { Ok(true) } else { ask("Do this?") }
}

/// Without a terminal there is no consent.
pub fn ask(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        output::say("nothing is done without --yes");
        return Ok(false);
    }
    output::say(format!("{question} [y/N]"));
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::of("standard input", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn of_node(node: &ResolvedTarget, bucket: bool) -> Result<FsckReport, Failure> {
    let mut report = match node.ask(AdminRequest::Fsck).await? {
        AdminReply::Fsck(report) => report,
        _ => return Err(wrong_reply()),
    };
    if bucket {
        let mut signals = Signals::listen()?;
        tokio::select! {
            compared = compare(node, &mut report) => compared?,
            () = signals.next() => return Err(Failure::Failed("interrupted".into())),
        }
    }
    Ok(report)
}

/// `ebb rollback`: resets a file to the content of its object (O-74).
pub async fn roll_back(args: Rollback) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&args.target.path, Last::Followed, &args.target.tls).await?;
    let question = format!(
        "Lose what was written to {} since it was last sent to the bucket?",
        args.target.path.shown()
    );
    if !args.yes && !ask(&question)? {
        return Err(Failure::Failed("nothing was done".into()));
    }
    output::reply(
        &node.ask(AdminRequest::RollBack { path: node.path().await? }).await?,
        args.target.output,
    )
}

async fn compare(node: &ResolvedTarget, report: &mut FsckReport) -> Result<(), Failure> {
    let mut progress = Progress::counting("fsck");
    let mut next = Some(FsckPoint::START);
    while let Some(from) = next {
        let FsckBatch { report: part, done, total, next: after } =
            match node.ask(AdminRequest::FsckBucket { from }).await? {
                AdminReply::FsckBatch(part) => *part,
                _ => return Err(wrong_reply()),
            };
        report.add(part);
        progress.show(done, total, || {
            format!("{done} of {total} directories compared with the bucket")
        });
        next = after;
    }
    Ok(())
}

/// Checks a data directory that no node has open.
async fn of_data(data_dir: &Path, args: &Fsck) -> Result<FsckReport, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::of(data_dir.shown(), error);
    let ports = ebb_os::ports(data_dir).map_err(|error| failed(&error))?;
    ports.disk.lock().map_err(|error| failed(&error))?;
    let ports =
        encryption::unlock(ports, &DataDir { path: data_dir, encryption: &args.encryption })
            .await?;
    let bucket = if args.bucket { Some(bucket_of(&ports, data_dir, args).await?) } else { None };
    let mut progress = bucket.as_ref().map(|_| Progress::counting("fsck"));
    let show = |done, total| {
        if let Some(progress) = &mut progress {
            progress.show(done, total, || {
                format!("{done} of {total} directories compared with the bucket")
            });
        }
    };
    ebb_node::fsck(ports, bucket, show).await.map_err(|error: FsckError| failed(&error))
}

/// The bucket that the data directory is of.
async fn bucket_of(ports: &Ports, data_dir: &Path, args: &Fsck) -> Result<Rc<dyn Bucket>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::of(data_dir.shown(), error);
    let serves = ebb_node::serves(ports).await.map_err(|error| failed(&error))?;
    let serves = serves.ok_or_else(|| failed(&OpenError::Unused))?;
    if !serves.members.is_empty() {
        return Err(Failure::Usage(format!(
            "{} is of several buckets: mount it, and check the mount",
            data_dir.shown()
        )));
    }
    let settings = settings::bucket(&args.store, true, None);
    ebb_bucket::open(&serves.backing, &settings).await.map_err(|error| failed(&error))
}

fn is_data_dir(path: &Path) -> io::Result<bool> {
    let look = |name: &str| match fs::metadata(path.join(name)) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    };
    let is_dir = |name| look(name).map(|found| found.is_some_and(|found| found.is_dir()));
    Ok(look("identity")?.is_some_and(|found| found.is_file()) || is_dir("log")? && is_dir("store")?)
}

fn is_on_mount(path: &Path) -> bool {
    RunDir::of_user().and_then(|run_dir| run_dir.find(path)).is_ok_and(|found| found.is_some())
}

fn wrong_reply() -> Failure {
    Failure::Failed("a reply of the wrong kind".into())
}
