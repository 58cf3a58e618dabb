//! A daemon's side of the connection to its supervisor: inherited state, and reported events.

use crate::failure::Failure;
use ebb_cli::places::Process;
use ebb_client::HandoverState;
use ebb_fuse::{Consistency, LeftMount, Negotiated, Session};
use ebb_model::Ino;
use ebb_os::OsSharedMemory;
use ebb_ports::SharedMemory;
use std::cell::{Cell, RefCell};
use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::rc::Rc;

/// Descriptors, in the environment of the daemon: the way to the supervisor, the memory that
/// outlives the daemon, and the connection that one before has left.
pub const WORDS: &str = "EBB_SUPERVISOR_FD";
pub const ESTATE: &str = "EBB_ESTATE_FD";
pub const DEVICE: &str = "EBB_DEVICE_FD";

/// The process id of the supervisor.
pub const SUPERVISOR: &str = "EBB_SUPERVISOR_PID";

/// Events that a daemon reports to its supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DaemonEvent {
    /// It handles signals itself.
    Hears,
    /// The mount can be used.
    Ready,
    /// The daemon serves the mount; the connection comes with this event.
    Serves,
    /// The mount needs no daemon after this one.
    Ends,
}

impl DaemonEvent {
    fn byte(self) -> u8 {
        match self {
            DaemonEvent::Hears => b'h',
            DaemonEvent::Ready => b'r',
            DaemonEvent::Serves => b's',
            DaemonEvent::Ends => b'e',
        }
    }

    pub fn of(byte: u8) -> Option<DaemonEvent> {
        [DaemonEvent::Hears, DaemonEvent::Ready, DaemonEvent::Serves, DaemonEvent::Ends]
            .into_iter()
            .find(|word| word.byte() == byte)
    }
}

pub struct SupervisorLink {
    words: Rc<UnixStream>,
    handover: Rc<HandoverState>,
    device: RefCell<Option<OwnedFd>>,
    supervisor: Option<Process>,
    stage: Rc<Cell<Stage>>,
}

/// The meaning of this daemon's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is no mount yet, or this daemon serves it, or it needs no daemon any more.
    Usual,
    /// The daemon must take over: if it ends by itself the next one tries.
    TakesOver,
}

impl SupervisorLink {
    /// If this process was started by a supervisor.
    pub fn inherited() -> Result<Option<SupervisorLink>, Failure> {
        let Some(words) = inherited(WORDS) else { return Ok(None) };
        let words = Rc::new(UnixStream::from(words));
        let failed =
            |error: &dyn std::fmt::Display| Failure::of("what the daemon before has left", error);
        let handover = inherited(ESTATE).ok_or_else(|| failed(&"nothing"))?;
        let memory = OsSharedMemory::of(handover.as_fd()).map_err(|error| failed(&error))?;
        let handover = HandoverState::take(Rc::new(memory)).map_err(|error| failed(&error))?;
        let pid = env::var(SUPERVISOR)
            .ok()
            .and_then(|pid| pid.parse().ok())
            .filter(|pid| *pid == parent_id());
        let supervisor = pid.and_then(Process::of);
        let device = inherited(DEVICE);
        let stage =
            Rc::new(Cell::new(if device.is_some() { Stage::TakesOver } else { Stage::Usual }));
        Ok(Some(SupervisorLink {
            words,
            handover: Rc::new(handover),
            device: RefCell::new(device),
            supervisor,
            stage,
        }))
    }

    /// A daemon before this one has died.
    pub fn is_resumed(&self) -> bool {
        self.device.borrow().is_some()
    }

    pub fn handover(&self) -> &Rc<HandoverState> {
        &self.handover
    }

    /// This daemon must take over and has not yet: if it ends by itself the next one tries.
    pub fn takes_over(&self) -> bool {
        self.stage.get() == Stage::TakesOver
    }

    pub fn supervisor(&self) -> Option<Process> {
        self.supervisor
    }

    pub fn hears(&self) {
        self.say(DaemonEvent::Hears, None);
    }

    pub fn ready(&self) {
        self.say(DaemonEvent::Ready, None);
    }

    /// An address to listen at, with the port that other mounts know.
    pub fn address(&self, given: &str) -> String {
        match (given.rsplit_once(':'), self.handover.note(PORT)) {
            (Some((host, _)), port) if port != 0 => format!("{host}:{port}"),
            _ => given.to_owned(),
        }
    }

