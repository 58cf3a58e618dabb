//! The search for an order of the steps of one part: Wing and Gong 1993, with the cache of visited
//! configurations of Lowe 2017.

use super::parts::Step;
use crate::model::State;
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Order,
    /// No order passes the return of this step, by its position in the part. It is the first
    /// return that no order passes.
    Stuck(usize),
    OutOfBudget,
}

#[derive(Clone, Copy)]
enum Event {
    Call(usize),
    Return(usize),
}

/// A step that was put in order, with the state before it.
struct Frame {
    step: usize,
    before: State,
    /// The step changes nothing wherever it is put, so no other one must be tried in its place.
    is_forced: bool,
}

/// Searches an order that the model permits; tries at most `*budget` steps, and reduces it.
pub fn search(steps: &[Step], budget: &mut u64) -> Found {
    let mut timeline = Timeline::new(steps);
    let mut taken = Bits::new(steps.len());
    let mut visited = HashSet::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut state = State::default();
    let mut unordered = steps.iter().filter(|step| step.answer.is_some()).count();
    let mut cursor = timeline.first();
    let mut furthest = 0;
    while unordered > 0 {
        // Each answered step that is not in order has its return ahead, so there is an event.
        let is_dead_end = match timeline.events[cursor] {
            Event::Return(_) => {
                furthest = furthest.max(cursor);
                true
            }
            Event::Call(index) => {
                if *budget == 0 {
                    return Found::OutOfBudget;
                }
                *budget -= 1;
                let step = &steps[index];
                let next = match &step.answer {
                    Some((_, outcome)) => state.accept(step.owner, &step.op, outcome, step.created),
                    None => state.assume(step.owner, &step.op, step.created),
                };
                match next {
                    None => {
                        cursor = timeline.after(cursor);
                        false
                    }
                    Some(next) => {
                        // A lookup can tell the number of an inode, which changes the state.
                        let is_forced = step.changes_nothing() && next == state;
                        taken.flip(index);
                        if visited.insert(fingerprint(&taken, &next)) {
                            unordered -= usize::from(step.answer.is_some());
                            frames.push(Frame { step: index, before: state, is_forced });
                            state = next;
                            timeline.remove(index);
                            cursor = timeline.first();
                            false
                        } else {
                            taken.flip(index);
                            cursor = timeline.after(cursor);
                            is_forced
                        }
                    }
                }
            }
        };
        if !is_dead_end {
            continue;
        }
        loop {
            let Some(frame) = frames.pop() else {
                let (Event::Call(step) | Event::Return(step)) = timeline.events[furthest];
                return Found::Stuck(step);
            };
            unordered += usize::from(steps[frame.step].answer.is_some());
            state = frame.before;
            taken.flip(frame.step);
            timeline.restore(frame.step);
            if !frame.is_forced {
                cursor = timeline.after(timeline.calls[frame.step]);
                break;
            }
        }
    }
    Found::Order
}

/// The calls and returns of the steps that are not in order yet: a doubly linked list, in which a
/// removed step can be put back as long as the removals after it were undone.
struct Timeline {
    events: Vec<Event>,
    /// Positions of the neighbours, shifted by one: 0 is before the first event.
    next: Vec<usize>,
    previous: Vec<usize>,
    calls: Vec<usize>,
    returns: Vec<Option<usize>>,
}

impl Timeline {
    fn new(steps: &[Step]) -> Timeline {
        // A call and a return at the same time are concurrent: the call comes first.
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            times.push((step.call_ns, false, index));
            times.extend(step.answer.iter().map(|(at_ns, _)| (*at_ns, true, index)));
        }
        times.sort();
        let len = times.len();
        let (mut calls, mut returns) = (vec![0; steps.len()], vec![None; steps.len()]);
        let mut events = Vec::with_capacity(len);
        for (position, (_, is_return, index)) in times.into_iter().enumerate() {
            if is_return {
                returns[index] = Some(position);
                events.push(Event::Return(index));
            } else {
                calls[index] = position;
                events.push(Event::Call(index));
            }
        }
        let next = (1..=len + 1).collect();
        let previous = (0..=len + 1).map(|position| position.saturating_sub(1)).collect();
        Timeline { events, next, previous, calls, returns }
    }

    fn first(&self) -> usize {
        self.next[0] - 1
    }

    fn after(&self, position: usize) -> usize {
        self.next[position + 1] - 1
    }

    fn remove(&mut self, step: usize) {
        for position in [Some(self.calls[step]), self.returns[step]].into_iter().flatten() {
            let (previous, next) = (self.previous[position + 1], self.next[position + 1]);
            self.next[previous] = next;
            self.previous[next] = previous;
        }
    }

    fn restore(&mut self, step: usize) {
        for position in [self.returns[step], Some(self.calls[step])].into_iter().flatten() {
            let (previous, next) = (self.previous[position + 1], self.next[position + 1]);
            self.next[previous] = position + 1;
            self.previous[next] = position + 1;
        }
    }
}

/// A set of steps.
#[derive(Hash)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    fn flip(&mut self, index: usize) {
        self.0[index / 64] ^= 1 << (index % 64);
    }
}

/// Stands for a configuration. With 128 bits, two of a million configurations collide with
/// probability 2^-89.
fn fingerprint(taken: &Bits, state: &State) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        taken.hash(&mut hasher);
        state.hash(&mut hasher);
        hasher.finish()
    };
    u128::from(half(0)) << 64 | u128::from(half(1))
}
