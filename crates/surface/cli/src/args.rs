//! Every command and every setting.

use crate::units::{Bytes, Span};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ebb_model::{MemberDir, NodeId};
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
    /// Advanced settings that are not in the table `[advanced]` of a configuration file.
    #[arg(skip)]
    pub deprecated: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Mount a bucket, a directory or a served volume.
    ///
    /// SOURCE is s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX],
    /// file:///DIRECTORY, or ebb://HOST:PORT[,HOST:PORT]...[/VOLUME[/SUBDIRECTORY]] for a volume
    /// that `ebb serve` serves. Returns when the mount is usable.
    Mount(Mount),
    /// Serve a volume to other mounts over the network.
    Serve(Serve),
    /// List, remove and promote the nodes of a replicated volume.
    #[command(subcommand)]
    Node(Nodes),
    /// Write all dirty data to the bucket, and unmount.
    Umount(Umount),
    /// Replace the daemon of mounts with the current binary, while they are used.
    Upgrade(Upgrade),
    /// Show the activity and the problems of a mount or node.
    Status(Target),
    /// Show rates and latencies of a mount or node: operations, reads, requests to the bucket.
    Stats(Stats),
    /// Show the operations on a mount by file, while a program runs or for some time.
    #[command(override_usage = "ebb profile [OPTIONS] <PATH> -- <COMMAND>...\n       ebb profile \
            [OPTIONS] <PATH> --for <TIME>")]
    Profile(Profile),
    /// List files that have not reached the bucket, oldest first.
    LsDirty(LsDirty),
    /// Write everything dirty at or below PATH to the bucket, and wait for it.
    Flush(Target),
    /// Show what others have changed in the bucket, at PATH and below it, at once.
    ///
    /// Lists every directory there again, however recently that was done. Otherwise such changes
    /// are seen after the time of --revalidate, and once after a mount.
    Refresh(Target),
    /// Fetch files and directory trees from the bucket into the cache.
    ///
    /// Cached data is not fetched again, so the same command continues an interrupted one. A
    /// request for more than the cache holds is refused.
    Warmup(Warmup),
    /// Keep files and directory trees in the cache, and fetch missing data.
    ///
    /// Sets the extended attribute `trusted.ebb.pin`, as root can also do with setfattr(1). It
    /// applies to files created later too, until `ebb unpin`.
    Pin(Warmup),
    /// Allow pinned files to be evicted again.
    Unpin(Unpin),
    /// Drop clean cached data at or below PATH.
    Evict(Evict),
    /// Check the invariants of a volume, and every cached block against its checksum.
    ///
    /// PATH can also be a data directory that no node has open; nothing in it is changed. The exit
    /// status is 0 if there is no problem, 1 if all problems were repaired, 2 if the arguments are
    /// invalid, 4 if problems are left, 8 if the check failed.
    Fsck(Fsck),
    /// Change the key of an encrypted data directory that no node has open.
    ChangeKey(ChangeKey),
    /// Reset the file PATH to its last upload. Later changes to it are lost.
    Rollback(Rollback),
    /// Copy the metadata of a volume (names, attributes, quotas, pins, trash) to other storage,
    /// without file data.
    ///
    /// TARGET is s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[@ACCOUNT][/PREFIX] or
    /// file:///DIRECTORY, without a backup in it. The mount stays in use.
    Backup(Backup),
    /// Create a data directory from a backup and the volume's bucket.
    ///
    /// First lists the files whose content is unavailable, and asks on the terminal unless --yes is
    /// given. Then takes over the volume from the node that serves it.
    Restore(Restore),
    /// Measure any file system: small files, a large file, names.
    Bench(Bench),
    /// Create and show certificates: TLS between nodes, mounts and tools (--tls).
    #[command(subcommand)]
    Cert(Cert),
    /// Show where the bytes of PATH are, and which failures they survive now.
    Explain(Target),
    /// Set and show limits of bytes and inodes below a directory.
    #[command(subcommand)]
    Quota(Quota),
    /// Keep removed files for some time, and restore them.
    #[command(subcommand)]
    Trash(Trash),
    /// Print the version.
    Version(Output),
    /// Print a completion script for a shell.
    Completion { shell: Shell },
}

