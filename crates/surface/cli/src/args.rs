//! Every command and every setting.

use crate::units::{Bytes, Span};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ebb_model::MemberDir;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// A POSIX file system over a bucket or a directory.
#[derive(Parser, Debug)]
#[command(name = "ebb", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Mount a bucket, a directory or a served volume.
    ///
    /// SOURCE is s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX],
    /// file:///DIRECTORY, or ebb://HOST:PORT/VOLUME[/SUBDIRECTORY] for a volume that `ebb serve`
    /// serves. Returns when the mount is usable.
    Mount(Mount),
    /// Serve a volume to other mounts over the network.
    Serve(Serve),
    /// Write what is dirty to the bucket, and unmount.
    Umount(Umount),
    /// Have mounts served by what their binary is now, while they are used.
    Upgrade(Upgrade),
    /// Show what a mount or node does, and what is wrong.
    Status(Target),
    /// Show how fast a mount or node answers, and from where: operations, reads, requests to the
    /// bucket.
    Stats(Stats),
    /// Show what a program, or all that is done in some time, does to a mount, by file and
    /// operation.
    #[command(override_usage = "ebb profile [OPTIONS] <PATH> -- <COMMAND>...\n       ebb profile \
            [OPTIONS] <PATH> --for <TIME>")]
    Profile(Profile),
    /// List what has not reached the bucket, oldest first.
    LsDirty(LsDirty),
    /// Write everything dirty at or below PATH to the bucket, and wait for it.
    Flush(Target),
    /// Bring files, and all that is below directories, from the bucket into the cache.
    ///
    /// What is cached already is not fetched again, so the same command goes on where one that was
    /// interrupted has ended. More than the cache holds is refused.
    Warmup(Warmup),
    /// Keep files, and all that is below directories, in the cache, and bring in what is not there.
    ///
    /// Sets the extended attribute `trusted.ebb.pin`, as root may also do with setfattr(1): it
    /// holds for what comes there later too, and until `ebb unpin`.
    Pin(Warmup),
    /// Let what is pinned leave the cache again.
    Unpin(Unpin),
    /// Drop clean cached bytes at or below PATH.
    Evict(Evict),
    /// Prove every invariant of a mounted volume and read every cached block against its checksum.
    ///
    /// PATH may be a data directory too, while no node has it open. Nothing in it is changed. The
    /// exit status is 0 if nothing is wrong, 1 if all that was is repaired, 2 if what was asked
    /// cannot be, 4 if something is left, 8 if that could not be found out.
    Fsck(Fsck),
    /// Give an encrypted data directory that no node has open another key.
    ChangeKey(ChangeKey),
    /// Make the file PATH what it was when it was last sent to the bucket. What was written to it
    /// since is lost.
    Rollback(Rollback),
    /// Copy names, attributes and all else that the node of a mount knows of its volume, but for
    /// the bytes of files, to other storage.
    ///
    /// TARGET is s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX] or
    /// file:///DIRECTORY, without a backup in it. Whoever uses the mount goes on meanwhile.
    Backup(Backup),
    /// Make a data directory from a backup, with the bytes of files that the volume's bucket has.
    ///
    /// Says first what cannot be had, by path, and is done after a yes on the terminal, or with
    /// --yes. The volume is then taken over from whoever serves it.
    Restore(Restore),
    /// Measure the file system that PATH is on, whatever it is: small files, a large one, names.
    Bench(Bench),
    /// Say where the bytes of PATH are, and what survives which failure right now.
    Explain(Target),
    /// Limit how much may be below a directory, and show how much is.
    #[command(subcommand)]
    Quota(Quota),
    /// Keep what is removed for some time, and get it back.
    #[command(subcommand)]
    Trash(Trash),
    /// Print the version.
    Version(Output),
    /// Print a completion script for a shell.
    Completion { shell: Shell },
}

