//! `ebb warmup`: fetches the named files from the bucket into the node's cache, past the kernel. A
//! cached file costs only a query, so the same command continues after an interruption.

use crate::ask::{Last, NodeConnection, POLL, ResolvedTarget};
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::pin;
use crate::progress::Progress;
use crate::rate_limit::RateLimit;
use crate::signals::Signals;
use ebb_cli::args::{Tls, Warmup};
use ebb_cli::render::with_path;
use ebb_cli::units::Bytes;
use ebb_model::*;
use futures_util::stream::{self, StreamExt};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Entries per request.
const LIST_PAGE: u32 = 1024;

/// Whether the files stay in the cache.
pub enum Stay {
    No,
    /// The files are pinned.
    Yes,
}

pub async fn run(args: Warmup, stay: Stay) -> Result<(), Failure> {
    let rate_limit = RateLimit::new(args.rate)?;
    let (node, named) = named(&args).await?;
    node.confirm().await?;
    // From here on an interruption reports the work done.
    let mut signals = Signals::listen()?;
    let line = NodeConnection::to(&node.address)
        .await
        .map_err(|error| Failure::of(&node.address, error))?;
    let (jobs, progress) = (args.jobs.into(), RefCell::new(Progress::new("warmup")));
    let (tls, sum) = (args.tls.clone(), RefCell::default());
    let warming = Warming { node, line, jobs, rate_limit, tls, progress, sum };
    let interrupted =
        || Failure::Failed("interrupted; the same command goes on where it was".into());
    let pinned: Vec<PathBuf> = match stay {
        Stay::No => Vec::new(),
        Stay::Yes => named.iter().map(|named| named.path.clone()).collect(),
    };
    let files = tokio::select! {
        files = warming.survey(named) => files?,
        () = signals.next() => return Err(interrupted()),
    };
    warming.check_room(&files).await?;
    tokio::task::spawn_blocking(move || pinned.iter().try_for_each(|path| pin::set(path)))
        .await
        .map_err(|error| Failure::of("pin", error))??;
    let (outcome, is_interrupted) = tokio::select! {
        outcome = warming.fetch(&files) => (outcome, false),
        () = signals.next() => (Err(interrupted()), true),
    };
    let sum = warming.sum.into_inner();
    drop(warming.progress);
    match args.output.json {
        true => output::json(&sum.json(&files, is_interrupted))?,
        false => output::print(&sum.text(&files))?,
    }
    outcome?;
    if sum.failed.is_empty() { Ok(()) } else { Err(Failure::NotGood) }
}

/// A path as it was given, and from the root of the volume.
struct Named {
    path: PathBuf,
    below_root: Vec<Name>,
}

/// The node to ask, and the named paths in its volume.
async fn named(args: &Warmup) -> Result<(ResolvedTarget, Vec<Named>), Failure> {
    let mut paths = Vec::new();
    for path in &args.paths {
        match path == Path::new("-") {
            true => read_names(io::stdin().lock(), &mut paths)
                .map_err(|error| Failure::of("standard input", error))?,
            false => paths.push(path.clone()),
        }
    }
    if let Some(list) = &args.list {
        let file = File::open(list).and_then(|file| read_names(BufReader::new(file), &mut paths));
        file.map_err(|error| Failure::of(list.shown(), error))?;
    }
    let mut first = None;
    let mut named = Vec::new();
    // Of the previous path: the paths of a list are usually on one mount.
    let mut mount: Option<(ResolvedTarget, Vec<Name>)> = None;
    for path in paths {
        let asked = ResolvedTarget::of(&path, &args.tls)?;
        let root = match mount {
            Some((other, root)) if asked.is_on_mount_of(&other) => root,
            _ => asked.root().await?,
        };
        let below_root = [&root[..], &asked.below].concat();
        mount = Some((asked.clone(), root));
        if !asked.is_on_node_of(first.get_or_insert_with(|| asked.clone())) {
            return Err(elsewhere(&path));
        }
        named.push(Named { path, below_root });
    }
    let first = first.ok_or_else(|| Failure::Usage("the list names nothing".into()))?;
    Ok((first, named))
}

