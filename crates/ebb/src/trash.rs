//! `ebb trash`.

use crate::ask::{AskError, Last, ResolvedTarget};
use crate::attribute;
use crate::failure::Failure;
use crate::output;
use crate::source::path_bytes;
use ebb_cli::args::{EmptyTrash, Output, RestoreTrash, Target, Trash};
use ebb_cli::render::with_path;
use ebb_model::*;
use ebb_os::OsClock;
use ebb_ports::Clock;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub async fn run(command: Trash) -> Result<(), Failure> {
    match command {
        Trash::Keep(args) => {
            attribute::set(&args.path, KEEP, args.time.0.as_secs().to_string().as_bytes())
        }
        Trash::Unkeep { path } => attribute::remove(
            &path,
            KEEP,
            "says nothing itself of what is kept; `ebb explain` says what does",
        ),
        Trash::List(target) => list(target).await,
        Trash::Restore(args) => restore(args).await,
        Trash::Empty(args) => empty(args).await,
    }
}

async fn list(target: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&target.path, Last::Named, &target.tls).await?;
    let mut entries = listed(&node, &node.path().await?).await?;
    entries.sort_by(|a, b| (&a.trashed.path, a.trashed.at).cmp(&(&b.trashed.path, b.trashed.at)));
    output::reply(&AdminReply::Trash { entries, next: None }, target.output)
}

/// Everything in the trash that was at or below the path.
async fn listed(node: &ResolvedTarget, path: &[Name]) -> Result<Vec<TrashEntry>, Failure> {
    let (mut all, mut at) = (Vec::new(), Some(TrashPoint::default()));
    while let Some(from) = at {
        match node.ask(AdminRequest::ListTrash { path: path.to_vec(), from }).await? {
            AdminReply::Trash { entries, next } => {
                all.extend(entries);
                at = next;
            }
            _ => return Err(Failure::of(node.shown(), "a reply of the wrong kind")),
        }
    }
    Ok(all)
}

async fn empty(args: EmptyTrash) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&args.target.path, Last::Named, &args.target.tls).await?;
    let path = node.path().await?;
    let now = OsClock.wall();
    let age_secs = args.older_than.map_or(0, |span| span.0.as_secs());
    let until =
        Time { secs: now.secs.saturating_sub(i64::try_from(age_secs).unwrap_or(i64::MAX)), ..now };
    let (mut entries, mut bytes, mut at) = (0, 0, Some(TrashPoint::default()));
    while let Some(from) = at {
        match node.ask(AdminRequest::EmptyTrash { path: path.clone(), until, from }).await? {
            AdminReply::Emptied { entries: more, bytes: more_bytes, next } => {
                (entries, bytes, at) = (entries + more, bytes + more_bytes, next);
            }
            _ => return Err(Failure::of(node.shown(), "a reply of the wrong kind")),
        }
    }
    output::reply(&AdminReply::Emptied { entries, bytes, next: None }, args.target.output)
}

async fn restore(args: RestoreTrash) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&args.target.path, Last::Named, &args.target.tls).await?;
    let to = match &args.to {
        Some(to) => Some(ResolvedTarget::at(to, Last::Named, &args.target.tls).await?),
        None => None,
    };
    if let Some(to) = to.as_ref().filter(|to| !to.is_on_node_of(&node)) {
        return Err(Failure::Usage(format!(
            "{} is on another mount than {}",
            to.shown(),
            node.shown()
        )));
    }
    let (root, path) = (node.root().await?, node.path().await?);
    let entries = listed(&node, &path).await?;
    let meant: Vec<TrashEntry> = match &args.entry {
        Some(wanted) => {
            entries.into_iter().filter(|entry| entry.ino.to_string() == *wanted).collect()
        }
        None => last_of_each(entries).into_values().collect(),
    };
    if meant.is_empty() {
        return Err(Failure::of(node.shown(), "nothing that was there is in the trash"));
    }
    let to = match &to {
        Some(to) => Some(to.path().await?),
        None => None,
    };
    let mut restoring = Restoring { node: &node, root, dirs: None };
    let (mut restored, mut failed, mut standing) = (Vec::new(), Vec::new(), Vec::new());
    for entry in meant {
        let was = split(&entry.trashed.path);
        let place = match &to {
            None => was,
            Some(to) if args.entry.is_some() => to.clone(),
            Some(to) => to.iter().chain(&was[path.len()..]).cloned().collect(),
        };
        match restoring.put_back(entry.ino, &place).await {
            Ok(()) => restored.push(place),
            Err(error) if is_standing(&error, &entry) && args.entry.is_none() => {
                standing.push((place, error.to_string()))
            }
            Err(error) => failed.push((place, error.to_string())),
        }
    }
    failed.extend(standing.into_iter().filter(|(dir, _)| !has_below(&restored, dir)));
    report(&restored, &failed, args.target.output)?;
    if failed.is_empty() { Ok(()) } else { Err(Failure::NotGood) }
}

