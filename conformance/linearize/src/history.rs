//! Histories: operations of several mounts with the times of their calls and returns.
//!
//! All times are of one monotonic clock. An operation names files by inode once they are open, as
//! a program does with a descriptor, and by directory and name otherwise. Lengths and offsets are
//! in cells of 8 bytes: each write repeats one token that no other write of the history uses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

/// Bytes of one cell.
pub const CELL_BYTES: usize = 8;

/// An inode, by the number that stat(2) returns.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[serde(transparent)]
pub struct InodeId(u64);

impl InodeId {
    /// The directory in which a history takes place.
    pub const ROOT: InodeId = InodeId(0);

    /// Set in ids that stand for an inode whose creation did not return its number.
    const PLACEHOLDER: u64 = 1 << 63;

    pub fn new(number: u64) -> InodeId {
        assert!(number & InodeId::PLACEHOLDER == 0, "inode number {number} is too large");
        InodeId(number)
    }

    /// Stands for the inode that operation `index` of a history creates.
    pub fn placeholder(index: usize) -> InodeId {
        InodeId(InodeId::PLACEHOLDER | index as u64)
    }

    pub(crate) fn is_placeholder(self) -> bool {
        self.0 & InodeId::PLACEHOLDER != 0
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            InodeId::ROOT => f.write_str("root"),
            InodeId(number) => write!(f, "#{number}"),
        }
    }
}

/// The content of a cell. Zero is a hole.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[serde(transparent)]
pub struct Token(u64);

impl Token {
    pub const HOLE: Token = Token(0);

    pub fn new(value: u64) -> Token {
        Token(value)
    }

    pub fn get(self) -> u64 {
        self.0
    }
}

/// A positive error number of Linux.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[serde(transparent)]
pub struct Errno(i32);

impl Errno {
    pub const ENOENT: Errno = Errno(2);
    pub const EIO: Errno = Errno(5);
    pub const EAGAIN: Errno = Errno(11);
    pub const EEXIST: Errno = Errno(17);
    pub const ENOTDIR: Errno = Errno(20);
    pub const EISDIR: Errno = Errno(21);
    pub const EINVAL: Errno = Errno(22);
    pub const ENOTEMPTY: Errno = Errno(39);
    pub const ENOTCONN: Errno = Errno(107);
    pub const ETIMEDOUT: Errno = Errno(110);
    pub const ESTALE: Errno = Errno(116);

    pub fn new(number: i32) -> Errno {
        Errno(number)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Errno::ENOENT => "ENOENT",
            Errno::EIO => "EIO",
            Errno::EAGAIN => "EAGAIN",
            Errno::EEXIST => "EEXIST",
            Errno::ENOTDIR => "ENOTDIR",
            Errno::EISDIR => "EISDIR",
            Errno::EINVAL => "EINVAL",
            Errno::ENOTEMPTY => "ENOTEMPTY",
            Errno::ENOTCONN => "ENOTCONN",
            Errno::ETIMEDOUT => "ETIMEDOUT",
            Errno::ESTALE => "ESTALE",
            Errno(number) => return write!(f, "errno {number}"),
        };
        f.write_str(name)
    }
}

/// A name in a directory.
pub type Name = Arc<str>;

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    File,
    Directory,
}

/// The cells of a range of a file, as runs of equal tokens without empty or adjacent equal runs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[serde(transparent)]
pub struct Data(Vec<(Token, u32)>);

impl Data {
    pub fn from_bytes(bytes: &[u8]) -> Option<Data> {
        let cells = bytes.chunks(CELL_BYTES);
        let mut data = Data::default();
        for cell in cells {
            data.push(Token(u64::from_le_bytes(cell.try_into().ok()?)), 1);
        }
        Some(data)
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|(_, cells)| cells).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn runs(&self) -> &[(Token, u32)] {
        &self.0
    }

    pub(crate) fn push(&mut self, token: Token, cells: u32) {
        match self.0.last_mut() {
            _ if cells == 0 => {}
            Some((last, count)) if *last == token => *count += cells,
            _ => self.0.push((token, cells)),
        }
    }

    /// The cells from `at` on, at most `cells` of them.
    pub(crate) fn slice(&self, at: u32, cells: u32) -> Data {
        let mut slice = Data::default();
        let (mut start, end) = (0, at.saturating_add(cells));
        for (token, count) in &self.0 {
            let stop = start + count;
            slice.push(*token, stop.min(end).saturating_sub(start.max(at)));
            start = stop;
        }
        slice
    }

    fn extend(&mut self, other: &Data) {
        other.0.iter().for_each(|(token, cells)| self.push(*token, *cells));
    }