    pub fn listens(&self, port: u16) {
        self.handover.set_note(PORT, port.into());
    }

    /// The mount is one of a node elsewhere that serves the storage.
    pub fn has_joined(&self) -> bool {
        self.handover.note(JOINED) != 0
    }

    pub fn joins(&self) {
        self.handover.set_note(JOINED, 1);
    }

    /// The directory that is mounted, wherever it is by now.
    pub fn root(&self) -> Ino {
        Ino(self.handover.note(ROOT))
    }

    /// The mount that the daemon before has left, once.
    pub fn left(&self, path: PathBuf) -> Option<(LeftMount, Consistency)> {
        let device = self.device.take()?;
        let note = |at| self.handover.note(at);
        let negotiated = Negotiated { minor: note(MINOR) as u32, flags: note(FLAGS) };
        let consistency =
            if note(CLOSE_TO_OPEN) == 0 { Consistency::Strong } else { Consistency::CloseToOpen };
        Some((LeftMount::new(device, path, note(PLACE), negotiated), consistency))
    }

    /// Stores the state of the mount that a successor needs. Returns the connection for
    /// [`SupervisorLink::serves`], if the kernel supports a successor.
    pub fn prepare(
        &self,
        session: &mut Session,
        root: Ino,
        consistency: Consistency,
    ) -> Result<Option<OwnedFd>, Failure> {
        let Some(device) = session.device() else {
            tracing::info!("nothing that is lost is sent again: with the daemon the mount dies");
            return Ok(None);
        };
        let device = device
            .try_clone_to_owned()
            .map_err(|error| Failure::of("the connection to the kernel", error))?;
        let agreed = session.negotiated();
        let close_to_open = u64::from(consistency == Consistency::CloseToOpen);
        for (at, word) in [
            (MINOR, u64::from(agreed.minor)),
            (FLAGS, agreed.flags),
            (PLACE, session.place()),
            (CLOSE_TO_OPEN, close_to_open),
            (ROOT, root.0),
        ] {
            self.handover.set_note(at, word);
        }
        let (words, stage) = (self.words.clone(), self.stage.clone());
        session.at_end(move || {
            stage.set(Stage::Usual);
            say(&words, DaemonEvent::Ends, None);
        });
        Ok(Some(device))
    }

    /// After this call another daemon takes over if this one dies.
    pub fn serves(&self, device: OwnedFd) {
        self.stage.set(Stage::Usual);
        self.say(DaemonEvent::Serves, Some(device.as_fd()));
    }

    /// Nobody can take over: accesses to the mount fail from here on.
    pub fn gives_up(&self) {
        self.stage.set(Stage::Usual);
        self.say(DaemonEvent::Ends, None);
    }

    fn say(&self, word: DaemonEvent, device: Option<BorrowedFd<'_>>) {
        say(&self.words, word, device);
    }
}

/// Which mount it is that the daemons with this memory serve: see [`Session::place`].
pub fn place(words: &dyn SharedMemory) -> u64 {
    HandoverState::note_in(words, PLACE)
}

fn say(words: &UnixStream, word: DaemonEvent, device: Option<BorrowedFd<'_>>) {
    if let Err(error) = ebb_fuse::send_with_fd(words.as_fd(), &[word.byte()], device) {
        tracing::warn!(%error, "the supervisor has gone: with the daemon the mount dies");
    }
}

/// A descriptor by its number in the environment.
fn inherited(name: &str) -> Option<OwnedFd> {
    let fd: RawFd = env::var(name).ok()?.parse().ok()?;
    // SAFETY: both calls take and give plain integers. Only a supervisor sets the variable, and it
    // names a descriptor that nobody else owns.
    unsafe {
        if fd <= libc::STDERR_FILENO || libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
            let error = io::Error::last_os_error();
            tracing::warn!(%error, "{name} names no descriptor");
            return None;
        }
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// Indices of words in the handover state.
const MINOR: usize = 0;
const FLAGS: usize = 1;
const PLACE: usize = 2;
const CLOSE_TO_OPEN: usize = 3;
const PORT: usize = 4;
const JOINED: usize = 5;
const ROOT: usize = 6;