#[derive(Args, Debug)]
pub struct Mount {
    /// The bucket, directory or served volume to mount.
    pub source: String,
    /// The mount point: an existing directory.
    pub mountpoint: PathBuf,
    /// Mount options as for mount(8): ro, allow_other, dev, suid, noexec…
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", env = "EBB_OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground and log to standard error. Unmount on SIGTERM and SIGINT, and when
    /// the terminal closes.
    #[arg(long, env = "EBB_FOREGROUND")]
    pub foreground: bool,
    /// Address to listen on for mounts of other machines, which find it in the bucket with
    /// `--take-over=join`. Other addresses than loopback require --tls.
    #[arg(long, value_name = "HOST:PORT", env = "EBB_LISTEN")]
    pub listen: Option<String>,
    #[command(flatten)]
    pub tls: Tls,
    /// Let the kernel read cached files directly from the node's disk (FUSE passthrough).
    #[arg(long, hide = true, value_enum, default_value_t = Passthrough::Auto)]
    pub passthrough: Passthrough,
    /// When this mount sees file data that other mounts of the volume write.
    #[arg(long, value_enum, default_value_t = Consistency::Strong, env = "EBB_CONSISTENCY")]
    pub consistency: Consistency,
    /// UID mapping: map COUNT user ids starting at LOCAL on this machine to REMOTE on the volume.
    /// Repeatable. Unmapped ids show as 65534. Without a mapping, ids are the same on both.
    #[arg(long, hide = true, value_name = "LOCAL:REMOTE:COUNT", value_delimiter = ',')]
    pub map_uid: Vec<String>,
    /// GID mapping, as map-uid for group ids.
    #[arg(long, hide = true, value_name = "LOCAL:REMOTE:COUNT", value_delimiter = ',')]
    pub map_gid: Vec<String>,
    /// Root squash: users that act as the anonymous user and group on this mount.
    #[arg(long, hide = true, value_enum, default_value_t = Squash::None)]
    pub squash: Squash,
    /// User id of the anonymous user on this machine.
    #[arg(long, hide = true, value_name = "UID", default_value = "65534", value_parser = clap::value_parser!(u32).range(1..=4294967293))]
    pub anonymous_uid: u32,
    /// Group id of the anonymous group on this machine.
    #[arg(long, hide = true, value_name = "GID", default_value = "65534", value_parser = clap::value_parser!(u32).range(0..=4294967293))]
    pub anonymous_gid: u32,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub bucket: Bucket,
}

#[derive(Args, Debug)]
pub struct Serve {
    /// Storage of the volume: s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX],
    /// az://CONTAINER[@ACCOUNT][/PREFIX] or file:///DIRECTORY.
    #[arg(long, value_name = "URL", env = "EBB_BACKING")]
    pub backing: String,
    /// Name of the volume, which mounts use in their URL.
    #[arg(long, value_name = "VOLUME", env = "EBB_NAME")]
    pub name: String,
    /// Address to listen on. Other addresses than loopback require --tls.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7170", env = "EBB_LISTEN")]
    pub listen: String,
    /// Replicate the volume: so many of its nodes vote, the first that join. More nodes follow
    /// without a vote. The default is 3 for a node of a replicated volume. Use one value on all
    /// nodes.
    #[arg(long, value_name = "N", value_parser = voters(), env = "EBB_VOTERS")]
    pub voters: Option<u8>,
    /// Join a replicated volume by way of this node of it, with an empty data directory. Ignored
    /// once the data directory is of the volume.
    #[arg(long, value_name = "HOST:PORT", env = "EBB_JOIN")]
    pub join: Option<String>,
    #[command(flatten)]
    pub tls: Tls,
    #[command(flatten)]
    pub node: Node,
    #[command(flatten)]
    pub bucket: Bucket,
}