fn elsewhere(path: &Path) -> Failure {
    Failure::Usage(format!("{} is on another mount than what was named before it", path.shown()))
}

fn read_names(from: impl BufRead, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for line in from.split(b'\n') {
        let line = line?;
        if !line.is_empty() {
            paths.push(PathBuf::from(OsStr::from_bytes(&line)));
        }
    }
    Ok(())
}

struct Warming {
    node: ResolvedTarget,
    line: NodeConnection,
    jobs: usize,
    rate_limit: RateLimit,
    /// As given on the command line.
    tls: Tls,
    progress: RefCell<Progress>,
    sum: RefCell<Sum>,
}

/// A file to cache.
struct Wanted {
    path: PathBuf,
    ino: Ino,
    size_bytes: u64,
    /// Its size in the cache.
    cache_bytes: u64,
    /// Bytes that are not known to be cached.
    missing_bytes: Cell<u64>,
}

#[derive(Default)]
struct Sum {
    /// Cached, by now or before.
    bytes: u64,
    /// Of these, the bytes fetched from the bucket.
    fetched_bytes: u64,
    /// Each path once, with its first error.
    failed: Vec<(PathBuf, String)>,
    failed_inodes: BTreeSet<Ino>,
}

/// Why something was not done.
enum Refusal {
    /// An error of this file or directory.
    Of(FsError),
    /// The node does not answer: nothing else will be done either.
    All(Failure),
}

impl Warming {
    /// All files at and below the named paths, each once.
    async fn survey(&self, named: Vec<Named>) -> Result<Vec<Wanted>, Failure> {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        let mut dirs = Vec::new();
        let mut take = |path: PathBuf, attr: Attr, dirs: &mut Vec<(PathBuf, Ino)>| {
            // Files may have several names, and a named path may be below another one.
            if !matches!(attr.kind, FileKind::Regular | FileKind::Directory)
                || !seen.insert(attr.ino)
            {
                return;
            }
            if attr.kind == FileKind::Directory {
                dirs.push((path, attr.ino));
                return;
            }
            let cache_bytes = attr
                .size_bytes
                .saturating_sub(attr.hole_bytes)
                .div_ceil(BLOCK_BYTES)
                .saturating_mul(BLOCK_BYTES);
            files.push(Wanted {
                path,
                ino: attr.ino,
                size_bytes: attr.size_bytes,
                cache_bytes,
                missing_bytes: attr.size_bytes.into(),
            });
        };
        let mut found = stream::iter(named)
            .map(async |named| (self.look_up_named(&named).await, named.path))
            .buffer_unordered(self.jobs);
        while let Some((outcome, path)) = found.next().await {
            match outcome {
                Ok(attr) => take(path, attr, &mut dirs),
                Err(refusal) => self.refuse(path, None, refusal)?,
            }
        }
        while !dirs.is_empty() {
            let level = std::mem::take(&mut dirs);
            let mut listed = stream::iter(level)
                .map(async |(path, dir)| (path, self.list(dir).await))
                .buffer_unordered(self.jobs);
            while let Some((path, outcome)) = listed.next().await {
                match outcome {
                    Ok(entries) => {
                        for (name, attr) in entries {
                            take(path.join(OsStr::from_bytes(name.as_bytes())), attr, &mut dirs);
                        }
                    }
                    Err(refusal) => self.refuse(path, None, refusal)?,
                }
            }
        }
        Ok(files)
    }

    /// Links are looked for only where there is no way without: not for each path of a long list.
    async fn look_up_named(&self, named: &Named) -> Result<Attr, Refusal> {
        match self.look_up(&named.below_root).await {
            Ok(Attr { kind: FileKind::Symlink, .. }) | Err(Refusal::Of(FsError::NotDirectory)) => {}
            known => return known,
        }
        let real = ResolvedTarget::at(&named.path, Last::Followed, &self.tls)
            .await
            .map_err(Refusal::All)?;
        if !real.is_on_node_of(&self.node) {
            return Err(Refusal::All(elsewhere(&named.path)));
        }
        self.look_up(&real.path().await.map_err(Refusal::All)?).await
    }

