//! Searches for an order of a history that the model permits and that keeps the order of calls
//! that do not overlap (Herlihy and Wing 1990). Parts that no operation joins are checked apart.

mod parts;
mod search;

use crate::history::{History, Kind, Op, Outcome};
use parts::Step;
use search::{Found, search};
use std::collections::BTreeSet;
use std::fmt;

/// The work of one check: how many times it tries to put an operation in order.
#[derive(Clone, Copy, Debug)]
pub struct Budget(u64);

impl Budget {
    pub fn new(tries: u64) -> Budget {
        Budget(tries)
    }
}

impl Default for Budget {
    /// Some seconds of work.
    fn default() -> Budget {
        Budget(4_000_000)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Linearizable,
    Violation(Violation),
    /// Out of budget.
    Undecided,
}

/// The shortest prefix of a history that has no order, up to the return of one operation.
/// Operations are indices into the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    returned: usize,
    prefix: Vec<usize>,
    core: Vec<usize>,
}

impl Violation {
    /// The operation whose return ends the prefix.
    pub fn returned(&self) -> usize {
        self.returned
    }

    /// The operations called before that return, as far as they are in the same part.
    pub fn prefix(&self) -> &[usize] {
        &self.prefix
    }

    /// The operations that cannot be ordered, even if all others of the prefix happened at any
    /// time or never. None can be left out, except for lookups of directories.
    pub fn core(&self) -> &[usize] {
        &self.core
    }

    /// The end of the prefix, with marks at the core.
    pub fn describe<'a>(&'a self, history: &'a History) -> impl fmt::Display + 'a {
        Description { violation: self, history }
    }
}

struct Description<'a> {
    violation: &'a Violation,
    history: &'a History,
}

/// The operations shown beside the core.
const CONTEXT: usize = 16;

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { prefix, core, .. } = self.violation;
        writeln!(f, "the operations marked with ! cannot be ordered:")?;
        let context = prefix.len().saturating_sub(CONTEXT);
        for (position, index) in prefix.iter().enumerate() {
            let is_core = core.contains(index);
            if is_core || position >= context {
                let mark = if is_core { '!' } else { ' ' };
                writeln!(f, "{mark} {}", self.history.operations()[*index])?;
            }
        }
        Ok(())
    }
}

/// Checks a history. A violation in one part is found though another part is undecided.
pub fn check(history: &History, budget: Budget) -> Verdict {
    let mut verdict = Verdict::Linearizable;
    for part in parts::split(parts::steps(history)) {
        let mut left = budget.0;
        match search(&part, &mut left) {
            Found::Order => {}
            Found::OutOfBudget => verdict = Verdict::Undecided,
            Found::Stuck(step) => return Verdict::Violation(violation(&part, step, budget)),
        }
    }
    verdict
}

fn violation(part: &[Step], stuck: usize, budget: Budget) -> Violation {
    let returned = &part[stuck];
    let end_ns = returned.answer.as_ref().map_or(u64::MAX, |(at_ns, _)| *at_ns);
    let prefix: Vec<Step> = part.iter().filter(|step| step.call_ns <= end_ns).cloned().collect();
    let indices = |steps: &[Step]| -> Vec<usize> {
        steps.iter().map(|step| step.index).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let mut violation =
        Violation { returned: returned.index, prefix: indices(&prefix), core: Vec::new() };
    let mut core = core(prefix, budget);
    core.retain(|step| step.answer.is_some());
    violation.core = indices(&core);
    violation
}

/// Weakens a part without an order, step by step, as long as it has none: leaves out a step that
/// changed nothing, and lets any other one happen at any time after its call or never. Of what
/// then falls into parts only the part without an order is kept.
fn core(mut steps: Vec<Step>, budget: Budget) -> Vec<Step> {
    let mut left = budget.0;
    // Listings first: without them most names are parts of their own.
    let is_listing = |step: &Step| matches!(step.op, Op::List { .. });
    let mut order: Vec<Step> = steps.iter().rev().cloned().collect();
    order.sort_by_key(|step| (!is_listing(step), !step.changes_nothing()));
    for candidate in order {
        let Some(position) = steps.iter().position(|step| *step == candidate) else { continue };
        let step = &steps[position];
        if is_needed(step, &steps) {
            continue;
        }
        let mut weaker = steps.clone();
        if step.changes_nothing() {
            weaker.remove(position);
        } else {
            weaker[position] = step.weakened();
        }
        let stuck = parts::split(weaker).into_iter().find(|part| {
            let mut tries = left.min(CORE_TRIES);
            left -= tries;
            let found = search(part, &mut tries);
            left += tries;
            matches!(found, Found::Stuck(_))
        });
        if let Some(part) = stuck {
            steps = part;
        }
    }
    steps
}

/// Budget to show that one operation can be left out.
const CORE_TRIES: u64 = 50_000;

/// Only lookups tell the numbers of directories, and of files whose creation was not answered.
fn is_needed(step: &Step, steps: &[Step]) -> bool {
    match (&step.op, &step.answer) {
        (_, None) => true,
        (Op::Open { .. }, Some((_, Outcome::Inode { kind: Kind::Directory, .. }))) => true,
        (Op::Open { .. }, Some((_, Outcome::Inode { .. }))) => {
            steps.iter().any(|step| step.answer.is_none() && matches!(step.op, Op::Create { .. }))
        }
        _ => false,
    }
}