/// Even numbers survive no more failures than the next smaller one.
fn voters() -> impl TypedValueParser<Value = u8> {
    PossibleValuesParser::new(["1", "3", "5"]).try_map(|text| text.parse())
}

/// How connections to and from other machines are secured.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    /// Encrypt and authenticate connections between nodes, mounts and tools (mutual TLS), with
    /// ca.pem, cert.pem and key.pem of this directory. See `ebb cert`.
    #[arg(long, value_name = "DIR", conflicts_with = "insecure", env = "EBB_TLS")]
    pub tls: Option<PathBuf>,
    /// Allow connections to and from other machines without encryption and authentication.
    #[arg(long, env = "EBB_INSECURE")]
    pub insecure: bool,
}

/// Settings of a node.
#[derive(Args, Debug)]
pub struct Node {
    /// Configuration file (TOML). Its keys are the long names of these flags; its table
    /// `[advanced]` has further settings.
    #[arg(long, value_name = "FILE", env = "EBB_CONFIG")]
    pub config: Option<PathBuf>,
    /// Data directory: log and cache of the node. The default is a directory per source below
    /// /var/lib/ebb, or below $XDG_DATA_HOME/ebb for ordinary users.
    #[arg(long, value_name = "DIR", env = "EBB_DATA")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub encryption: Encryption,
    /// Limit of the memory for names and attributes. Near the limit the node evicts names that are
    /// clean in the bucket; at the limit it refuses new ones. The default is half of the memory
    /// available to the process.
    #[arg(long, value_name = "SIZE", env = "EBB_METADATA_MEMORY")]
    pub metadata_memory: Option<Bytes>,
    /// Limit of the memory for file data in transit: half for downloads, a quarter for uploads, a
    /// quarter (at least 64 MiB) for writes of applications. The default is 1/8 of the memory
    /// available to the process, between 32 MiB and 1 GiB.
    #[arg(long, hide = true, value_name = "SIZE")]
    pub buffer_memory: Option<Bytes>,
    /// Limit of the cached bytes on the node's disk; at most 9/10 of the free space.
    #[arg(long, value_name = "SIZE", default_value = "20G", env = "EBB_CACHE_SIZE")]
    pub cache_size: Bytes,
    /// Eviction policy of the cache.
    #[arg(long, hide = true, value_enum, default_value_t = Eviction::S3Fifo)]
    pub eviction: Eviction,
    /// Limit of the dirty bytes; writers wait at the limit.
    #[arg(long, value_name = "SIZE", default_value = "4G", env = "EBB_DIRTY_SIZE")]
    pub dirty_size: Bytes,
    /// A writer that has waited this long at a limit gets ENOSPC.
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s")]
    pub space_timeout: Span,
    /// Age at which dirty files are written to the bucket.
    #[arg(long, value_name = "TIME", default_value = "5s", env = "EBB_FLUSH_INTERVAL")]
    pub flush_interval: Span,
    /// Size from which a file is uploaded while it grows, if the store can combine parts (S3).
    /// Values below 16 MiB count as 16 MiB; 0 turns this off.
    #[arg(long, hide = true, value_name = "SIZE", default_value = "32M")]
    pub early_upload: Bytes,
    /// Number of files written to the bucket at one time.
    #[arg(long, hide = true, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub flush_jobs: u16,
    /// Longest time until acknowledged operations are forced to disk, so that they survive a power
    /// cut.
    #[arg(long, hide = true, value_name = "TIME", default_value = "1s")]
    pub commit_interval: Span,
    /// When an operation is acknowledged.
    #[arg(long, value_enum, default_value_t = Ack::Logged, env = "EBB_ACK")]
    pub ack: Ack,
    /// Limit of the read-ahead for sequential and strided reads and for walks from file to file; at
    /// most what the bucket delivers in about 2 s.
    #[arg(long, hide = true, value_name = "SIZE", default_value = "64M")]
    pub read_ahead: Bytes,
    /// Size below which files share pack files on the node's disk; 0 turns this off.
    #[arg(long, hide = true, value_name = "SIZE", default_value = "128K")]
    pub pack_below: Bytes,
    /// Scrub: the cache and the log are verified once in this time; with 0 only data that is read.
    #[arg(long, hide = true, value_name = "TIME", default_value = "168h")]
    pub scrub_interval: Span,
    /// Limit of the scrub, in bytes per second.
    #[arg(long, hide = true, value_name = "SIZE", default_value = "32M")]
    pub scrub_rate: Bytes,
    /// Time after which a read fails if the bucket does not answer.
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s")]
    pub bucket_timeout: Span,
    /// Limit of the download rate, in bytes per second; 0 is no limit.
    #[arg(long, value_name = "SIZE", default_value = "0", env = "EBB_DOWNLOAD_RATE")]
    pub download_rate: Bytes,
    /// Limit of the upload rate, in bytes per second; 0 is no limit.
    #[arg(long, value_name = "SIZE", default_value = "0", env = "EBB_UPLOAD_RATE")]
    pub upload_rate: Bytes,
    /// Longest time until changes of other programs in the bucket become visible. With 0 they do
    /// not, except for replaced objects that are not cached.
    #[arg(long, value_name = "TIME", default_value = "0s", env = "EBB_REVALIDATE")]
    pub revalidate: Span,
    /// What to do if another node serves the bucket.
    #[arg(long, value_enum, default_value_t = TakeOver::IfAbandoned, env = "EBB_TAKE_OVER")]
    pub take_over: TakeOver,
    /// Term of the lease on the bucket: another node can take over after this time without a
    /// renewal.
    #[arg(long, hide = true, value_name = "TIME", default_value = "30s")]
    pub head_term: Span,
    /// Start although a member bucket of the volume is missing in the configuration, or is a
    /// different one.
    #[arg(long, hide = true)]
    pub rearrange: bool,
    /// Time without contact after which a client loses its session and its locks.
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s")]
    pub session_term: Span,
    /// Owner of objects that ebb has not written (user id).
    #[arg(long, hide = true, value_name = "UID", value_parser = clap::value_parser!(u32).range(0..=4294967293))]
    pub uid: Option<u32>,
    /// Group of objects that ebb has not written (group id).
    #[arg(long, hide = true, value_name = "GID", value_parser = clap::value_parser!(u32).range(0..=4294967293))]
    pub gid: Option<u32>,
    /// Log requests that take at least this long, with the cause; 0 turns this off. Waits for locks
    /// do not count.
    #[arg(long, hide = true, value_name = "TIME", default_value = "1s")]
    pub slow_operation: Span,
    /// Address of the Prometheus endpoint /metrics; a port alone is on 127.0.0.1.
    #[arg(long, value_name = "[HOST:]PORT", env = "EBB_METRICS")]
    pub metrics: Option<MetricsAddress>,
    /// Log level: error, warn, info, debug or trace.
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
    /// As --encryption-key-file, with the key that this shell command prints within 1 minute. Each
    /// process that opens the data directory runs it, without a terminal.
    #[arg(long, value_name = "COMMAND", env = "EBB_ENCRYPTION_KEY_COMMAND")]
    pub encryption_key_command: Option<String>,
}