    pub(crate) fn overwrite(&mut self, at: u32, cells: u32, token: Token) {
        let mut data = self.slice(0, at);
        data.push(Token::HOLE, at - data.len());
        data.push(token, cells);
        data.extend(&self.slice(at + cells, u32::MAX));
        *self = data;
    }

    pub(crate) fn resize(&mut self, cells: u32) {
        let mut data = self.slice(0, cells);
        data.push(Token::HOLE, cells - data.len());
        *self = data;
    }
}

/// What a program asks a mount for.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Creates a file exclusively and opens it.
    Create {
        dir: InodeId,
        name: Name,
    },
    Mkdir {
        dir: InodeId,
        name: Name,
    },
    /// Opens an existing file or directory.
    Open {
        dir: InodeId,
        name: Name,
    },
    Unlink {
        dir: InodeId,
        name: Name,
    },
    Rmdir {
        dir: InodeId,
        name: Name,
    },
    Rename {
        from_dir: InodeId,
        from: Name,
        to_dir: InodeId,
        to: Name,
    },
    /// A new name for an open file.
    Link {
        inode: InodeId,
        dir: InodeId,
        name: Name,
    },
    /// Attributes by name: a lookup and a [`Op::Fstat`], each at one moment of the call.
    Stat {
        dir: InodeId,
        name: Name,
    },
    Fstat {
        inode: InodeId,
    },
    /// All names of a directory in one reply.
    List {
        inode: InodeId,
    },
    Read {
        inode: InodeId,
        at: u32,
        cells: u32,
    },
    Write {
        inode: InodeId,
        at: u32,
        cells: u32,
        token: Token,
    },
    Append {
        inode: InodeId,
        cells: u32,
        token: Token,
    },
    Truncate {
        inode: InodeId,
        cells: u32,
    },
    /// Tries to lock the whole file.
    Lock {
        inode: InodeId,
        exclusive: bool,
    },
    Unlock {
        inode: InodeId,
    },
}

impl Op {
    /// Whether it changes nothing, whatever its outcome.
    pub fn is_observation(&self) -> bool {
        matches!(
            self,
            Op::Open { .. }
                | Op::Stat { .. }
                | Op::Fstat { .. }
                | Op::List { .. }
                | Op::Read { .. }
        )
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    Inode {
        inode: InodeId,
        kind: Kind,
    },
    /// Length and links are zero for directories.
    Attributes {
        inode: InodeId,
        kind: Kind,
        cells: u32,
        links: u32,
    },
    /// Sorted.
    Names(Vec<Name>),
    Data(Data),
    /// A transfer of only this many bytes, or one that ends within a cell. Never permitted.
    Short {
        bytes: u64,
    },
    Error(Errno),
}

/// The holder of a lock: a thread of a mount, with an open file description of its own.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    mount: u32,
    thread: u32,
}

impl Owner {
    pub fn new(mount: u32, thread: u32) -> Owner {
        Owner { mount, thread }
    }

    pub fn mount(self) -> u32 {
        self.mount
    }

    pub fn thread(self) -> u32 {
        self.thread
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    at_ns: u64,
    outcome: Outcome,
}

impl Answer {
    pub fn new(at_ns: u64, outcome: Outcome) -> Answer {
        Answer { at_ns, outcome }
    }

    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }

    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

/// One call. Without an answer it may take effect at any time after the call, or never.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    #[serde(flatten)]
    owner: Owner,
    call_ns: u64,
    op: Op,
    answer: Option<Answer>,
}

impl Operation {
    /// Panics if the answer precedes the call.
    pub fn new(owner: Owner, call_ns: u64, op: Op, answer: Option<Answer>) -> Operation {
        assert!(answer.as_ref().is_none_or(|answer| call_ns <= answer.at_ns));
        Operation { owner, call_ns, op, answer }
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    pub fn call_ns(&self) -> u64 {
        self.call_ns
    }

    pub fn op(&self) -> &Op {
        &self.op
    }

    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        self.answer.as_ref().map(Answer::outcome)
    }

