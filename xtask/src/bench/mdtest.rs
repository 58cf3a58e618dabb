//! The operations of mdtest (evaluated in the CFS paper) on empty files and directories: parallel
//! threads, each in a directory of its own. One thread makes and removes the tree.

use super::place::{Column, Places};
use super::seconds;
use crate::Outcome;
use ebb_bench::work::{self, Stop};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const THREADS: usize = 4;
const EACH: usize = 1000;

/// Subdirectories per directory of the tree, and its depth: 1,110 directories, or 110 in the short
/// variant.
const BRANCHES: usize = 10;
const DEPTH: u32 = 3;

#[derive(Clone, Copy)]
enum Item {
    Directory,
    File,
}

impl Item {
    fn create(self, path: &Path) -> io::Result<()> {
        match self {
            Item::Directory => fs::create_dir(path),
            Item::File => File::create_new(path).map(drop),
        }
    }

    fn remove(self, path: &Path) -> io::Result<()> {
        match self {
            Item::Directory => fs::remove_dir(path),
            Item::File => fs::remove_file(path),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Item::Directory => "directory",
            Item::File => "file",
        }
    }
}

pub fn create_directories(places: &mut Places, column: Column) -> Outcome<f64> {
    create(places, column, Item::Directory)
}

pub fn stat_directories(places: &mut Places, column: Column) -> Outcome<f64> {
    stat(places, column, Item::Directory)
}

pub fn remove_directories(places: &mut Places, column: Column) -> Outcome<f64> {
    remove(places, column, Item::Directory)
}

pub fn create_files(places: &mut Places, column: Column) -> Outcome<f64> {
    create(places, column, Item::File)
}

pub fn stat_files(places: &mut Places, column: Column) -> Outcome<f64> {
    stat(places, column, Item::File)
}

pub fn remove_files(places: &mut Places, column: Column) -> Outcome<f64> {
    remove(places, column, Item::File)
}

/// Creates the directories of a tree, parents first: thousand/s.
pub fn create_tree(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    if tree[0].exists() {
        backward(&tree)?;
        places.settle(column)?;
    }
    rate(tree.len(), || forward(&tree))
}

/// Removes them, children first: thousand/s.
pub fn remove_tree(places: &mut Places, column: Column) -> Outcome<f64> {
    let tree = tree(places, column)?;
    if !tree[0].exists() {
        forward(&tree)?;
        places.settle(column)?;
    }
    rate(tree.len(), || backward(&tree))
}

fn forward(tree: &[PathBuf]) -> Outcome<()> {
    Ok(tree.iter().try_for_each(fs::create_dir)?)
}

fn backward(tree: &[PathBuf]) -> Outcome<()> {
    Ok(tree.iter().rev().try_for_each(fs::remove_dir)?)
}

fn create(places: &mut Places, column: Column, item: Item) -> Outcome<f64> {
    let lists = lists(places, column, item)?;
    if lists[0][0].exists() {
        at_once(&lists, |list| list.iter().try_for_each(|path| item.remove(path)))?;
        places.settle(column)?;
    }
    rate(lists.iter().map(Vec::len).sum(), || {
        at_once(&lists, |list| list.iter().try_for_each(|path| item.create(path)))
    })
}

fn stat(places: &mut Places, column: Column, item: Item) -> Outcome<f64> {
    let lists = created(places, column, item)?;
    rate(lists.iter().map(Vec::len).sum(), || {
        at_once(&lists, |list| work::stat(list, &Stop::default()))
    })
}

fn remove(places: &mut Places, column: Column, item: Item) -> Outcome<f64> {
    let lists = created(places, column, item)?;
    rate(lists.iter().map(Vec::len).sum(), || {
        at_once(&lists, |list| list.iter().try_for_each(|path| item.remove(path)))
    })
}

/// The items of every thread, created if they do not exist.
fn created(places: &mut Places, column: Column, item: Item) -> Outcome<Vec<Vec<PathBuf>>> {
    let lists = lists(places, column, item)?;
    if !lists[0][0].exists() {
        at_once(&lists, |list| list.iter().try_for_each(|path| item.create(path)))?;
        places.settle(column)?;
    }
    Ok(lists)
}

/// The paths of the items of every thread.
fn lists(places: &mut Places, column: Column, item: Item) -> Outcome<Vec<Vec<PathBuf>>> {
    let root = places.root(column)?;
    let list = |thread: usize| {
        let directory = root.join(format!("mdtest-{}-{thread}", item.name()));
        fs::create_dir_all(&directory)?;
        Ok((0..column.share(EACH))
            .map(|n| directory.join(format!("{}-{n:04}", item.name())))
            .collect())
    };
    (0..THREADS).map(list).collect()
}

fn tree(places: &mut Places, column: Column) -> Outcome<Vec<PathBuf>> {
    let root = places.root(column)?.join("mdtest-tree");
    fs::create_dir_all(&root)?;
    Ok(below(&root, if column.share(BRANCHES) == BRANCHES { DEPTH } else { DEPTH - 1 }))
}

/// All directories below `directory`, parents first.
fn below(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let branches =
        (0..if depth > 0 { BRANCHES } else { 0 }).map(|branch| directory.join(branch.to_string()));
    branches
        .flat_map(|branch| [below(&branch, depth - 1), vec![branch]].into_iter().rev().flatten())
        .collect()
}

fn at_once(
    lists: &[Vec<PathBuf>],
    work: impl Fn(&[PathBuf]) -> io::Result<()> + Sync,
) -> Outcome<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = lists.iter().map(|list| scope.spawn(|| work(list))).collect();
        // Join all threads before the first error is returned.
        let ends: Vec<io::Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread does not panic"))
            .collect();
        Ok(ends.into_iter().collect::<io::Result<()>>()?)
    })
}

/// Thousand/s.
fn rate(count: usize, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    Ok(count as f64 / 1e3 / seconds(work)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_parents_before_children() {
        let tree = below(Path::new("/t"), DEPTH);
        assert_eq!(tree.len(), 1110);
        assert_eq!(tree[..3], ["/t/0", "/t/0/0", "/t/0/0/0"].map(PathBuf::from));
        for (at, path) in tree.iter().enumerate() {
            let parent = path.parent().unwrap();
            assert!(
                parent == Path::new("/t") || tree[..at].iter().any(|before| before == parent),
                "{}",
                path.display()
            );
        }
    }
}
