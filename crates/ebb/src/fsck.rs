//! `ebb fsck`: of a node, or of a data directory that none has open. Exit statuses are fsck(8)'s.

use crate::ask::Asked;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::settings;
use crate::signals::Signals;
use ebb_cli::args::Fsck;
use ebb_cli::places::RunDir;
use ebb_model::{AdminReply, AdminRequest, FsckPart, FsckPoint, FsckReport};
use ebb_node::{FsckError, OpenError};
use ebb_ports::{Bucket, Ports};
use std::path::Path;
use std::rc::Rc;

/// Something is wrong, and still is.
const LEFT: u8 = 4;

pub async fn run(args: Fsck) -> Result<(), Failure> {
    let report = match check(&args).await {
        Err(Failure::Failed(text)) => return Err(Failure::Unchecked(text)),
        checked => checked?,
    };
    let is_clean = report.problems.is_empty();
    output::reply(&AdminReply::Fsck(report), args.target.output)?;
    if is_clean { Ok(()) } else { Err(Failure::Found(LEFT)) }
}

async fn check(args: &Fsck) -> Result<FsckReport, Failure> {
    let path = &args.target.path;
    if path.join("identity").is_file() && !is_on_mount(path) {
        return of_data(path, args).await;
    }
    let node = Asked::of(path)?;
    let mut report = match node.ask(AdminRequest::Fsck).await? {
        AdminReply::Fsck(report) => report,
        _ => return Err(wrong_reply()),
    };
    if args.bucket {
        let mut signals = Signals::listen()?;
        tokio::select! {
            compared = compare(&node, &mut report) => compared?,
            () = signals.next() => return Err(Failure::Failed("interrupted".into())),
        }
    }
    Ok(report)
}

async fn compare(node: &Asked, report: &mut FsckReport) -> Result<(), Failure> {
    let mut progress = Progress::counting("fsck");
    let mut next = Some(FsckPoint::START);
    while let Some(from) = next {
        let FsckPart { report: part, done, total, next: after } = match node.ask(AdminRequest::FsckBucket { from }).await? {
            AdminReply::FsckPart(part) => part,
            _ => return Err(wrong_reply()),
        };
        report.add(part);
        progress.show(done, total, || format!("{done} of {total} directories compared with the bucket"));
        next = after;
    }
    Ok(())
}

/// Of a data directory that no node has open.
async fn of_data(data_dir: &Path, args: &Fsck) -> Result<FsckReport, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::of(data_dir.display(), error);
    let ports = ebb_os::ports(data_dir).map_err(|error| failed(&error))?;
    let bucket = if args.bucket { Some(bucket_of(&ports, data_dir, args).await?) } else { None };
    let mut progress = bucket.as_ref().map(|_| Progress::counting("fsck"));
    let show = |done, total| {
        if let Some(progress) = &mut progress {
            progress.show(done, total, || format!("{done} of {total} directories compared with the bucket"));
        }
    };
    ebb_node::fsck(ports, bucket, show).await.map_err(|error: FsckError| failed(&error))
}

/// The bucket that the data directory is of.
async fn bucket_of(ports: &Ports, data_dir: &Path, args: &Fsck) -> Result<Rc<dyn Bucket>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::of(data_dir.display(), error);
    let serves = ebb_node::serves(ports).await.map_err(|error| failed(&error))?;
    let serves = serves.ok_or_else(|| failed(&OpenError::Unused))?;
    if !serves.members.is_empty() {
        return Err(Failure::Usage(format!("{} is of several buckets: mount it, and check the mount", data_dir.display())));
    }
    let settings = settings::bucket(&args.store, true);
    ebb_bucket::open(&serves.backing, &settings).await.map_err(|error| failed(&error))
}

fn is_on_mount(path: &Path) -> bool {
    RunDir::of_user().and_then(|run_dir| run_dir.find(path)).is_ok_and(|found| found.is_some())
}

fn wrong_reply() -> Failure {
    Failure::Failed("a reply of the wrong kind".into())
}
