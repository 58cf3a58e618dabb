//! Is there an order of the requested operations that explains every reply?
//!
//! The search of Wing and Gong as Lowe refined it: it walks through the history and keeps every
//! state that the volume can be in, each with the operations that have taken effect in it and not
//! yet returned. An operation takes effect between its call and its return; one that never returns
//! does so at any time or never. Because the history is complete, a reply is compared when its
//! operation takes effect, not when it arrives.
//!
//! A power cut takes the volume back to any state since the last acknowledged force, or since the
//! last one that the commit interval guarantees. So each possibility carries the states since then.

use super::content::Content;
use super::history::{ClientId, Event, Identity, Op, OpId, Outcome, StreamId};
use super::times::{Clocks, Span};
use super::tree::{Asked, Mismatch, Tree};
use super::versions::{StoredObject, Versions};
use ebb_model::{Allocation, ClientMutation, FsError};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// Errors permitted for reasons that no model knows: the faults of the world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Permitted {
    /// Io: the node's disk fails, or a session ends while its outcome is in doubt.
    pub io: bool,
    /// TimedOut, AccessDenied, NoSpace: the bucket is away.
    pub bucket: bool,
    /// NoSpace: the node's disk is full at times.
    pub room: bool,
    /// Sessions end while their clients live, and files without a name that they held open are
    /// gone.
    pub expiry: bool,
    /// Every answer was forced before it was given.
    pub durable_answers: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Verdict {
    #[error("no order of operations explains event {event}: {why}")]
    Impossible { event: usize, why: String },
    #[error("no file was ever what the object {key} was at {at:?}")]
    Mixed { key: String, at: Duration },
    #[error("too many states explain the history up to event {event} to go on")]
    Undecided { event: usize },
}

/// Where an explanation may stand. Dozens are usual after a kill; thousands mean that the
/// scenario asks too much at one time.
const MAX_POSSIBILITIES: usize = 1000;

/// Bounds the whole search: a history that takes longer says little more.
const MAX_TRIED: usize = 200_000;

#[derive(Clone, PartialEq, Eq)]
struct Possibility {
    tree: Rc<Tree>,
    /// Operations that have taken effect and are pending.
    done: BTreeSet<OpId>,
    /// States since the last force.
    past: Vec<Rc<Tree>>,
}

struct Pending {
    client: ClientId,
    op: Op,
    called: Duration,
    /// The answer and its moment.
    outcome: Option<(Outcome, Duration)>,
    /// It is answered with ENOSPC: its bytes are there as a whole or not at all, unless the node
    /// dies before the answer.
    refused: bool,
    answered: bool,
}

impl Pending {
    fn answer(&self) -> Option<&Outcome> {
        self.outcome.as_ref().map(|(outcome, _)| outcome)
    }

    /// A full disk may have cut it short before its client lost the answer.
    fn may_be_cut_short(&self) -> bool {
        let writes = matches!(
            self.op,
            Op::Mutate(ClientMutation::Write { .. } | ClientMutation::Copy { .. })
        );
        writes && self.outcome.is_none() && !self.refused
    }

    /// Some of its bytes may be there.
    fn may_be_partial(&self) -> bool {
        !(self.refused && self.answered)
    }

    fn has_succeeded(&self) -> bool {
        self.answer().is_some_and(|outcome| !matches!(outcome, Outcome::Failed(_)))
    }
}

pub struct Checker<'a> {
    history: &'a [(Duration, Event)],
    permitted: Permitted,
    clocks: Clocks,
    outcomes: BTreeMap<OpId, (Outcome, Duration)>,
    pending: BTreeMap<OpId, Pending>,
    gone: BTreeSet<ClientId>,
    possible: Vec<Possibility>,
    event: usize,
    /// Operations that were answered before this moment survive the next power cut.
    durable: Duration,
    /// Operations tried so far.
    tried: usize,
    objects: &'a [StoredObject],
    versions: Versions,
    /// Directory streams of several pages that were read to their end.
    streams: BTreeSet<StreamId>,
}