#[derive(Args, Debug)]
pub struct Mount {
    /// What to mount.
    pub source: String,
    /// Where to mount it: a directory that exists.
    pub mountpoint: PathBuf,
    /// Mount options, as mount(8) takes them: ro, allow_other, dev, suid, noexec…
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", env = "EBB_OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, log to standard error, unmount on SIGTERM and SIGINT, and when the
    /// terminal goes.
    #[arg(long, env = "EBB_FOREGROUND")]
    pub foreground: bool,
    /// Let other machines mount the volume from this one: they find the address in the
    /// bucket, with `--take-over=join`. Whoever reaches it can read and write the volume.
    #[arg(long, value_name = "HOST:PORT", env = "EBB_LISTEN")]
    pub listen: Option<String>,
    /// Whether the kernel reads cached files by itself.
    #[arg(long, value_enum, default_value_t = Passthrough::Auto, env = "EBB_PASSTHROUGH")]
    pub passthrough: Passthrough,
    /// What is seen of what other mounts of the volume write to files.
    #[arg(long, value_enum, default_value_t = Consistency::Strong, env = "EBB_CONSISTENCY")]
    pub consistency: Consistency,
    /// The COUNT users from LOCAL on are on this machine what the volume has from REMOTE on. May be
    /// given several times. Who is in no range is nobody, shown as 65534; without any, users have
    /// the same numbers on both sides.
    #[arg(long, value_name = "LOCAL:REMOTE:COUNT", value_delimiter = ',', env = "EBB_MAP_UID")]
    pub map_uid: Vec<String>,
    /// The same of groups.
    #[arg(long, value_name = "LOCAL:REMOTE:COUNT", value_delimiter = ',', env = "EBB_MAP_GID")]
    pub map_gid: Vec<String>,
    /// Who is taken for the anonymous user and group, whatever the kernel lets them do.
    #[arg(long, value_enum, default_value_t = Squash::None, env = "EBB_SQUASH")]
    pub squash: Squash,
    /// The anonymous user, by this machine's numbers.
    #[arg(long, value_name = "UID", default_value = "65534", value_parser = clap::value_parser!(u32).range(1..=4294967293), env = "EBB_ANONYMOUS_UID")]
    pub anonymous_uid: u32,
    /// The anonymous group.
    #[arg(long, value_name = "GID", default_value = "65534", value_parser = clap::value_parser!(u32).range(0..=4294967293), env = "EBB_ANONYMOUS_GID")]
    pub anonymous_gid: u32,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub bucket: Bucket,
}

#[derive(Args, Debug)]
pub struct Serve {
    /// What the volume is over: s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX],
    /// az://CONTAINER[@ACCOUNT][/PREFIX] or file:///DIRECTORY.
    #[arg(long, value_name = "URL", env = "EBB_BACKING")]
    pub backing: String,
    /// The name by which mounts ask for the volume.
    #[arg(long, value_name = "VOLUME", env = "EBB_NAME")]
    pub name: String,
    /// Address to listen on.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7170", env = "EBB_LISTEN")]
    pub listen: String,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub bucket: Bucket,
}

