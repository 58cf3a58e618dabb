//! Splits a history into parts that can be checked apart, because no operation touches two of them.

use crate::history::{History, InodeId, Kind, Name, Op, Operation, Outcome, Owner};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An operation of the search, or one half of it: a stat by name is a lookup and an fstat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The index of the operation in its history.
    pub index: usize,
    pub owner: Owner,
    pub call_ns: u64,
    pub op: Op,
    /// The id of the inode that it creates, if its outcome does not have it.
    pub created: InodeId,
    pub answer: Option<(u64, Outcome)>,
}

impl Step {
    /// Whether it changes nothing, in whatever state it is put. A rename, for example, changes
    /// something in some states and nothing if both names are of one file.
    pub fn changes_nothing(&self) -> bool {
        self.op.is_observation()
            || matches!(&self.answer, Some((_, Outcome::Error(_) | Outcome::Short { .. })))
    }

    /// The same step with an unknown outcome.
    pub fn weakened(&self) -> Step {
        let created = match &self.answer {
            Some((_, Outcome::Inode { inode, .. })) => *inode,
            _ => self.created,
        };
        Step { created, answer: None, ..self.clone() }
    }
}

/// All steps of a history in the order of calls, without unanswered observations, which are
/// possible in any order.
pub fn steps(history: &History) -> Vec<Step> {
    history
        .operations()
        .iter()
        .enumerate()
        .filter(|(_, operation)| operation.answer().is_some() || !operation.op().is_observation())
        .flat_map(|(index, operation)| steps_of(index, operation))
        .collect()
}

/// The parts that no step joins, each in the order of calls.
pub fn split(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let directories = Directories::of(&steps);
    let mut groups = Groups::default();
    let joined: Vec<usize> =
        steps.iter().map(|step| groups.join(&directories.touched(step))).collect();
    let mut parts: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    for (step, group) in steps.into_iter().zip(joined) {
        parts.entry(groups.root(group)).or_default().push(step);
    }
    parts.into_values().collect()
}

fn steps_of(index: usize, operation: &Operation) -> Vec<Step> {
    let step = |op: Op, outcome: Option<Outcome>| Step {
        index,
        owner: operation.owner(),
        call_ns: operation.call_ns(),
        op,
        created: InodeId::placeholder(index),
        answer: operation.answer().map(|answer| answer.at_ns()).zip(outcome),
    };
    match (operation.op(), operation.outcome()) {
        (Op::Stat { dir, name }, Some(outcome @ Outcome::Attributes { inode, kind, .. })) => {
            let lookup = Op::Open { dir: *dir, name: name.clone() };
            let found = Outcome::Inode { inode: *inode, kind: *kind };
            let mut steps = vec![step(lookup, Some(found))];
            if *kind == Kind::File {
                steps.push(step(Op::Fstat { inode: *inode }, Some(outcome.clone())));
            }
            steps
        }
        (op, outcome) => vec![step(op.clone(), outcome.cloned())],
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Object {
    Name(InodeId, Name),
    /// A directory with all of its names.
    Directory(InodeId),
    File(InodeId),
    Lock(InodeId),
}

/// The directories whose names are checked apart, since none is listed and they are never removed
/// or moved.
struct Directories {
    /// Neither removed nor moved.
    fixed: BTreeSet<InodeId>,
    listed: BTreeSet<InodeId>,
}

impl Directories {
    fn of(steps: &[Step]) -> Directories {
        let mut listed = BTreeSet::new();
        let mut changed = BTreeSet::new();
        for step in steps {
            match &step.op {
                Op::List { inode } => drop(listed.insert(*inode)),
                Op::Rmdir { dir, name } => drop(changed.insert((*dir, name))),
                Op::Rename { from_dir, from, to_dir, to } => {
                    changed.extend([(*from_dir, from), (*to_dir, to)])
                }
                _ => {}
            }
        }
        // A directory is found before the names in it are used.
        let mut fixed = BTreeSet::from([InodeId::ROOT]);
        for step in steps {
            if let (
                Op::Open { dir, name },
                Some((_, Outcome::Inode { inode, kind: Kind::Directory })),
            ) = (&step.op, &step.answer)
                && fixed.contains(dir)
                && !changed.contains(&(*dir, name))
            {
                fixed.insert(*inode);
            }
        }
        Directories { fixed, listed }
    }

    fn name(&self, dir: InodeId, name: &Name) -> Object {
        if self.fixed.contains(&dir) && !self.listed.contains(&dir) {
            Object::Name(dir, name.clone())
        } else {
            Object::Directory(dir)
        }
    }

    fn touched(&self, step: &Step) -> Vec<Object> {
        let mut touched = match &step.op {
            Op::Create { dir, name }
            | Op::Mkdir { dir, name }
            | Op::Open { dir, name }
            | Op::Unlink { dir, name }
            | Op::Rmdir { dir, name }
            | Op::Stat { dir, name } => vec![self.name(*dir, name)],
            Op::Rename { from_dir, from, to_dir, to } => {
                vec![self.name(*from_dir, from), self.name(*to_dir, to)]
            }
            Op::Link { inode, dir, name } => vec![Object::File(*inode), self.name(*dir, name)],
            Op::List { inode } => vec![Object::Directory(*inode)],
            Op::Fstat { inode }
            | Op::Read { inode, .. }
            | Op::Write { inode, .. }
            | Op::Append { inode, .. }
            | Op::Truncate { inode, .. } => vec![Object::File(*inode)],
            Op::Lock { inode, .. } | Op::Unlock { inode } => vec![Object::Lock(*inode)],
        };
        match &step.answer {
            Some((_, Outcome::Inode { inode, kind: Kind::File })) => {
                touched.push(Object::File(*inode))
            }
            Some((_, Outcome::Inode { inode, kind: Kind::Directory }))
                if !self.fixed.contains(inode) =>
            {
                touched.push(Object::Directory(*inode))
            }
            _ => {}
        }
        touched
    }
}

/// Disjoint sets of objects (union-find).
#[derive(Default)]
struct Groups {
    numbers: HashMap<Object, usize>,
    parents: Vec<usize>,
}

impl Groups {
    /// Joins objects, at least one; returns their group.
    fn join(&mut self, objects: &[Object]) -> usize {
        let numbers: Vec<usize> = objects
            .iter()
            .map(|object| {
                let fresh = self.parents.len();
                let number = *self.numbers.entry(object.clone()).or_insert(fresh);
                if number == fresh {
                    self.parents.push(fresh);
                }
                self.root(number)
            })
            .collect();
        for number in &numbers {
            let root = self.root(*number);
            self.parents[root] = numbers[0];
        }
        numbers[0]
    }

    fn root(&self, mut number: usize) -> usize {
        while self.parents[number] != number {
            number = self.parents[number];
        }
        number
    }
}
