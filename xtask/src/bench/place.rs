//! Places to run workloads in: the machine's own file systems, the two FUSE servers that show the
//! kernel's limits, ebb, and peers.

use super::line::{self, Line};
use super::peers::{Peer, Programs};
use super::put_aside;
use super::shared::Served;
use crate::rig::{Rig, Shape};
use crate::scratch::Scratch;
use crate::{Outcome, tool};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Column {
    Native,
    Memory,
    Passthrough,
    Noop,
    /// Objects copied to native, one after the other or eight in parallel.
    Serial,
    Parallel,
    Ebb,
    /// A mount that others can join, and the same with one that has.
    Alone,
    Shared,
    /// A client of the store that is no file system.
    Curl,
    S3fs,
    Rclone,
    MooseFs,
    JuiceFs,
    GeeseFs,
    Mountpoint,
    SeaweedFs,
    ZeroFs,
}

impl Column {
    /// Another file system, which need not be installed.
    pub fn is_peer(self) -> bool {
        BUCKET_PEERS.contains(&self) || CLUSTER_PEERS.contains(&self)
    }

    /// The column whose files the workload uses, if it uses files.
    pub fn owner(self) -> Column {
        match self {
            Column::Serial | Column::Parallel | Column::Curl => Column::Ebb,
            column => column,
        }
    }

    /// The amount of work where a rate is measured: a twentieth of `whole` if each step waits for
    /// the bucket.
    pub fn share(self, whole: usize) -> usize {
        match self {
            column if BUCKET_PEERS.contains(&column) => whole / 20,
            _ => whole,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Column::Native => "native",
            Column::Memory => "tmpfs",
            Column::Passthrough => "bare passthrough",
            Column::Noop => "no-op FUSE",
            Column::Serial => "serial copy",
            Column::Parallel => "parallel copy",
            Column::Ebb => "ebb",
            Column::Alone => "alone",
            Column::Shared => "shared",
            Column::Curl => "curl",
            Column::S3fs => "s3fs",
            Column::Rclone => "rclone",
            Column::MooseFs => "MooseFS",
            Column::JuiceFs => "JuiceFS",
            Column::GeeseFs => "GeeseFS",
            Column::Mountpoint => "Mountpoint",
            Column::SeaweedFs => "SeaweedFS",
            Column::ZeroFs => "ZeroFS",
        }
    }

    /// A description, with the durability point of its calls.
    pub fn explained(self) -> &'static str {
        match self {
            Column::Native => {
                "this machine's disk. A call that returned survives the death of every process; \
                 a power cut after `fsync`."
            }
            Column::Memory => "memory. Survives the death of processes, and no power cut.",
            Column::Passthrough => {
                "the server `examples/passthrough.rs` of `ebb-fuse`: the kernel reads and writes \
                 files \
                 of the native column itself. As durable as native."
            }
            Column::Noop => {
                "the server `examples/noop.rs` of `ebb-fuse`: keeps everything in its own memory, \
                 on the same session code as ebb. Survives nothing."
            }
            Column::Serial => {
                "one process of `curl` copies the objects from the same S3 server to native, one \
                 after the other; \
                 then the files are read. Not forced: survives the death of processes."
            }
            Column::Parallel => "the same with 8 processes, each with every eighth object.",
            Column::Ebb => {
                "one process with node and mount (`ebb mount s3://…`), its data directory on \
                 native, \
                 over an S3 server on the same machine that keeps objects in memory. A call that \
                 returned \
                 is in the node's log and survives the death of every process; a power cut after \
                 `fsync`, \
                 or after the commit interval of 1 s. Objects are written later; what is not yet \
                 there \
                 when a measurement ends is waited for before the next one."
            }
            Column::Alone => {
                "one process with node and mount (`ebb mount file://… --listen`), data directory \
                 and bucket on native. As durable as ebb."
            }
            Column::Shared => {
                "the same while a second mount of the volume is attached (`ebb mount ebb://…`), \
                 which does nothing."
            }
            Column::Curl => {
                "the same requests to the same S3 server, which keep nothing: one process where \
                 ebb does one thing \
                 after the other, otherwise 8, each with an eighth of the work."
            }
            Column::S3fs => {
                "over the same S3 server (`listobjectsv2,use_path_request_style`, otherwise its \
                 defaults), temporary files on native. \
                 `close` and `fsync` return once the bucket has the file; what is not closed does \
                 not survive its process."
            }
            Column::Rclone => {
                "`rclone mount --vfs-cache-mode full --vfs-write-back 0s` over the same S3 server \
                 (`list_version=2,no_check_bucket`), \
                 its cache on native. What is written is in the cache and not forced; the bucket \
                 has it some time after `close`, which is \
                 waited for before the next measurement. A directory is in the bucket once it has \
                 a file."
            }
            Column::MooseFs => {
                "master, one chunk server and mount on this machine, in a network namespace of \
                 their own; no bucket. Chunks and changes of \
                 metadata are on native, once; as the package sets it nothing is forced \
                 (`HDD_FSYNC_BEFORE_CLOSE` and \
                 `CHANGELOG_SAVE_MODE` are 0), so no power cut is survived for certain."
            }
            Column::JuiceFs => {
                "over the same S3 server (`--trash-days 0`, otherwise its defaults), its cache on \
                 native, its metadata in a Redis of its own on this \
                 machine (`--appendonly yes`, forced once a second). `close` and `fsync` return \
                 once the bucket has the bytes and Redis the \
                 metadata; other changes of names are in Redis alone."
            }
            Column::GeeseFs => {
                "over the same S3 server (`--list-type 2`, otherwise its defaults), its cache in \
                 memory. `fsync` returns once the bucket has \
                 the file. What is closed, and every change of names, is in its memory and sent \
                 later: until then it does not survive its process."
            }
            Column::Mountpoint => {
                "Mountpoint for Amazon S3 over the same S3 server (`--allow-delete \
                 --allow-overwrite --upload-checksums crc64nvme`, otherwise its \
                 defaults), with no cache. `close` and `fsync` return once the bucket has the \
                 file, of which nothing can be changed after."
            }
            Column::SeaweedFs => {
                "`weed server -filer` and `weed mount` on this machine, with their defaults; no \
                 bucket. `close` and `fsync` return once chunks and \
                 metadata are with the servers, on native, once; nothing is forced, so no power \
                 cut is survived for certain."
            }
            Column::ZeroFs => {
                "with slatedb of its authors in place of its own copy; its server is over the same \
                 S3 server (`disable_bulk_delete`, 1 GB of memory, \
                 otherwise its defaults), its cache on native. `fsync` returns once the bucket has \
                 everything. What is only closed, and every change of \
                 names, is in the memory of the server for up to 30 s, and does not survive it \
                 until then."
            }
        }
    }
}