/// Settings of the external storage. Credentials are found as by each store's own tools.
#[derive(Args, Debug)]
pub struct Bucket {
    /// URL of the server, if it is not the cloud's own: an S3-compatible server or an emulator.
    #[arg(long, value_name = "URL", env = "EBB_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Region of the bucket (S3).
    #[arg(long, value_name = "REGION", env = "EBB_REGION")]
    pub region: Option<String>,
    /// Profile of the credentials files (S3).
    #[arg(long, value_name = "PROFILE", env = "EBB_PROFILE")]
    pub profile: Option<String>,
    /// Bucket name in the host name (virtual) or in the path (S3). The default is path if an
    /// endpoint is given.
    #[arg(long, value_enum, env = "EBB_ADDRESSING")]
    pub addressing: Option<Addressing>,
    /// Server-side encryption of objects (S3). The default is the bucket's setting, or aws:kms if a
    /// key is given.
    #[arg(long, value_enum, value_name = "METHOD", env = "EBB_SERVER_SIDE_ENCRYPTION")]
    pub server_side_encryption: Option<ServerSideEncryption>,
    /// Key for server-side encryption: id or ARN (S3), resource name (Google Cloud Storage).
    #[arg(long, value_name = "KEY", env = "EBB_KMS_KEY")]
    pub kms_key: Option<String>,
    /// Who pays for requests, where it is not the bucket's owner: `requester` (S3), the id of a
    /// project (Google).
    #[arg(long, value_name = "PAYER", env = "EBB_REQUEST_PAYER")]
    pub request_payer: Option<String>,
    /// Send requests unsigned, as for public buckets.
    #[arg(long, env = "EBB_ANONYMOUS")]
    pub anonymous: bool,
    /// Member buckets; set in the configuration file only.
    #[arg(skip)]
    pub members: Vec<Member>,
}