/// Settings of a node.
#[derive(Args, Debug)]
pub struct Node {
    /// Configuration file (TOML); its keys are the long names of these flags.
    #[arg(long, value_name = "FILE", env = "EBB_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the node keeps its log and its cache. The default is a directory per source
    /// below /var/lib/ebb, or below $XDG_DATA_HOME/ebb for ordinary users.
    #[arg(long, value_name = "DIR", env = "EBB_DATA")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub encryption: Encryption,
    /// Most memory that names and attributes may take: near it those go that the bucket has, beyond
    /// it nothing new comes in. The default is half of what the process can have.
    #[arg(long, value_name = "SIZE", env = "EBB_METADATA_MEMORY")]
    pub metadata_memory: Option<Bytes>,
    /// Most memory for bytes of files on their way: half of it for what comes from buckets, a
    /// quarter for what goes there, a quarter, and 64 MiB at least, for what applications write.
    /// The default is an eighth of what the process can have, from 32 MiB to 1 GiB.
    #[arg(long, value_name = "SIZE", env = "EBB_BUFFER_MEMORY")]
    pub buffer_memory: Option<Bytes>,
    /// Most bytes that are cached on the node's disk; never more than nine tenths of what is free.
    #[arg(long, value_name = "SIZE", default_value = "20G", env = "EBB_CACHE_SIZE")]
    pub cache_size: Bytes,
    /// Which cached bytes make room for others.
    #[arg(long, value_enum, default_value_t = Eviction::S3Fifo, env = "EBB_EVICTION")]
    pub eviction: Eviction,
    /// Most bytes that may wait for the bucket; writers wait for room beyond it.
    #[arg(long, value_name = "SIZE", default_value = "4G", env = "EBB_DIRTY_SIZE")]
    pub dirty_size: Bytes,
    /// A writer that waits for room this long gets ENOSPC.
    #[arg(long, value_name = "TIME", default_value = "60s", env = "EBB_SPACE_TIMEOUT")]
    pub space_timeout: Span,
    /// Dirty files are written to the bucket once they are this old.
    #[arg(long, value_name = "TIME", default_value = "5s", env = "EBB_FLUSH_INTERVAL")]
    pub flush_interval: Span,
    /// A file that has grown to this is sent while it grows, where the store can put it together by
    /// itself (S3); less than 16 MiB count as that, and with 0 none is.
    #[arg(long, value_name = "SIZE", default_value = "32M", env = "EBB_EARLY_UPLOAD")]
    pub early_upload: Bytes,
    /// Files that are written to the bucket at one time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1024), env = "EBB_FLUSH_JOBS")]
    pub flush_jobs: u16,
    /// What was acknowledged survives a power cut at the latest after this time.
    #[arg(long, value_name = "TIME", default_value = "1s", env = "EBB_COMMIT_INTERVAL")]
    pub commit_interval: Span,
    /// When an operation is acknowledged.
    #[arg(long, value_enum, default_value_t = Ack::Logged, env = "EBB_ACK")]
    pub ack: Ack,
    /// Most bytes that are read ahead of a reader who goes on in order, in equal steps or from file
    /// to file; never more than comes in about two seconds.
    #[arg(long, value_name = "SIZE", default_value = "64M", env = "EBB_READ_AHEAD")]
    pub read_ahead: Bytes,
    /// Files below this size share files of the node's disk; with 0 none does.
    #[arg(long, value_name = "SIZE", default_value = "128K", env = "EBB_PACK_BELOW")]
    pub pack_below: Bytes,
    /// Everything cached, and the log, is compared with its checksums once in this time; with 0
    /// only what is read.
    #[arg(long, value_name = "TIME", default_value = "168h", env = "EBB_SCRUB_INTERVAL")]
    pub scrub_interval: Span,
    /// Most bytes per second that are read for that.
    #[arg(long, value_name = "SIZE", default_value = "32M", env = "EBB_SCRUB_RATE")]
    pub scrub_rate: Bytes,
    /// A read that the bucket does not answer fails after this time.
    #[arg(long, value_name = "TIME", default_value = "60s", env = "EBB_BUCKET_TIMEOUT")]
    pub bucket_timeout: Span,
    /// Most bytes of objects that come from the bucket in a second; with 0 as many as can.
    #[arg(long, value_name = "SIZE", default_value = "0", env = "EBB_DOWNLOAD_RATE")]
    pub download_rate: Bytes,
    /// Most bytes of objects that go to the bucket in a second; with 0 as many as can.
    #[arg(long, value_name = "SIZE", default_value = "0", env = "EBB_UPLOAD_RATE")]
    pub upload_rate: Bytes,
    /// What others do to the bucket is seen at the latest after this time; with 0 never, but for
    /// objects that are replaced and are not cached.
    #[arg(long, value_name = "TIME", default_value = "0s", env = "EBB_REVALIDATE")]
    pub revalidate: Span,
    /// What to do where another node serves the bucket.
    #[arg(long, value_enum, default_value_t = TakeOver::IfAbandoned, env = "EBB_TAKE_OVER")]
    pub take_over: TakeOver,
    /// Another node may take over a volume whose node has been silent for this long.
    #[arg(long, value_name = "TIME", default_value = "30s", env = "EBB_HEAD_TERM")]
    pub head_term: Span,
    /// Serve the volume although a bucket that it had at a directory is no longer configured,
    /// or is another one.
    #[arg(long, env = "EBB_REARRANGE")]
    pub rearrange: bool,
    /// A client that has been silent for this long loses its session.
    #[arg(long, value_name = "TIME", default_value = "60s", env = "EBB_SESSION_TERM")]
    pub session_term: Span,
    /// Owner of objects that ebb has not written (user id).
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(0..=4294967293), env = "EBB_UID")]
    pub uid: Option<u32>,
    /// Group of objects that ebb has not written (group id).
    #[arg(long, value_name = "GID", value_parser = clap::value_parser!(u32).range(0..=4294967293), env = "EBB_GID")]
    pub gid: Option<u32>,
    /// Requests that take this long are told of in the log, with what they waited for; with 0 none
    /// are. Waits for locks do not count.
    #[arg(long, value_name = "TIME", default_value = "1s", env = "EBB_SLOW_OPERATION")]
    pub slow_operation: Span,
    /// Answer GET /metrics there, for Prometheus; a port alone is one of 127.0.0.1.
    #[arg(long, value_name = "[HOST:]PORT", env = "EBB_METRICS")]
    pub metrics: Option<MetricsAddress>,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "EBB_LOG")]
    pub log: tracing::Level,
}