impl<'a> Checker<'a> {
    pub fn new(
        initial: Tree,
        permitted: Permitted,
        history: &'a [(Duration, Event)],
    ) -> Checker<'a> {
        let mut versions = Versions::default();
        versions.add(Duration::ZERO, &Content::default(), &[]);
        let outcomes = history.iter().filter_map(|(at, event)| match event {
            Event::Return { id, outcome } => Some((*id, (outcome.clone(), *at))),
            _ => None,
        });
        Checker {
            history,
            permitted,
            clocks: Clocks::of(history),
            outcomes: outcomes.collect(),
            pending: BTreeMap::new(),
            gone: BTreeSet::new(),
            possible: vec![Possibility {
                tree: Rc::new(initial),
                done: BTreeSet::new(),
                past: Vec::new(),
            }],
            event: 0,
            durable: durable_at_next_cut(history),
            tried: 0,
            objects: &[],
            versions,
            streams: whole_streams(history),
        }
    }

    /// Compares the objects of files with the bytes that files had.
    pub fn with_objects(self, objects: &'a [StoredObject]) -> Checker<'a> {
        Checker { objects, ..self }
    }

    pub fn check(mut self) -> Result<(), Verdict> {
        self.add_versions();
        for (at, (now, event)) in self.history.iter().enumerate() {
            self.event = at;
            match event {
                Event::Call { id, client, op } => self.call(*id, *client, op, *now),
                Event::Return { id, outcome } => self.returned(*id, outcome)?,
                Event::Gone { client } => {
                    self.gone.insert(*client);
                    for possibility in &mut self.possible {
                        Rc::make_mut(&mut possibility.tree).client_gone(*client);
                    }
                }
                Event::Settled => self.settle()?,
                Event::NodeDied { .. } => self.node_died(),
                Event::PowerCut { .. } => {
                    self.durable = durable_at_next_cut(&self.history[at + 1..]);
                    self.power_cut()?
                }
                Event::Seen { tree, inos } => {
                    let mut why = Vec::new();
                    let mut explained = Vec::new();
                    for possibility in self.reachable(None)? {
                        let span = Span { called: *now, answered: *now, clocks: &self.clocks };
                        match possibility.tree.seen(tree, *inos == Identity::Kept, &span) {
                            Ok(tree) => {
                                let past = if *inos == Identity::Kept {
                                    possibility.past
                                } else {
                                    Vec::new()
                                };
                                explained.push(Possibility {
                                    tree: Rc::new(tree),
                                    done: possibility.done,
                                    past,
                                });
                            }
                            Err(mismatch) => why.push(mismatch),
                        }
                    }
                    self.keep(explained, why)?;
                    self.add_versions();
                }
                Event::Note(_) | Event::Served { .. } => {}
            }
        }
        match self.objects.iter().find(|object| !self.versions.explain(object)) {
            None => Ok(()),
            Some(StoredObject { at, key, .. }) => Err(Verdict::Mixed { key: key.clone(), at: *at }),
        }
    }

    /// Records the bytes of all files, after a change that is not the effect of an operation.
    fn add_versions(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let trees = self
            .possible
            .iter()
            .flat_map(|possibility| possibility.past.iter().chain([&possibility.tree]));
        for (content, others) in trees.flat_map(|tree| tree.all_bytes()) {
            self.versions.add(Duration::ZERO, content, others);
        }
    }

    fn call(&mut self, id: OpId, client: ClientId, op: &Op, called: Duration) {
        let outcome = self.outcomes.get(&id);
        let no_space = Outcome::Failed(FsError::NoSpace);
        let refused = outcome.is_some_and(|(outcome, _)| *outcome == no_space);
        let outcome = outcome.filter(|(outcome, _)| !self.is_environment(op, outcome)).cloned();
        self.pending.insert(
            id,
            Pending { client, op: op.clone(), called, outcome, refused, answered: false },
        );
        for possibility in std::mem::take(&mut self.possible) {
            let possibility = self.answer_questions(possibility);
            self.possible.push(possibility);
        }
    }

    fn returned(&mut self, id: OpId, outcome: &Outcome) -> Result<(), Verdict> {
        let pending = &self.pending[&id];
        if self.is_environment(&pending.op, outcome) {
            // A change may have been executed, or be found so after a restart.
            if let Op::Mutate(mutation) = &pending.op {
                let mutation = mutation.clone();
                match outcome {
                    Outcome::Failed(FsError::NoSpace) => {
                        self.pending.get_mut(&id).expect("is pending").answered = true;
                    }
                    _ => self.smear(&mutation),
                }
            } else {
                self.pending.remove(&id);
            }
            return Ok(());
        }
        let removed = match (&pending.op, outcome) {
            (Op::Mutate(mutation), Outcome::Failed(FsError::Stale)) => Some(mutation.clone()),
            _ => None,
        };
        let (mut explained, mut why) = (Vec::new(), Vec::new());
        for possibility in self.reachable(Some(id))? {
            if possibility.done.contains(&id) {
                explained.push(possibility);
            } else if let Err(mismatch) = self.take(&possibility, id) {
                why.push(mismatch);
            }
        }
        self.pending.remove(&id);
        for possibility in &mut explained {
            possibility.done.remove(&id);
        }
        self.keep(explained, why)?;
        if let Some(mutation) = removed {
            self.smear_removed(&mutation);
        }
        Ok(())
    }

    /// An operation without a reply has either taken effect already or never will.
    fn settle(&mut self) -> Result<(), Verdict> {
        let all = self.reachable(None)?;
        let lost: Vec<OpId> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.outcome.is_none())
            .map(|(id, _)| *id)
            .collect();
        let lost_operations: Vec<Op> = lost
            .iter()
            .filter_map(|id| self.pending.remove(id))
            .filter(Pending::may_be_partial)
            .map(|pending| pending.op)
            .collect();
        let settled = all.into_iter().map(|mut possibility| {
            possibility.done.retain(|id| !lost.contains(id));
            possibility
        });
        let settled = settled.collect();
        self.keep(settled, Vec::new())?;
        for operation in lost_operations {
            if let Op::Mutate(mutation) = operation {
                self.smear(&mutation);
            }
        }
        Ok(())
    }

    /// Bytes of a write that failed or was interrupted may be there or not.
    fn smear(&mut self, mutation: &ClientMutation) {
        self.possible.iter_mut().for_each(|possibility| smear(&mut possibility.tree, mutation));
        self.add_versions();
    }

    /// A file that no client had open was removed during a write to it: the written bytes are there
    /// if a power cut reverts the removal.
    fn smear_removed(&mut self, mutation: &ClientMutation) {
        let past = self.possible.iter_mut().flat_map(|possibility| &mut possibility.past);
        past.for_each(|tree| smear(tree, mutation));
    }

    /// Bytes of a write that was under way may be there before it is carried out, which it is when
    /// its client asks again (S-4e).
    fn node_died(&mut self) {
        let under_way = self.pending.values().filter(|pending| pending.may_be_partial());
        let under_way: Vec<Op> = under_way.map(|pending| pending.op.clone()).collect();
        for op in under_way {
            if let Op::Mutate(mutation) = op {
                self.smear(&mutation);
            }
        }
    }

    fn power_cut(&mut self) -> Result<(), Verdict> {
        let mut recovered = Vec::new();
        for possibility in self.reachable(None)? {
            let mut states = possibility.past;
            states.push(possibility.tree);
            for state in &states {
                let mut tree = Tree::clone(state);
                tree.smear(&states);
                recovered.push(Possibility {
                    tree: Rc::new(tree),
                    done: BTreeSet::new(),
                    past: Vec::new(),
                });
            }
        }
        let interrupted = std::mem::take(&mut self.pending);
        self.keep(recovered, Vec::new())?;
        self.add_versions();
        for pending in interrupted.into_values() {
            if pending.may_be_partial()
                && let Op::Mutate(mutation) = pending.op
            {
                self.smear(&mutation);
            }
        }
        Ok(())
    }

    /// Every possibility that operations under way can lead to. With `wanted` those behind
    /// its taking effect are left out: they can wait.
    fn reachable(&mut self, wanted: Option<OpId>) -> Result<Vec<Possibility>, Verdict> {
        let mut found: Vec<Possibility> = Vec::new();
        let mut todo = std::mem::take(&mut self.possible);
        while let Some(possibility) = todo.pop() {
            if let Some(known) = found
                .iter_mut()
                .find(|known| known.tree == possibility.tree && known.done == possibility.done)
            {
                let new: Vec<Rc<Tree>> = possibility
                    .past
                    .iter()
                    .filter(|state| !known.past.contains(state))
                    .cloned()
                    .collect();
                if new.is_empty() {
                    continue;
                }
                known.past.extend(new);
            } else {
                found.push(possibility.clone());
            }
            self.tried += self.pending.len();
            if found.len() + todo.len() > MAX_POSSIBILITIES || self.tried > MAX_TRIED {
                return Err(Verdict::Undecided { event: self.event });
            }
            if wanted.is_some_and(|wanted| possibility.done.contains(&wanted)) {
                continue;
            }
            for (id, pending) in
                self.pending.iter().filter(|(id, _)| !possibility.done.contains(id))
            {
                if self.permitted.room
                    && pending.may_be_cut_short()
                    && let Ok(next) = self.take_as(&possibility, *id, true)
                {
                    todo.push(self.answer_questions(next));
                }
                let Ok(next) = self.take(&possibility, *id) else { continue };
                if let Op::Mutate(mutation) = &pending.op
                    && !self.objects.is_empty()
                    && next.tree != possibility.tree
                    && let Some((content, others)) =
                        mutation.inode().and_then(|ino| next.tree.bytes_of(ino))
                {
                    self.versions.add(pending.called, content, others);
                }
                todo.push(self.answer_questions(next));
            }
        }
        Ok(found)
    }

    /// Lets one operation take effect.
    fn take(&self, possibility: &Possibility, id: OpId) -> Result<Possibility, Mismatch> {
        self.take_as(possibility, id, false)
    }

    /// As [`Checker::take`], of an operation that was cut short or not.
    fn take_as(
        &self,
        possibility: &Possibility,
        id: OpId,
        cut_short: bool,
    ) -> Result<Possibility, Mismatch> {
        let pending = &self.pending[&id];
        let lost_hold = self.permitted.expiry
            && pending.answer() == Some(&Outcome::Failed(FsError::Stale))
            && possibility.tree.is_about_nameless(&pending.op);
        let mut tree = match lost_hold {
            true => Tree::clone(&possibility.tree),
            false => {
                let answered = pending.outcome.as_ref().map_or(Duration::MAX, |(_, at)| *at);
                let span = Span { called: pending.called, answered, clocks: &self.clocks };
                let (client, outcome) = (pending.client, pending.answer());
                let stream = match pending.op {
                    Op::ReadDir { stream, .. } => Some(stream),
                    _ => None,
                };
                let stream = stream.filter(|stream| self.streams.contains(stream));
                let may_be_short = self.permitted.room && !pending.refused;
                let asked = Asked { client, id, outcome, span, stream, may_be_short, cut_short };
                possibility.tree.step(&asked, &pending.op)?
            }
        };
        if self.gone.contains(&pending.client) {
            tree.client_gone(pending.client);
        }
        let mut past = possibility.past.clone();
        let succeeded = pending.has_succeeded();
        if succeeded {
            possibility.tree.check_quota(&pending.op, &tree)?;
        }
        match &pending.op {
            Op::Fsync { .. } | Op::SyncFs => {
                if succeeded {
                    past.clear();
                } else {
                    tree = Tree::clone(&possibility.tree);
                }
            }
            Op::Mutate(_) if tree != *possibility.tree => {
                let answered = pending.outcome.as_ref().map(|(_, at)| *at);
                if succeeded && answered.is_some_and(|at| at < self.durable) {
                    past.clear();
                    tree.forced_all();
                } else if self.permitted.durable_answers && succeeded {
                    past.clear();
                } else if !past.contains(&possibility.tree) {
                    past.push(possibility.tree.clone());
                }
            }
            _ => {}
        }
        let mut done = possibility.done.clone();
        done.insert(id);
        Ok(Possibility { tree: Rc::new(tree), done, past })
    }

    /// A question that this state answers rightly, and from which nothing is learnt, is
    /// settled: there is nothing to be gained by asking later. An id or a time that is
    /// learnt may be one of later.
    fn answer_questions(&self, possibility: Possibility) -> Possibility {
        let mut possibility = possibility;
        for (id, pending) in &self.pending {
            let question = !matches!(
                pending.op,
                Op::Mutate(_) | Op::Fsync { .. } | Op::SyncFs | Op::Open { .. } | Op::Close { .. }
            );
            if question
                && pending.outcome.is_some()
                && !possibility.done.contains(id)
                && let Ok(next) = self.take(&possibility, *id)
                && next.tree == possibility.tree
            {
                possibility = next;
            }
        }
        possibility
    }

    fn keep(&mut self, explained: Vec<Possibility>, why: Vec<Mismatch>) -> Result<(), Verdict> {
        let mut kept: Vec<Possibility> = Vec::new();
        for possibility in explained {
            match kept
                .iter_mut()
                .find(|known| known.tree == possibility.tree && known.done == possibility.done)
            {
                Some(known) => {
                    for state in possibility.past {
                        if !known.past.contains(&state) {
                            known.past.push(state);
                        }
                    }
                }
                None => kept.push(possibility),
            }
        }
        if kept.is_empty() {
            let mut why = why;
            why.dedup();
            why.truncate(MAX_REASONS);
            return Err(Verdict::Impossible { event: self.event, why: why.join("; or ") });
        }
        self.possible = kept;
        Ok(())
    }

    /// The outcome says something about the world, not about the volume.
    fn is_environment(&self, op: &Op, outcome: &Outcome) -> bool {
        let Outcome::Failed(error) = outcome else { return false };
        match error {
            FsError::Io => self.permitted.io,
            FsError::TimedOut => self.permitted.bucket,
            FsError::NoSpace => self.permitted.bucket || self.permitted.room,
            // The losses of a session that ended, reported once.
            FsError::Stale => self.permitted.expiry && matches!(op, Op::Fsync { .. } | Op::SyncFs),
            FsError::AccessDenied => self.permitted.bucket && !matches!(op, Op::SyncFs),
            _ => false,
        }
    }
}