    async fn look_up(&self, path: &[Name]) -> Result<Attr, Refusal> {
        let mut attr = self.attr(Request::GetAttr { ino: Ino::ROOT }).await?;
        for name in path {
            attr = self.attr(Request::Lookup { parent: attr.ino, name: name.clone() }).await?;
        }
        Ok(attr)
    }

    async fn attr(&self, request: Request) -> Result<Attr, Refusal> {
        match self.call(request).await? {
            Reply::Attr(attr) => Ok(*attr),
            _ => Err(wrong_reply()),
        }
    }

    async fn list(&self, dir: Ino) -> Result<Vec<(Name, Attr)>, Refusal> {
        let mut all = Vec::new();
        let mut after = Cookie::START;
        loop {
            match self.call(Request::ReadDir { dir, after, limit: LIST_PAGE }).await? {
                Reply::Directory { entries, end } => {
                    let last = entries.last().map(|(entry, _)| entry.cookie);
                    all.extend(entries.into_iter().map(|(entry, attr)| (entry.name, attr)));
                    match last {
                        Some(cookie) if !end => after = cookie,
                        _ => return Ok(all),
                    }
                }
                _ => return Err(wrong_reply()),
            }
        }
    }

    /// Files beyond the cache's size would evict each other.
    async fn check_room(&self, files: &[Wanted]) -> Result<(), Failure> {
        let wanted = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.cache_bytes));
        match self.call(Request::Admin(AdminRequest::Status)).await {
            Ok(Reply::Admin(AdminReply::Status(status))) if wanted <= status.cache_limit_bytes => {
                Ok(())
            }
            Ok(Reply::Admin(AdminReply::Status(status))) => Err(Failure::Failed(format!(
                "{} files take {} in the cache, which holds {} (--cache-size): nothing was fetched",
                files.len(),
                Bytes(wanted),
                Bytes(status.cache_limit_bytes)
            ))),
            Ok(_) => Err(Failure::Failed("a reply of the wrong kind".into())),
            Err(Refusal::Of(error)) => Err(Failure::of("status", error)),
            Err(Refusal::All(failure)) => Err(failure),
        }
    }

    async fn fetch(&self, files: &[Wanted]) -> Result<(), Failure> {
        let total = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size_bytes));
        let piece_bytes = self.rate_limit.piece_bytes(CHUNK_BYTES);
        let pieces = files
            .iter()
            .flat_map(|file| pieces(file.size_bytes, piece_bytes).map(move |piece| (file, piece)));
        let mut warmed = stream::iter(pieces)
            .map(async |(file, piece)| (file, self.warm(file.ino, piece).await))
            .buffer_unordered(self.jobs);
        while let Some((file, outcome)) = warmed.next().await {
            match outcome {
                Ok((bytes, fetched_bytes)) => {
                    file.missing_bytes.set(file.missing_bytes.get() - bytes);
                    let mut sum = self.sum.borrow_mut();
                    sum.bytes += bytes;
                    sum.fetched_bytes += fetched_bytes;
                }
                Err(refusal) => self.refuse(file.path.clone(), Some(file.ino), refusal)?,
            }
            let sum = self.sum.borrow();
            let text = || {
                format!(
                    "{} of {}, {} from the bucket",
                    Bytes(sum.bytes),
                    Bytes(total),
                    Bytes(sum.fetched_bytes)
                )
            };
            self.progress.borrow_mut().show(sum.bytes, total, text);
        }
        Ok(())
    }

    /// Bytes of the piece that are cached now, and how many of them were fetched for that.
    async fn warm(&self, ino: Ino, piece: Range<u64>) -> Result<(u64, u64), Refusal> {
        let len_bytes = piece.end - piece.start;
        self.rate_limit.wait(len_bytes).await;
        if self.sum.borrow().failed_inodes.contains(&ino) {
            self.rate_limit.give_back(len_bytes);
            return Ok((0, 0));
        }
        let warmed = self
            .call(Request::Admin(AdminRequest::Warm { ino, offset: piece.start, len_bytes }))
            .await;
        let fetched_bytes = match &warmed {
            Ok(Reply::Admin(AdminReply::Warmed { bytes })) => *bytes,
            _ => 0,
        };
        self.rate_limit.give_back(len_bytes.saturating_sub(fetched_bytes));
        match warmed? {
            Reply::Admin(AdminReply::Warmed { .. }) => Ok((len_bytes, fetched_bytes)),
            _ => Err(wrong_reply()),
        }
    }

    /// Repeats the request until the node has time.
    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        loop {
            match self.line.call(request.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(RpcError::Retry) => tokio::time::sleep(POLL).await,
                Err(RpcError::Refused(error)) => return Err(Refusal::Of(error)),
                Err(error) => {
                    return Err(Refusal::All(Failure::Failed(
                        self.line.explain(error).to_string(),
                    )));
                }
            }
        }
    }

    fn refuse(&self, path: PathBuf, ino: Option<Ino>, refusal: Refusal) -> Result<(), Failure> {
        let error = match refusal {
            Refusal::Of(error) => error,
            Refusal::All(failure) => return Err(failure),
        };
        let mut sum = self.sum.borrow_mut();
        // The other pieces of a file have nothing new to report.
        if ino.is_none_or(|ino| sum.failed_inodes.insert(ino)) {
            self.progress
                .borrow_mut()
                .line(&format!("{}: {error}", shown_path(path.as_os_str().as_bytes())));
            sum.failed.push((path, error.to_string()));
        }
        Ok(())
    }
}