/// Where the key of an encrypted data directory is.
#[derive(Args, Clone, Debug)]
pub struct Encryption {
    /// Encrypt the data directory with the key in this file: 32 bytes, or 64 hexadecimal digits.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "encryption_key_command",
        env = "EBB_ENCRYPTION_KEY_FILE"
    )]
    pub encryption_key_file: Option<PathBuf>,
    /// The same with the key that this command of the shell prints within a minute. Each process
    /// that opens the data directory runs it, without a terminal.
    #[arg(long, value_name = "COMMAND", env = "EBB_ENCRYPTION_KEY_COMMAND")]
    pub encryption_key_command: Option<String>,
}

/// Settings of the external storage. Credentials are found as each store's own tools find
/// them.
#[derive(Args, Debug)]
pub struct Bucket {
    /// URL of the server, where it is not the cloud's own: an S3-compatible one, an emulator.
    #[arg(long, value_name = "URL", env = "EBB_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Region of the bucket (S3).
    #[arg(long, value_name = "REGION", env = "EBB_REGION")]
    pub region: Option<String>,
    /// Profile of the credentials files (S3).
    #[arg(long, value_name = "PROFILE", env = "EBB_PROFILE")]
    pub profile: Option<String>,
    /// Buckets in the host name (virtual) or in the path (S3). The default is path where an
    /// endpoint is given.
    #[arg(long, value_enum, env = "EBB_ADDRESSING")]
    pub addressing: Option<Addressing>,
    /// How the store is to encrypt objects (S3). The default is what the bucket says, or aws:kms
    /// where a key is given.
    #[arg(long, value_enum, value_name = "METHOD", env = "EBB_SERVER_SIDE_ENCRYPTION")]
    pub server_side_encryption: Option<ServerSideEncryption>,
    /// Key that the store is to encrypt objects with: its id or ARN (S3), its resource name
    /// (Google).
    #[arg(long, value_name = "KEY", env = "EBB_KMS_KEY")]
    pub kms_key: Option<String>,
    /// Send requests unsigned, as for public buckets.
    #[arg(long, env = "EBB_ANONYMOUS")]
    pub anonymous: bool,
    /// What is beside the bucket: only a configuration file can say it.
    #[arg(skip)]
    pub members: Vec<Member>,
}

/// A bucket at a directory of the volume's root (O-24): a table `[[bucket]]` of the
/// configuration file. It takes no setting of the bucket that it is beside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub dir: MemberDir,
    pub url: String,
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub profile: Option<String>,
    pub addressing: Option<Addressing>,
    pub server_side_encryption: Option<ServerSideEncryption>,
    pub kms_key: Option<String>,
    pub anonymous: bool,
}