    /// The same call, never answered.
    pub fn unanswered(&self) -> Operation {
        Operation { answer: None, ..self.clone() }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(f, "mount {} thread {} ", self.owner.mount, self.owner.thread)?;
        match &self.answer {
            Some(answer) => {
                write!(f, "{:>10.3} to {:>10.3} ms  ", ms(self.call_ns), ms(answer.at_ns))?;
                write!(f, "{} = {}", self.op, answer.outcome)
            }
            None => write!(f, "{:>10.3} ms, no answer   {}", ms(self.call_ns), self.op),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { dir, name } => write!(f, "create {dir}/{name}"),
            Op::Mkdir { dir, name } => write!(f, "mkdir {dir}/{name}"),
            Op::Open { dir, name } => write!(f, "open {dir}/{name}"),
            Op::Unlink { dir, name } => write!(f, "unlink {dir}/{name}"),
            Op::Rmdir { dir, name } => write!(f, "rmdir {dir}/{name}"),
            Op::Rename { from_dir, from, to_dir, to } => {
                write!(f, "rename {from_dir}/{from} to {to_dir}/{to}")
            }
            Op::Link { inode, dir, name } => write!(f, "link {inode} as {dir}/{name}"),
            Op::Stat { dir, name } => write!(f, "stat {dir}/{name}"),
            Op::Fstat { inode } => write!(f, "fstat {inode}"),
            Op::List { inode } => write!(f, "list {inode}"),
            Op::Read { inode, at, cells } => write!(f, "read {inode} {at}+{cells}"),
            Op::Write { inode, at, cells, token } => {
                write!(f, "write {inode} {at}+{cells} token {:x}", token.0)
            }
            Op::Append { inode, cells, token } => {
                write!(f, "append {inode} +{cells} token {:x}", token.0)
            }
            Op::Truncate { inode, cells } => write!(f, "truncate {inode} to {cells}"),
            Op::Lock { inode, exclusive: true } => write!(f, "lock {inode} exclusively"),
            Op::Lock { inode, exclusive: false } => write!(f, "lock {inode} shared"),
            Op::Unlock { inode } => write!(f, "unlock {inode}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Inode { inode, kind } => write!(f, "{inode} {kind:?}"),
            Outcome::Attributes { inode, kind, cells, links } => {
                write!(f, "{inode} {kind:?} of {cells} cells, {links} links")
            }
            Outcome::Names(names) => write!(f, "{names:?}"),
            Outcome::Data(data) => {
                let runs: Vec<String> = data
                    .0
                    .iter()
                    .map(|(token, cells)| format!("{:x} × {cells}", token.0))
                    .collect();
                write!(f, "[{}]", runs.join(", "))
            }
            Outcome::Short { bytes } => write!(f, "only {bytes} bytes"),
            Outcome::Error(errno) => errno.fmt(f),
        }
    }
}

/// Operations in the order of their calls, in a directory that is empty at first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History(Vec<Operation>);

impl History {
    pub fn new(mut operations: Vec<Operation>) -> History {
        operations.sort_by_key(Operation::call_ns);
        History(operations)
    }

    pub fn operations(&self) -> &[Operation] {
        &self.0
    }

    /// Reads one operation per line, up to the end or an empty line.
    pub fn read(lines: impl BufRead) -> io::Result<History> {
        let mut operations = Vec::new();
        for line in lines.lines() {
            let line = line?;
            if line.is_empty() {
                break;
            }
            operations.push(serde_json::from_str(&line)?);
        }
        Ok(History::new(operations))
    }

    /// Writes one operation per line.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for operation in &self.0 {
            serde_json::to_writer(&mut to, operation)?;
            to.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(runs: &[(u64, u32)]) -> Data {
        let mut data = Data::default();
        runs.iter().for_each(|(token, cells)| data.push(Token(*token), *cells));
        data
    }

    #[test]
    fn data_is_overwritten_extended_and_cut() {
        let mut file = Data::default();
        file.overwrite(2, 2, Token(7));
        assert_eq!(file, data(&[(0, 2), (7, 2)]));
        file.overwrite(1, 2, Token(8));
        assert_eq!(file, data(&[(0, 1), (8, 2), (7, 1)]));
        file.resize(2);
        file.resize(3);
        assert_eq!(file, data(&[(0, 1), (8, 1), (0, 1)]));
        assert_eq!(file.slice(1, 9), data(&[(8, 1), (0, 1)]));
        assert!(file.slice(3, 9).is_empty());
    }

    #[test]
    fn data_from_bytes_refuses_a_part_of_a_cell() {
        assert_eq!(Data::from_bytes(&[0; 16]), Some(data(&[(0, 2)])));
        assert_eq!(Data::from_bytes(&[0; 15]), None);
    }

    #[test]
    fn history_is_read_as_written() {
        let owner = Owner::new(1, 2);
        let (inode, name) = (InodeId::new(7), Name::from("f"));
        let history = History::new(vec![
            Operation::new(owner, 9, Op::Truncate { inode, cells: 3 }, None),
            Operation::new(
                owner,
                5,
                Op::Create { dir: InodeId::ROOT, name },
                Some(Answer::new(8, Outcome::Inode { inode, kind: Kind::File })),
            ),
            Operation::new(
                owner,
                10,
                Op::Read { inode, at: 0, cells: 1 },
                Some(Answer::new(11, Outcome::Data(data(&[(3, 1)])))),
            ),
        ]);
        let mut bytes = Vec::new();
        history.write(&mut bytes).unwrap();
        assert_eq!(History::read(bytes.as_slice()).unwrap(), history);
        assert_eq!(history.operations()[0].call_ns(), 5);
    }
}