fn wrong_reply() -> Refusal {
    Refusal::All(Failure::Failed("a reply of the wrong kind".into()))
}

/// The parts of a file, none of which reaches over the end of a chunk.
fn pieces(size_bytes: u64, piece_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let chunk_end = (start / CHUNK_BYTES + 1).saturating_mul(CHUNK_BYTES);
        at = size_bytes.min(chunk_end).min(start.saturating_add(piece_bytes));
        (at > start).then_some(start..at)
    })
}

impl Sum {
    fn text(&self, files: &[Wanted]) -> String {
        let cached = Bytes(self.bytes - self.fetched_bytes.min(self.bytes));
        let failed = if self.failed.is_empty() {
            String::new()
        } else {
            format!(", {} FAILED", self.failed.len())
        };
        format!(
            "{} files, {}: {} came from the bucket, {cached} were cached before{failed}\n",
            cached_files(files),
            Bytes(self.bytes),
            Bytes(self.fetched_bytes)
        )
    }

    fn json(&self, files: &[Wanted], is_interrupted: bool) -> serde_json::Value {
        let failed = self
            .failed
            .iter()
            .map(|(path, error)| with_path(path.as_os_str().as_bytes(), json!({ "error": error })));
        json!({
            "files": cached_files(files),
            "bytes": self.bytes,
            "fetched_bytes": self.fetched_bytes,
            "failed": failed.collect::<Vec<_>>(),
            "interrupted": is_interrupted,
        })
    }
}

fn cached_files(files: &[Wanted]) -> usize {
    files.iter().filter(|file| file.missing_bytes.get() == 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte is in one piece, and no piece in two chunks.
    #[test]
    fn pieces_cover_a_file() {
        for (size, piece) in [
            (0, CHUNK_BYTES),
            (1, CHUNK_BYTES),
            (CHUNK_BYTES * 2 + 1, CHUNK_BYTES),
            (CHUNK_BYTES + 5, 10 << 20),
        ] {
            let mut end = 0;
            for range in pieces(size, piece) {
                assert_eq!(range.start, end);
                assert!(
                    range.end - range.start <= piece
                        && range.start / CHUNK_BYTES == (range.end - 1) / CHUNK_BYTES
                );
                end = range.end;
            }
            assert_eq!(end, size);
        }
    }

    #[test]
    fn names_are_lines() {
        let mut paths = Vec::new();
        read_names(&b"a b\n\nc/\xff\nlast"[..], &mut paths).unwrap();
        assert_eq!(
            paths,
            [OsStr::from_bytes(b"a b"), OsStr::from_bytes(b"c/\xff"), OsStr::new("last")]
                .map(PathBuf::from)
        );
    }
}