/// `HOST:PORT`, never without a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsAddress(pub String);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
        match port.parse::<u16>() {
            Ok(_) if !host.is_empty() => Ok(MetricsAddress(format!("{host}:{port}"))),
            _ => Err(format!(
                "{text:?} is no address: write PORT or HOST:PORT; 0.0.0.0:PORT is every address of \
                 this machine"
            )),
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// When it is in the log: it survives the death of every process, and a power cut
    /// after the commit interval or fsync.
    Logged,
    /// When it survives a power cut.
    Durable,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// Those that were read only once, before any that were read again: a file larger than the
    /// cache evicts itself and little else.
    S3Fifo,
    /// Those that have not been used for longest.
    Lru,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passthrough {
    /// Where that is safe: on mounts that root has made, whose node is on the same machine, of
    /// files from 128 KiB that are wholly cached.
    Auto,
    /// Never: every read that the kernel has not cached comes to ebb.
    Off,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// All of it, at once: while several mounts have the volume every read and write goes to the
    /// node.
    #[default]
    Strong,
    /// All that was written before the file was closed there and then opened here: the kernel
    /// caches bytes of files.
    CloseToOpen,
}

impl Consistency {
    /// As it is set.
    pub fn name(self) -> &'static str {
        match self {
            Consistency::Strong => "strong",
            Consistency::CloseToOpen => "close-to-open",
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Squash {
    /// Nobody.
    None,
    /// Programs that run as root: they make what belongs to the anonymous user and group, and may
    /// do what these may, but see names and attributes.
    Root,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// Wait one term to see whether that node lives; refuse if it does.
    IfAbandoned,
    /// Take the volume at once: you have made sure that the other node is dead.
    Now,
    /// Mount the volume from that node if it listens for other mounts (`--listen`) and can be
    /// reached; otherwise as if-abandoned.
    Join,
    /// Mount read-only, without taking over.
    Never,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeAway {
    /// Wait one term to see whether that node lives; refuse if it does.
    IfAbandoned,
    /// Take the volume at once: you have made sure that the other node is dead.
    Now,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    Path,
    Virtual,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerSideEncryption {
    /// With a key of the store's own.
    Aes256,
    /// With a key of its key management service.
    #[value(name = "aws:kms")]
    Kms,
    /// The same, in two layers.
    #[value(name = "aws:kms:dsse")]
    KmsDsse,
}

#[derive(Args, Debug)]
pub struct Umount {
    /// The mount.
    pub mountpoint: PathBuf,
    /// Detach at once, also where files are open; the flush goes on in the background.
    #[arg(long)]
    pub lazy: bool,
    /// Do not wait until everything dirty has reached the bucket.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Upgrade {
    /// The mounts.
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// A mount or anything below it, or a node.
#[derive(Args, Debug)]
pub struct Target {
    /// A path on a mount, HOST:PORT of a node that serves, or ebb://HOST:PORT/VOLUME.
    pub path: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Fsck {
    #[command(flatten)]
    pub target: Target,
    /// Check only what is in use: a data directory that no daemon has open is refused.
    #[arg(long)]
    pub online: bool,
    /// Compare the bucket too: objects, pages of directories, what is below .ebb/. That is a
    /// list request for each directory and each thousand names in it, a GET for each page, and a
    /// HEAD for each object that differs, or is in a directory that is not wholly loaded.
    #[arg(long)]
    pub bucket: bool,
    /// Put right, of a mount or node, what only one thing is right for. What would be done is said
    /// first, and done after a yes on the terminal, or with --yes.
    #[arg(long)]
    pub repair: bool,
    /// Do not ask.
    #[arg(long, requires = "repair")]
    pub yes: bool,
    /// Of a data directory.
    #[command(flatten)]
    pub encryption: Encryption,
    /// Of a data directory, how its bucket is reached.
    #[command(flatten)]
    pub store: Bucket,
}

#[derive(Args, Debug)]
pub struct ChangeKey {
    /// The data directory.
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub encryption: Encryption,
    /// The new key: 32 bytes, or 64 hexadecimal digits.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "new_key_command",
        conflicts_with = "new_key_command"
    )]
    pub new_key_file: Option<PathBuf>,
    /// The same with the key that this command of the shell prints.
    #[arg(long, value_name = "COMMAND")]
    pub new_key_command: Option<String>,
}

#[derive(Args, Debug)]
pub struct Rollback {
    #[command(flatten)]
    pub target: Target,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct Backup {
    /// A mount of this machine, whose node is in it.
    pub mount: PathBuf,
    /// Where the backup is to be.
    pub target: String,
    #[command(flatten)]
    pub output: Output,
    /// How TARGET is reached.
    #[command(flatten)]
    pub store: Bucket,
}

#[derive(Args, Debug)]
pub struct Restore {
    /// Where the backup is.
    pub source: String,
    /// The data directory to be made: one that no node has used.
    pub data_dir: PathBuf,
    /// The storage of the volume.
    pub volume: String,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// What to do where a node holds the volume.
    #[arg(long, value_enum, default_value_t = TakeAway::IfAbandoned)]
    pub take_over: TakeAway,
    #[command(flatten)]
    pub output: Output,
    /// Of the data directory that the backup is of, if that was encrypted.
    #[command(flatten)]
    pub encryption: Encryption,
    /// How SOURCE and VOLUME are reached.
    #[command(flatten)]
    pub store: Bucket,
}

#[derive(Subcommand, Debug)]
pub enum Quota {
    /// Limit what may be below the directory PATH. What is in the bucket below it is loaded and
    /// counted first; the limits hold meanwhile, for what is known.
    Set(SetQuota),
    /// Show the limits that hold for PATH, and what is used of them.
    Get(Target),
    /// Show all limits at and below PATH, of directories that have been looked up.
    List(Target),
    /// Lift the limits of the directory PATH.
    Remove(Target),
}

/// A limit that is not given is none.
#[derive(Args, Debug)]
pub struct SetQuota {
    #[command(flatten)]
    pub target: Target,
    /// Most bytes: the lengths of all files together.
    #[arg(long, value_name = "SIZE", required_unless_present = "inodes")]
    pub bytes: Option<Bytes>,
    /// Most files, directories, links and all else, each counted once.
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,
}

#[derive(Subcommand, Debug)]
pub enum Trash {
    /// Keep what is removed at or below the directory PATH from now on, for TIME. Directories below
    /// may say otherwise. Only root may.
    Keep(KeepTrash),
    /// Have the directory PATH say nothing any more of what is kept: what holds is what those above
    /// say. Only root may.
    Unkeep {
        /// A directory on a mount.
        path: PathBuf,
    },
    /// Show what is in the trash that was at or below PATH.
    List(Target),
    /// Put back what was at or below PATH, where it was: of each path what was removed last.
    /// Nothing that is there is replaced.
    Restore(RestoreTrash),
    /// Remove for good what is in the trash that was at or below PATH.
    Empty(EmptyTrash),
}

#[derive(Args, Debug)]
pub struct KeepTrash {
    /// A directory on a mount.
    pub path: PathBuf,
    /// 12h, 7d…; 0 keeps nothing, whatever directories above say.
    pub time: Span,
}

#[derive(Args, Debug)]
pub struct RestoreTrash {
    #[command(flatten)]
    pub target: Target,
    /// Only this entry, as `ebb trash list` names it.
    #[arg(long, value_name = "INODE")]
    pub entry: Option<String>,
    /// Put it here instead: a path on the same mount.
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EmptyTrash {
    #[command(flatten)]
    pub target: Target,
    /// Only what was removed longer ago than this.
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<Span>,
}

#[derive(Args, Debug)]
pub struct Stats {
    /// A path on a mount, HOST:PORT of a node that serves, or ebb://HOST:PORT/VOLUME. Not needed
    /// where there is one mount.
    pub path: Option<PathBuf>,
    /// What is counted in one table; with 0 all since the start, in one table.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Span,
    /// Tables to show; the default is to go on until interrupted.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print a JSON document per table, one a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Profile {
    /// A path on a mount. The whole mount is watched, and whoever uses it.
    pub path: PathBuf,
    /// Watch for this time, or until interrupted before. Needed where there is no COMMAND, and
    /// refused with one.
    #[arg(
        long = "for",
        value_name = "TIME",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub duration: Option<Span>,
    /// Lines to show, those that took longest first; JSON has all.
    #[arg(long, value_name = "N", default_value = "30")]
    pub top: u32,
    /// Print one line of JSON, behind what the program prints.
    #[arg(long)]
    pub json: bool,
    /// Watch while this program runs.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct Bench {
    /// A directory. All work is done in a new one below it, which is removed in the end.
    pub path: PathBuf,
    /// Small files.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    /// Bytes of the large file.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub size: Bytes,
    /// Threads, where there are several.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct LsDirty {
    #[command(flatten)]
    pub target: Target,
    /// Most entries to list; of more the last line says how many.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Args, Debug)]
pub struct Warmup {
    /// Files and directories of one mount, or HOST:PORT of a node that serves; `-` reads their
    /// names from standard input, one a line.
    #[arg(value_name = "PATH", required_unless_present = "list")]
    pub paths: Vec<PathBuf>,
    /// Read names from this file, one a line.
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Pieces of 16 MiB, or smaller files, that are fetched at one time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub jobs: u16,
    /// Most bytes per second that are fetched.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Bytes>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Unpin {
    /// What was pinned.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Evict {
    #[command(flatten)]
    pub target: Target,
    /// Most bytes per second that are dropped.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Bytes>,
}

#[derive(Args, Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