/// A bucket at a directory of the volume's root (O-24): a table `[[bucket]]` of the configuration
/// file. It inherits no setting of the root bucket.
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
    pub request_payer: Option<String>,
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
    /// When it is in the log: it survives the crash of every process, and a power cut after the
    /// commit interval or fsync.
    Logged,
    /// When it survives a power cut.
    Durable,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// Data read only once is evicted before data read again: a file larger than the cache evicts
    /// itself and little else.
    S3Fifo,
    /// The least recently used data is evicted.
    Lru,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passthrough {
    /// On mounts made by root with the node on the same machine, for fully cached files of at least
    /// 128 KiB.
    Auto,
    /// Never: every read that is not in the page cache goes to ebb.
    Off,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// At once: while several mounts are attached, every read and write goes to the node.
    #[default]
    Strong,
    /// When the file is opened, after it was closed there: the kernel caches file data.
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
    /// No user.
    None,
    /// Programs that run as root: they own files as the anonymous user and group and have their
    /// permissions, but can look up names and attributes.
    Root,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// Wait one term; refuse if that node has renewed its lease.
    IfAbandoned,
    /// Take over at once: you have ensured that the other node is dead.
    Now,
    /// Join that node as a client if it has `--listen` and is reachable; otherwise as if-abandoned.
    Join,
    /// Mount read-only, without take-over.
    Never,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeAway {
    /// Wait one term; refuse if that node has renewed its lease.
    IfAbandoned,
    /// Take over at once: you have ensured that the other node is dead.
    Now,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    Path,
    Virtual,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerSideEncryption {
    /// With a key of the store.
    Aes256,
    /// With a key of its key management service.
    #[value(name = "aws:kms")]
    Kms,
    /// As aws:kms, in two layers.
    #[value(name = "aws:kms:dsse")]
    KmsDsse,
}

#[derive(Args, Debug)]
pub struct Umount {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Detach at once, even if files are open; the flush continues in the background.
    #[arg(long)]
    pub lazy: bool,
    /// Do not wait until all dirty data has reached the bucket.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Upgrade {
    /// The mount points.
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// A mount or anything below it, or a node.
#[derive(Args, Debug)]
pub struct Target {
    /// A path on a mount, HOST:PORT of a node, or ebb://HOST:PORT/VOLUME.
    pub path: PathBuf,
    #[command(flatten)]
    pub tls: Tls,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Fsck {
    #[command(flatten)]
    pub target: Target,
    /// Check only a mount or node in use; refuse a data directory that no daemon has open.
    #[arg(long)]
    pub online: bool,
    /// Also compare the bucket: objects, directory pages, keys below .ebb/. This costs a list
    /// request per directory and per 1,000 names, a GET per page, and a HEAD per object that
    /// differs or is in a partly loaded directory.
    #[arg(long)]
    pub bucket: bool,
    /// Repair the problems of a mount or node that have one remedy. First lists the repairs, and
    /// asks on the terminal unless --yes is given.
    #[arg(long)]
    pub repair: bool,
    /// Do not ask.
    #[arg(long, requires = "repair")]
    pub yes: bool,
    /// Of a data directory.
    #[command(flatten)]
    pub encryption: Encryption,
    /// For a data directory: how to reach its bucket.
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
    /// As --new-key-file, with the key that this shell command prints.
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
    /// A mount on this machine that contains its node.
    pub mount: PathBuf,
    /// Where to store the backup.
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
    /// The data directory to create; no node can have used it.
    pub data_dir: PathBuf,
    /// The storage of the volume.
    pub volume: String,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// What to do if a node serves the volume.
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
    /// Limit bytes or inodes below the directory PATH. Loads and counts everything below it first;
    /// until then the limits apply to the counted part.
    Set(SetQuota),
    /// Show the limits that apply to PATH, and their usage.
    Get(Target),
    /// Show all limits at and below PATH, of loaded directories.
    List(Target),
    /// Remove the limits of the directory PATH.
    Remove(Target),
}

/// A limit that is not given is none.
#[derive(Args, Debug)]
pub struct SetQuota {
    #[command(flatten)]
    pub target: Target,
    /// Limit of the bytes: the sum of all file lengths.
    #[arg(long, value_name = "SIZE", required_unless_present = "inodes")]
    pub bytes: Option<Bytes>,
    /// Limit of the inodes: files, directories, links and special files, each counted once.
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,
}

#[derive(Subcommand, Debug)]
pub enum Nodes {
    /// List the nodes of a volume.
    List(Target),
    /// Remove a node. It must not lead, and no file may have bytes on it alone.
    Remove(OneNode),
    /// Let a node vote that follows without a vote, beyond --voters.
    Promote(OneNode),
}

#[derive(Args, Debug)]
pub struct OneNode {
    /// A path on a mount, HOST:PORT of a node, or ebb://HOST:PORT/VOLUME.
    pub path: PathBuf,
    /// The id of the node, as `ebb node list` prints it.
    #[arg(value_name = "ID", value_parser = node_id)]
    pub node: NodeId,
    #[command(flatten)]
    pub tls: Tls,
    #[command(flatten)]
    pub output: Output,
}

fn node_id(text: &str) -> Result<NodeId, String> {
    match u64::from_str_radix(text, 16) {
        Ok(id) if text.len() == 16 && !text.starts_with('+') => Ok(NodeId(id)),
        _ => Err("a node id has 16 hexadecimal digits: see `ebb node list`".into()),
    }
}

#[derive(Subcommand, Debug)]
pub enum Trash {
    /// Keep files removed at or below the directory PATH for TIME. Directories below can override
    /// it. Requires root.
    Keep(KeepTrash),
    /// Remove the setting of the directory PATH, so that those of its parents apply. Requires root.
    Unkeep {
        /// A directory on a mount.
        path: PathBuf,
    },
    /// List the trash entries that were at or below PATH.
    List(Target),
    /// Restore the entries that were at or below PATH to their old paths, the latest of each path.
    /// Existing names are not replaced.
    Restore(RestoreTrash),
    /// Delete the trash entries that were at or below PATH.
    Empty(EmptyTrash),
}

#[derive(Args, Debug)]
pub struct KeepTrash {
    /// A directory on a mount.
    pub path: PathBuf,
    /// 12h, 7d…; 0 keeps nothing, whatever the parents' setting.
    pub time: Span,
}

#[derive(Args, Debug)]
pub struct RestoreTrash {
    #[command(flatten)]
    pub target: Target,
    /// Restore only this entry, as named by `ebb trash list`.
    #[arg(long, value_name = "INODE")]
    pub entry: Option<String>,
    /// Restore it to this path on the same mount instead.
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EmptyTrash {
    #[command(flatten)]
    pub target: Target,
    /// Only entries removed longer ago than this.
    #[arg(long, value_name = "TIME")]
    pub older_than: Option<Span>,
}

#[derive(Args, Debug)]
pub struct Stats {
    /// A path on a mount, HOST:PORT of a node, or ebb://HOST:PORT/VOLUME. Optional if there is one
    /// mount.
    pub path: Option<PathBuf>,
    /// Time that one table covers; with 0 one table since the start.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Span,
    /// Number of tables; the default is until interrupted.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub tls: Tls,
    /// Print one JSON document per table, one per line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Profile {
    /// A path on a mount. The whole mount is recorded, with all its users.
    pub path: PathBuf,
    /// Record for this time, or until interrupted. Required without COMMAND, refused with it.
    #[arg(
        long = "for",
        value_name = "TIME",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub duration: Option<Span>,
    /// Number of lines, longest total time first; JSON has all.
    #[arg(long, value_name = "N", default_value = "30")]
    pub top: u32,
    /// Print one line of JSON after the program's output.
    #[arg(long)]
    pub json: bool,
    /// Record while this program runs.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct Bench {
    /// A directory. The benchmark works in a new directory below it and removes that.
    pub path: PathBuf,
    /// Number of small files.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub files: u32,
    /// Size of the large file.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub size: Bytes,
    /// Number of threads, for tests with several.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum Cert {
    /// Create a certificate authority: ca.pem, and ca-key.pem, which stays on this machine.
    Init(InitCa),
    /// Create cert.pem, key.pem and ca.pem for a node, a mount or a tool, or renew them.
    Issue(IssueCertificate),
    /// Show the certificates in a file.
    Show(ShowCertificate),
}

#[derive(Args, Debug)]
pub struct InitCa {
    /// Directory of the authority; it must not have one.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Name of the cluster, which stands in all certificates as part of their issuer.
    #[arg(long, value_name = "CLUSTER", default_value = "ebb")]
    pub name: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct IssueCertificate {
    /// Directory of the authority.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Role of the owner.
    #[arg(long = "for", value_enum, value_name = "KIND")]
    pub kind: CertificateKind,
    /// Name of the owner: letters, digits, dots, hyphens and underscores. A node is also reached
    /// under its name.
    #[arg(long)]
    pub name: String,
    /// IP address or host name under which a node is reached. Repeatable.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub address: Vec<String>,
    /// Days until the certificate expires.
    #[arg(
        long,
        value_name = "N",
        default_value = "365",
        value_parser = clap::value_parser!(u32).range(1..=36500)
    )]
    pub days: u32,
    /// Directory for cert.pem, key.pem and ca.pem: the value of --tls. Files of the same owner are
    /// replaced.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateKind {
    /// Serves a volume: `ebb serve`, `ebb mount --listen`.
    Node,
    /// Mounts a served volume.
    Mount,
    /// Commands such as `ebb status HOST:PORT`.
    Tool,
}

#[derive(Args, Debug)]
pub struct ShowCertificate {
    /// A file with certificates in PEM format.
    pub file: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct LsDirty {
    #[command(flatten)]
    pub target: Target,
    /// Largest number of entries; the last line counts the rest.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Args, Debug)]
pub struct Warmup {
    /// Files and directories of one mount, or HOST:PORT of a node; `-` reads names from standard
    /// input, one per line.
    #[arg(value_name = "PATH", required_unless_present = "list")]
    pub paths: Vec<PathBuf>,
    /// Read names from this file, one per line.
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Number of chunks of 16 MiB, or smaller files, fetched at one time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub jobs: u16,
    /// Limit of the download, in bytes per second.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Bytes>,
    #[command(flatten)]
    pub tls: Tls,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Unpin {
    /// Pinned files and directories.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Evict {
    #[command(flatten)]
    pub target: Target,
    /// Limit of the eviction, in bytes per second.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Bytes>,
}

#[derive(Args, Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
