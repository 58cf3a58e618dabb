//! Random concurrent executions of the model: each operation takes effect at one moment between
//! its call and its return.

use ebb_linearize::history::Name;
use ebb_linearize::{
    Answer, Data, History, InodeId, Kind, Op, Operation, Outcome, Owner, State, Token,
};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// The shape of an execution.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub threads: u32,
    pub operations: usize,
    pub names: u64,
    /// Of 100 operations, the number without an answer.
    pub unanswered: u64,
}

/// An operation under way.
struct Running {
    call_ns: u64,
    op: Op,
    /// After it took effect.
    outcome: Option<Outcome>,
}

/// What a thread has open.
#[derive(Default, Clone)]
struct Open {
    files: Vec<InodeId>,
    directories: Vec<InodeId>,
}

pub struct Execution {
    rng: Rng,
    size: Size,
    state: State,
    next_inode: u64,
    next_token: u64,
}

impl Execution {
    pub fn run(seed: u64, size: Size) -> History {
        let (rng, state) = (Rng(seed), State::default());
        let mut execution = Execution { rng, size, state, next_inode: 100, next_token: 1 };
        execution.operations()
    }

    fn operations(&mut self) -> History {
        let threads = self.size.threads as usize;
        let mut running: Vec<Option<Running>> = (0..threads).map(|_| None).collect();
        let mut open = vec![Open::default(); threads];
        let (mut done, mut time_ns, mut started) = (Vec::new(), 0, 0);
        while done.len() < self.size.operations {
            time_ns += self.rng.below(2);
            let thread = self.rng.below(threads as u64) as usize;
            let owner = Owner::new(thread as u32 % 2, thread as u32 / 2);
            match &mut running[thread] {
                None if started < self.size.operations => {
                    started += 1;
                    let op = self.op(&open[thread]);
                    running[thread] = Some(Running { call_ns: time_ns, op, outcome: None });
                }
                None => {}
                Some(running) if running.outcome.is_none() => {
                    let created = InodeId::new(self.next_inode);
                    self.next_inode += 1;
                    let reply = self.state.perform(owner, &running.op, created);
                    let outcomes: Vec<Outcome> = reply.outcomes().collect();
                    running.outcome = Some(self.rng.pick(&outcomes).clone());
                }
                Some(_) => {
                    let Running { call_ns, op, outcome } = running[thread].take().unwrap();
                    let is_answered = self.rng.below(100) >= self.size.unanswered;
                    let outcome = outcome.filter(|_| is_answered);
                    match &outcome {
                        Some(Outcome::Inode { inode, kind: Kind::File }) => {
                            open[thread].files.push(*inode)
                        }
                        Some(Outcome::Inode { inode, kind: Kind::Directory }) => {
                            open[thread].directories.push(*inode)
                        }
                        _ => {}
                    }
                    let answer = outcome.map(|outcome| Answer::new(time_ns, outcome));
                    done.push(Operation::new(owner, call_ns, op, answer));
                }
            }
        }
        History::new(done)
    }

    fn name(&mut self) -> Name {
        Name::from(format!("n{}", self.rng.below(self.size.names)))
    }

    fn dir(&mut self, open: &Open) -> InodeId {
        let is_root = open.directories.is_empty() || self.rng.below(2) == 0;
        if is_root { InodeId::ROOT } else { *self.rng.pick(&open.directories) }
    }

    fn op(&mut self, open: &Open) -> Op {
        let (dir, name) = (self.dir(open), self.name());
        if open.files.is_empty() || self.rng.below(2) == 0 {
            return match self.rng.below(12) {
                0..3 => Op::Create { dir, name },
                3 => Op::Mkdir { dir, name },
                4..6 => Op::Open { dir, name },
                6 => Op::Stat { dir, name },
                7 => Op::Unlink { dir, name },
                8 => Op::Rmdir { dir, name },
                9 => Op::List { inode: dir },
                _ => {
                    let (to_dir, to) = (self.dir(open), self.name());
                    Op::Rename { from_dir: dir, from: name, to_dir, to }
                }
            };
        }
        let inode = *self.rng.pick(&open.files);
        let (at, cells) = (self.rng.below(4) as u32, 1 + self.rng.below(4) as u32);
        let token = Token::new(self.next_token);
        self.next_token += 1;
        match self.rng.below(9) {
            0 => Op::Link { inode, dir, name },
            1 => Op::Fstat { inode },
            2..4 => Op::Read { inode, at, cells },
            4 => Op::Write { inode, at, cells, token },
            5 => Op::Append { inode, cells, token },
            6 => Op::Truncate { inode, cells: at },
            7 => Op::Lock { inode, exclusive: at < 2 },
            _ => Op::Unlock { inode },
        }
    }
}

/// Cells of one token.
pub fn data(token: u64, cells: usize) -> Data {
    Data::from_bytes(&token.to_le_bytes().repeat(cells)).unwrap()
}