/// Other file systems over the same S3 server.
pub const BUCKET_PEERS: &[Column] = &[
    Column::S3fs,
    Column::Rclone,
    Column::JuiceFs,
    Column::GeeseFs,
    Column::Mountpoint,
    Column::ZeroFs,
];

/// File systems with storage of their own.
pub const CLUSTER_PEERS: &[Column] = &[Column::MooseFs, Column::SeaweedFs];

/// Settings of one table that differ from the defaults.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    /// The simulated network before the store.
    pub line: Option<Line>,
    /// Flags of `ebb mount`.
    pub flags: &'static [&'static str],
    /// Objects in the bucket that another client put.
    pub fill: u64,
    /// A description of this setup, printed beside the table.
    pub note: &'static str,
}

/// Every place of a run. Places are made on first use and removed on drop.
pub struct Places {
    binaries: PathBuf,
    examples: PathBuf,
    setup: Setup,
    programs: Option<Programs>,
    // Drop order: peers use ebb's S3 server, and every mount point is below native.
    servers: Vec<(Column, Server)>,
    peers: Vec<Peer>,
    ebb: Option<Rig>,
    served: Vec<(Column, Served)>,
    native: Scratch,
    memory: Option<Scratch>,
}

impl Places {
    pub fn new(
        binaries: &Path,
        examples: &Path,
        programs: Option<Programs>,
        setup: Setup,
    ) -> Outcome<Places> {
        let native = Scratch::new("bench")?;
        let (binaries, examples) = (binaries.to_owned(), examples.to_owned());
        Ok(Places {
            binaries,
            examples,
            setup,
            native,
            memory: None,
            servers: Vec::new(),
            ebb: None,
            served: Vec::new(),
            programs,
            peers: Vec::new(),
        })
    }

    /// A directory for files of the workload that are not measured.
    pub fn scratch(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.native.join("scratch");
        fs::create_dir_all(&path)?;
        Ok(path.join(name))
    }

    /// The root directory of a place.
    pub fn root(&mut self, column: Column) -> Outcome<PathBuf> {
        match column {
            Column::Native => {
                let path = self.native.join("native");
                fs::create_dir_all(&path)?;
                Ok(path)
            }
            Column::Memory => {
                let memory = match self.memory.take() {
                    Some(memory) => memory,
                    None => Scratch::in_memory("bench")?,
                };
                Ok(self.memory.insert(memory).to_path_buf())
            }
            Column::Passthrough | Column::Noop => {
                if let Some((_, server)) = self.servers.iter().find(|(served, _)| *served == column)
                {
                    return Ok(server.point.clone());
                }
                let server = self.start(column)?;
                let point = server.point.clone();
                self.servers.push((column, server));
                Ok(point)
            }
            Column::Ebb => {
                if self.ebb.is_none() {
                    let mut rig = Rig::filled(Shape::EmbeddedS3, &self.binaries, self.setup.fill)?
                        .with(self.setup.flags);
                    if let Some(line) = self.setup.line {
                        let endpoint = line::before(
                            rig.store.endpoint().ok_or("the store has no endpoint")?,
                            line,
                        )?;
                        rig.store.set_endpoint(endpoint);
                    }
                    rig.mount("")?;
                    self.ebb = Some(rig);
                }
                Ok(self.rig()?.mountpoint())
            }
            Column::Alone | Column::Shared => {
                if let Some((_, served)) = self.served.iter().find(|(of, _)| *of == column) {
                    return Ok(served.point());
                }
                let served = Served::start(column, &self.binaries)?;
                let point = served.point();
                self.served.push((column, served));
                Ok(point)
            }
            column if column.is_peer() => {
                let peer = self.peers.iter().find(|peer| peer.column() == column);
                Ok(peer.ok_or_else(|| format!("{} is not mounted", column.name()))?.point())
            }
            _ => Err("nothing is mounted there".into()),
        }
    }

