//! `ebb refresh`: shows changes made by others in the bucket, at and below PATH, at once.

use crate::ask::{Last, NodeConnection, POLL, ResolvedTarget};
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::progress::Progress;
use ebb_cli::args::Target;
use ebb_cli::render::with_path;
use ebb_model::*;
use futures_util::stream::{self, StreamExt};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Directories that are listed at one time.
const JOBS: usize = 8;

/// Entries per request.
const LIST_PAGE: u32 = 1024;

pub async fn run(args: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&args.path, Last::Followed, &args.tls).await?;
    node.confirm().await?;
    let line = NodeConnection::to(&node.address)
        .await
        .map_err(|error| Failure::of(&node.address, error))?;
    let failed = |error: RpcError| Failure::of(args.path.shown(), line.explain(error));
    let (attr, mut changed) = find(&line, &node.path().await?).await.map_err(&failed)?;
    let (mut dirs, mut refused) = (0u64, Vec::new());
    let mut progress = Progress::counting("refresh");
    let mut level: Vec<(PathBuf, Ino)> = vec![(args.path.clone(), attr.ino)];
    while !level.is_empty() {
        let mut listed = stream::iter(std::mem::take(&mut level))
            .map(async |(path, ino)| (refresh(&line, ino, &path).await, path))
            .buffer_unordered(JOBS);
        while let Some((outcome, path)) = listed.next().await {
            match outcome {
                Ok(seen) => {
                    changed += seen.changed;
                    dirs += u64::from(seen.is_dir);
                    level.extend(seen.below);
                }
                // The name existed when its directory was listed.
                Err(RpcError::Refused(FsError::NotFound | FsError::Stale)) => changed += 1,
                Err(RpcError::Refused(error)) => refused.push((path, error)),
                Err(error) => return Err(failed(error)),
            }
            let text = || format!("{dirs} directories, {changed} names have changed");
            progress.show(dirs, dirs + level.len() as u64, text);
        }
    }
    drop(progress);
    if args.output.json {
        let refused = refused.iter().map(|(path, error)| {
            with_path(path.as_os_str().as_bytes(), json!({ "error": error.to_string() }))
        });
        output::json(&json!({
            "directories": dirs,
            "changed": changed,
            "failed": refused.collect::<Vec<_>>(),
        }))?;
    } else {
        refused.iter().for_each(|(path, error)| output::say(format!("{}: {error}", path.shown())));
        output::print(&format!("{dirs} directories looked at, {changed} names have changed\n"))?;
    }
    if refused.is_empty() { Ok(()) } else { Err(Failure::NotGood) }
}

/// The inode at a path, and the number of changes found on the way. Names that the node does not
/// know are looked up in the bucket.
async fn find(line: &NodeConnection, path: &[Name]) -> Result<(Attr, u64), RpcError> {
    let mut changed = 0;
    let mut at = attr(line, Request::GetAttr { ino: Ino::ROOT }).await?;
    for name in path {
        let look_up = || Request::Lookup { parent: at.ino, name: name.clone() };
        let found = attr(line, look_up()).await;
        at = match found {
            Err(RpcError::Refused(FsError::NotFound)) => {
                changed += ask(line, at.ino).await?;
                attr(line, look_up()).await?
            }
            found => found?,
        };
    }
    Ok((at, changed))
}

struct Seen {
    changed: u64,
    is_dir: bool,
    below: Vec<(PathBuf, Ino)>,
}

async fn refresh(
    line: &NodeConnection,
    ino: Ino,
    path: &std::path::Path,
) -> Result<Seen, RpcError> {
    let changed = ask(line, ino).await?;
    let is_dir = attr(line, Request::GetAttr { ino }).await?.kind == FileKind::Directory;
    let mut below = Vec::new();
    let mut after = is_dir.then_some(Cookie::START);
    while let Some(from) = after {
        let asked = Request::ReadDir { dir: ino, after: from, limit: LIST_PAGE };
        let Reply::Directory { entries, end } = call(line, asked).await? else {
            return Err(RpcError::Lost);
        };
        after = entries.last().map(|(entry, _)| entry.cookie).filter(|_| !end);
        let dirs = entries.into_iter().filter(|(entry, _)| entry.kind == FileKind::Directory);
        below.extend(
            dirs.map(|(entry, _)| (path.join(OsStr::from_bytes(entry.name.as_bytes())), entry.ino)),
        );
    }
    Ok(Seen { changed, is_dir, below })
}

async fn ask(line: &NodeConnection, ino: Ino) -> Result<u64, RpcError> {
    match call(line, Request::Admin(AdminRequest::Refresh { ino })).await? {
        Reply::Admin(AdminReply::Refreshed { changed }) => Ok(changed),
        _ => Err(RpcError::Lost),
    }
}

async fn attr(line: &NodeConnection, request: Request) -> Result<Attr, RpcError> {
    match call(line, request).await? {
        Reply::Attr(attr) => Ok(*attr),
        _ => Err(RpcError::Lost),
    }
}

/// Repeats the request until the node has time.
async fn call(line: &NodeConnection, request: Request) -> Result<Reply, RpcError> {
    loop {
        match line.call(request.clone()).await {
            Err(RpcError::Retry) => tokio::time::sleep(POLL).await,
            answer => return answer,
        }
    }
}