/// The directory streams of more than one page that were read to their end.
fn whole_streams(history: &[(Duration, Event)]) -> BTreeSet<StreamId> {
    let mut pages: BTreeMap<OpId, StreamId> = BTreeMap::new();
    let mut counts: BTreeMap<StreamId, usize> = BTreeMap::new();
    let mut whole = BTreeSet::new();
    for (_, event) in history {
        match event {
            Event::Call { id, op: Op::ReadDir { stream, .. }, .. } => {
                pages.insert(*id, *stream);
            }
            Event::Return { id, outcome: Outcome::Entries { end, .. } } => {
                let stream = pages[id];
                let count = counts.entry(stream).or_default();
                *count += 1;
                if *end && *count > 1 {
                    whole.insert(stream);
                }
            }
            _ => {}
        }
    }
    whole
}

/// Operations that were answered before survive the next power cut. Without one all survive.
fn durable_at_next_cut(history: &[(Duration, Event)]) -> Duration {
    let next = history.iter().find_map(|(_, event)| match event {
        Event::PowerCut { durable } => Some(*durable),
        _ => None,
    });
    next.unwrap_or(Duration::MAX)
}

/// Reasons that a report gives, of possibly thousands that are much alike.
const MAX_REASONS: usize = 8;

fn smear(tree: &mut Rc<Tree>, mutation: &ClientMutation) {
    let tree = Rc::make_mut(tree);
    match mutation {
        ClientMutation::Write { ino, offset, data, .. } => {
            tree.smear_write(*ino, Some(*offset), data)
        }
        ClientMutation::Append { ino, data, .. } => tree.smear_write(*ino, None, data),
        ClientMutation::Copy { from, from_offset, ino, offset, len_bytes, .. } => {
            tree.smear_copy((*from, *from_offset), (*ino, *offset), *len_bytes);
        }
        ClientMutation::Fallocate { ino, offset, len_bytes, what: Allocation::Zero, .. } => {
            tree.smear_zeros(*ino, *offset, *len_bytes)
        }
        _ => {}
    }
}