    /// Mounts a peer and returns its version, or the reason why it is not available.
    pub fn start_peer(&mut self, column: Column) -> Outcome<String> {
        let programs = self.programs.as_ref().ok_or("peers are not asked for")?;
        let version = programs.version(column)?;
        self.root(Column::Ebb)?;
        let (Some(programs), Some(rig)) = (&self.programs, &self.ebb) else {
            return Err("ebb is not mounted".into());
        };
        self.peers.push(Peer::start(
            column,
            programs,
            &self.native.join(column.name()),
            &rig.store,
        )?);
        Ok(version)
    }

    /// Stops all peers except the one that is measured.
    pub fn turn_to(&self, column: Column) -> Outcome<()> {
        let (others, of_column): (Vec<_>, Vec<_>) =
            self.peers.iter().partition(|peer| peer.column() != column);
        others.into_iter().try_for_each(Peer::halt)?;
        of_column.into_iter().try_for_each(Peer::go_on)
    }

    fn start(&self, column: Column) -> Outcome<Server> {
        let point = self.native.join(format!("{column:?}"));
        fs::create_dir(&point)?;
        let mut command = match column {
            Column::Passthrough => {
                let below = self.native.join("below");
                fs::create_dir(&below)?;
                let mut command = Command::new(self.examples.join("passthrough"));
                command.arg(below);
                command
            }
            _ => Command::new(self.examples.join("noop")),
        };
        let mut child = command.arg(&point).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("the server has no output")?;
        let server = Server { child, point };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(format!("the server of {} did not start", column.name()).into());
        }
        Ok(server)
    }

    pub fn rig(&mut self) -> Outcome<&mut Rig> {
        self.ebb.as_mut().ok_or_else(|| "ebb is not mounted".into())
    }

    /// Mounts ebb (with these flags) or a peer again, with nothing cached except the names in the
    /// root.
    pub fn begin_cold(&mut self, column: Column, flags: &[&str]) -> Outcome<()> {
        self.settle(column)?;
        let peer = self.peers.iter_mut().find(|peer| peer.column() == column);
        if let (Some(peer), Some(programs)) = (peer, &self.programs) {
            peer.begin_cold(programs)?;
        } else {
            let flags: Vec<&str> = self.setup.flags.iter().chain(flags).copied().collect();
            let rig = self.rig()?;
            rig.umount()?;
            put_aside(rig.data())?;
            rig.set_flags(&flags);
            rig.mount("")?;
        }
        fs::read_dir(self.root(column)?)?.try_for_each(|entry| entry?.metadata().map(drop))?;
        Ok(())
    }

    /// Waits until the bucket has everything.
    pub fn drain(&mut self, column: Column) -> Outcome<()> {
        if let (Column::Ebb, Some(rig)) = (column, &self.ebb) {
            rig.flush()?;
        }
        let served = self.served.iter().filter(|(of, _)| *of == column);
        served.map(|(_, served)| served).try_for_each(Served::settle)?;
        self.peers.iter().filter(|peer| peer.column() == column).try_for_each(Peer::settle)
    }

    /// Waits until a place has no background work left.
    pub fn settle(&mut self, column: Column) -> Outcome<()> {
        self.drain(column)?;
        // Dirty pages of one place must not delay the next one.
        tool::run(Command::new("sync").arg("--file-system").arg(&*self.native))
    }

    /// Bytes of ebb's requests of these kinds since its mount.
    pub fn moved_bytes(&mut self, kinds: &[&str]) -> Outcome<u64> {
        let rig = self.rig()?;
        let point = rig.mountpoint().display().to_string();
        let stats = tool::output(&mut rig.ebb(&[
            "stats",
            &point,
            "--interval",
            "0",
            "--count",
            "1",
            "--json",
        ]))?;
        let stats: serde_json::Value = serde_json::from_str(stats.trim())?;
        // Kinds without requests are not listed.
        let requests = stats["node"]["bucket"]
            .as_object()
            .ok_or("the statistics have no requests to the bucket")?;
        Ok(kinds.iter().filter_map(|kind| requests.get(*kind)?["bytes"].as_u64()).sum())
    }

    /// The file system type of `native`, for the report.
    pub fn native_kind(&self) -> Outcome<String> {
        let kind = tool::output(
            Command::new("stat").args(["--file-system", "--format=%T"]).arg(&*self.native),
        )?;
        Ok(kind.trim().to_owned())
    }
}

/// A FUSE server in its own process.
struct Server {
    child: Child,
    point: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It unmounts and ends.
        tool::signal(self.child.id(), libc::SIGTERM).ok();
        self.child.wait().ok();
    }
}