/// The name of a removed directory is taken: perhaps by a directory, into which its contents can be
/// restored.
fn is_standing(error: &AskError, entry: &TrashEntry) -> bool {
    matches!(error, AskError::Rpc(RpcError::Refused(FsError::Exists)))
        && entry.kind == FileKind::Directory
}

/// Whether one of the paths, which are sorted, is below the directory.
fn has_below(paths: &[Vec<Name>], dir: &[Name]) -> bool {
    let next = paths.partition_point(|path| path.as_slice() <= dir);
    paths.get(next).is_some_and(|path| path.starts_with(dir))
}

/// The latest entry of each path, directories before their contents.
fn last_of_each(entries: Vec<TrashEntry>) -> BTreeMap<Vec<Name>, TrashEntry> {
    let mut last = BTreeMap::<Vec<Name>, TrashEntry>::new();
    for entry in entries {
        let path = split(&entry.trashed.path);
        if last.get(&path).is_none_or(|other| other.trashed.at <= entry.trashed.at) {
            last.insert(path, entry);
        }
    }
    last
}

struct Restoring<'a> {
    node: &'a ResolvedTarget,
    /// The directory that the mount shows.
    root: Vec<Name>,
    /// Directories in the trash, once they have been listed.
    dirs: Option<BTreeMap<Vec<Name>, TrashEntry>>,
}

impl Restoring<'_> {
    /// Directories on the way that have gone are made again.
    async fn put_back(&mut self, ino: Ino, place: &[Name]) -> Result<(), AskError> {
        let request = || AdminRequest::Restore { ino, to: place.to_vec() };
        match self.node.answer(request()).await {
            Err(AskError::Rpc(RpcError::Refused(FsError::NotFound))) => {}
            answer => return answer.map(drop),
        }
        for depth in 1..place.len() {
            self.make_again(&place[..depth]).await?;
        }
        self.node.answer(request()).await.map(drop)
    }

    /// Restores the directory, if it is in the trash.
    async fn make_again(&mut self, dir: &[Name]) -> Result<(), AskError> {
        if self.dirs.is_none() {
            let mut entries = listed(self.node, &[])
                .await
                .map_err(|failure| AskError::Unreachable(failure.text().unwrap_or("").into()))?;
            entries.retain(|entry| entry.kind == FileKind::Directory);
            self.dirs = Some(last_of_each(entries));
        }
        let kept = self.dirs.as_ref().and_then(|dirs| dirs.get(dir));
        if let Some(entry) = kept
            && self
                .node
                .answer(AdminRequest::Restore { ino: entry.ino, to: dir.to_vec() })
                .await
                .is_ok()
        {
            return Ok(());
        }
        let gone = || AskError::Rpc(RpcError::Refused(FsError::NotFound));
        let made = fs::create_dir(self.on_mount(dir).ok_or_else(gone)?);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(gone()),
            _ => Ok(()),
        }
    }

    /// The path of something in the volume, if the mount shows it.
    fn on_mount(&self, path: &[Name]) -> Option<PathBuf> {
        let mount = self.node.mount.as_ref()?;
        let below: PathBuf = path
            .strip_prefix(&*self.root)?
            .iter()
            .map(|name| OsStr::from_bytes(name.as_bytes()))
            .collect();
        Some(mount.mountpoint.join(below))
    }
}

fn split(path: &[u8]) -> Vec<Name> {
    path.split(|byte| *byte == b'/').filter_map(|name| Name::new(name).ok()).collect()
}

fn report(
    restored: &[Vec<Name>],
    failed: &[(Vec<Name>, String)],
    output: Output,
) -> Result<(), Failure> {
    for (path, why) in failed.iter().filter(|_| !output.json) {
        output::say(format!("ebb: /{}: {why}", shown_path(&path_bytes(path))));
    }
    match output.json {
        true => output::json(&json!({
            "restored": restored.iter().map(|path| with_path(&path_bytes(path), json!({}))).collect::<Vec<_>>(),
            "failed": failed.iter().map(|(path, why)| with_path(&path_bytes(path), json!({ "error": why }))).collect::<Vec<_>>(),
        })),
        false => output::print(&format!("{} restored, {} not\n", restored.len(), failed.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_each_path_comes_after_its_directory() {
        let entry = |ino, path: &'static str, secs| {
            let trashed =
                Trashed { path: path.into(), at: Time::from_secs(secs), until_secs: 0, uid: 0 };
            TrashEntry { ino: Ino(ino), kind: FileKind::Regular, size_bytes: 0, trashed }
        };
        let last = last_of_each(vec![
            entry(1, "a/b", 5),
            entry(2, "a-c", 1),
            entry(3, "a", 6),
            entry(4, "a/b", 7),
            entry(5, "a/b", 6),
        ]);
        let order: Vec<u64> = last.into_values().map(|entry| entry.ino.0).collect();
        assert_eq!(order, [3, 4, 2]);
    }
}
