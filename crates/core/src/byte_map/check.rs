//! Invariant check of content, extents and what joins them.

use crate::content::Content;
use crate::extent::Extents;
use ebb_model::Ino;
use std::ops::Range;

/// Descriptions of broken laws that join the two, which each keep their own.
pub(crate) fn check(content: &Content, extents: &Extents) -> Vec<String> {
    let mut problems = check_blocks(content, extents);
    problems.extend(check_holes(content, extents));
    problems
}

/// Descriptions of dirty blocks that are not here.
pub(crate) fn check_all_present(content: &Content, extents: &Extents) -> Vec<String> {
    let mut problems = Vec::new();
    for (ino, run, version) in content.all_dirty() {
        let found = extents.blocks(ino, run.clone());
        let found = found.filter(|(_, state)| state.dirty && state.version == version).count();
        if found as u64 != run.end.saturating_sub(run.start) {
            problems.push(format!(
                "inode {ino}: only {found} of the dirty blocks {run:?} are present at {version:?}"
            ));
        }
    }
    problems
}

/// A block of the extents is dirty at the version of its last write, or clean and of the file's
/// object.
fn check_blocks(content: &Content, extents: &Extents) -> Vec<String> {
    let mut problems = Vec::new();
    let mut blocks = extents.all_blocks().peekable();
    let mut object: Option<(Ino, bool)> = None;
    let mut is_of_object = |ino: Ino| match object {
        Some((known, is_so)) if known == ino => is_so,
        _ => {
            let is_so = extents.object_mark(ino) == content.object_mark(ino);
            object = Some((ino, is_so));
            is_so
        }
    };
    let mut clean = |(ino, at): (Ino, u64), is_dirty: bool| {
        if is_dirty {
            Some(format!("inode {ino}: block {at} is dirty on the disk and not in the content"))
        } else if !is_of_object(ino) {
            Some(format!("inode {ino}: block {at} is of another object"))
        } else {
            None
        }
    };
    for (ino, run, version) in content.all_dirty() {
        while let Some((at, state)) = blocks.next_if(|(at, _)| *at < (ino, run.start)) {
            problems.extend(clean(at, state.dirty));
        }
        while let Some(((_, at), state)) = blocks.next_if(|(at, _)| *at < (ino, run.end)) {
            if !state.dirty || state.version != version {
                problems.push(format!("inode {ino}: dirty block {at} is outdated on the disk"));
            }
        }
    }
    for (at, state) in blocks {
        problems.extend(clean(at, state.dirty));
    }
    problems
}

fn check_holes(content: &Content, extents: &Extents) -> Vec<String> {
    let is_present =
        |(ino, run): &(Ino, Range<u64>)| extents.blocks(*ino, run.clone()).next().is_some();
    let wrong = content.all_holes().filter(is_present);
    wrong.map(|(ino, run)| format!("inode {ino}: a block in the hole {run:?} is present")).collect()
}
