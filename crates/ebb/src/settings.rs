//! Converts arguments of the command line to options of node and bucket.

use crate::failure::Failure;
use ebb_bucket::{BucketSettings, ServerSideEncryption};
use ebb_cli::{args, places};
use ebb_model::PACKED_BYTES;
use ebb_node::Eviction;
use ebb_node::head::TakeOver;
use std::path::Path;
use std::time::Duration;

/// `data_dir` is shown to people: it identifies the node that serves a volume.
pub fn node(
    args: &args::Node,
    volume: &str,
    data_dir: &Path,
    read_only: bool,
) -> ebb_node::Options {
    // SAFETY: both calls have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    ebb_node::Options {
        volume: volume.into(),
        owner: format!("{} ({}, process {})", host_name(), data_dir.display(), std::process::id()),
        uid: args.uid.unwrap_or(uid),
        gid: args.gid.unwrap_or(gid),
        read_only: read_only || args.take_over == args::TakeOver::Never,
        take_over: match args.take_over {
            args::TakeOver::Now => TakeOver::Now,
            args::TakeOver::Join => TakeOver::Join,
            args::TakeOver::IfAbandoned | args::TakeOver::Never => TakeOver::IfAbandoned,
        },
        rearrange: args.rearrange,
        head_term: args.head_term.0,
        session_term: args.session_term.0,
        commit_interval: args.commit_interval.0,
        ack_durable: args.ack == args::Ack::Durable,
        flush_interval: args.flush_interval.0,
        early_bytes: args.early_upload.0,
        flush_parallel: args.flush_jobs.into(),
        metadata_bytes: metadata_bytes(args),
        buffer_bytes: buffer_bytes(args),
        cache_bytes: args.cache_size.0,
        eviction: match args.eviction {
            args::Eviction::S3Fifo => Eviction::S3Fifo,
            args::Eviction::Lru => Eviction::Lru,
        },
        dirty_bytes: args.dirty_size.0,
        space_timeout: args.space_timeout.0,
        bucket_timeout: args.bucket_timeout.0,
        download_bytes_per_sec: (args.download_rate.0 > 0).then_some(args.download_rate.0),
        upload_bytes_per_sec: (args.upload_rate.0 > 0).then_some(args.upload_rate.0),
        revalidate: (!args.revalidate.0.is_zero()).then_some(args.revalidate.0),
        scrub_interval: (!args.scrub_interval.0.is_zero()).then_some(args.scrub_interval.0),
        scrub_bytes_per_sec: args.scrub_rate.0,
        read_ahead_bytes: args.read_ahead.0,
        slow_operation: slow_operation(args),
        pack_below_bytes: args.pack_below.0,
        ..ebb_node::Options::default()
    }
}

/// Half of the memory: changes during the writing of a snapshot take memory twice.
fn metadata_bytes(args: &args::Node) -> u64 {
    let share = ebb_os::memory_bytes().map(|memory| memory / 2);
    args.metadata_memory
        .map(|given| given.0)
        .or(share)
        .unwrap_or(ebb_node::Options::default().metadata_bytes)
}

fn buffer_bytes(args: &args::Node) -> u64 {
    let share = || {
        ebb_os::memory_bytes()
            .map(|memory| (memory / 8).clamp(LEAST_BUFFER_BYTES, MOST_BUFFER_BYTES))
    };
    args.buffer_memory
        .map(|given| given.0)
        .or_else(share)
        .unwrap_or(ebb_node::Options::default().buffer_bytes)
}

/// Memory for the requests of a mount's users.
pub fn request_buffer_bytes(args: &args::Node) -> u64 {
    ebb_node::Options { buffer_bytes: buffer_bytes(args), ..ebb_node::Options::default() }
        .request_buffer_bytes()
}

/// Operations that take longer than this are logged.
pub fn slow_operation(args: &args::Node) -> Option<Duration> {
    (!args.slow_operation.0.is_zero()).then_some(args.slow_operation.0)
}

/// Values that would make a node useless are mistakes.
pub fn check(args: &args::Node) -> Result<(), Failure> {
    let too_short = [
        ("head-term", args.head_term.0, 3),
        ("session-term", args.session_term.0, 3),
        ("bucket-timeout", args.bucket_timeout.0, 1),
    ];
    for (flag, given, least) in too_short {
        if given.as_secs() < least {
            return Err(Failure::Usage(format!("{flag} must be at least {least} s")));
        }
    }
    if args.commit_interval.0.is_zero() {
        return Err(Failure::Usage(
            "commit-interval cannot be zero; --ack=durable forces before every answer".into(),
        ));
    }
    if args.pack_below.0 > PACKED_BYTES {
        return Err(Failure::Usage(format!(
            "pack-below can be at most {}",
            ebb_cli::units::Bytes(PACKED_BYTES)
        )));
    }
    if args.scrub_rate.0 < LEAST_SCRUB_RATE {
        let least = ebb_cli::units::Bytes(LEAST_SCRUB_RATE);
        return Err(Failure::Usage(format!(
            "scrub-rate must be at least {least}; scrub-interval=0 turns the scrub off"
        )));
    }
    for (flag, given) in
        [("--download-rate", args.download_rate.0), ("--upload-rate", args.upload_rate.0)]
    {
        if (1..LEAST_RATE).contains(&given) {
            return Err(Failure::Usage(format!(
                "{flag} must be at least {}, or 0",
                ebb_cli::units::Bytes(LEAST_RATE)
            )));
        }
    }
    if args.metadata_memory.is_some_and(|given| given.0 < LEAST_METADATA_BYTES) {
        let least = ebb_cli::units::Bytes(LEAST_METADATA_BYTES);
        return Err(Failure::Usage(format!("--metadata-memory must be at least {least}")));
    }
    if args.buffer_memory.is_some_and(|given| given.0 < LEAST_BUFFER_BYTES) {
        let least = ebb_cli::units::Bytes(LEAST_BUFFER_BYTES);
        return Err(Failure::Usage(format!("buffer-memory must be at least {least}")));
    }
    for (flag, given) in [("--cache-size", args.cache_size), ("--dirty-size", args.dirty_size)] {
        if given.0 < LEAST_CACHE_BYTES {
            return Err(Failure::Usage(format!(
                "{flag} must be at least {}",
                ebb_cli::units::Bytes(LEAST_CACHE_BYTES)
            )));
        }
    }
    Ok(())
}

/// Room for a part of an upload, with one bucket.
const LEAST_BUFFER_BYTES: u64 = 32 << 20;

/// More memory makes nothing faster.
const MOST_BUFFER_BYTES: u64 = 1 << 30;

/// At this rate all bodies in progress arrive within the time limit for each.
const LEAST_RATE: u64 = 1 << 20;

/// The size of the scrub's reads.
const LEAST_SCRUB_RATE: u64 = 1 << 20;

/// Room for a page of a listing beside the metadata in use.
const LEAST_METADATA_BYTES: u64 = 1 << 20;

/// Room for a few requests under way.
const LEAST_CACHE_BYTES: u64 = 16 << 20;

/// Buckets of one volume that would take each other's files for their own are a mistake.
pub fn check_members(url: &str, args: &args::Bucket) -> Result<(), Failure> {
    let root = (url, &args.endpoint);
    match args
        .members
        .iter()
        .find(|member| ebb_cli::member::overlap(root, (&member.url, &member.endpoint)))
    {
        Some(member) => Err(Failure::Usage(format!(
            "{url} and {} at {:?} have objects in common",
            member.url,
            member.dir.as_str()
        ))),
        None => Ok(()),
    }
}

/// ebb's own files, and files below a mount, would become files of the volume if they were in the
/// directory that it stores in. The paths are free of symbolic links.
pub fn check_apart(
    url: &str,
    bucket: &args::Bucket,
    paths: &[(&str, &Path)],
) -> Result<(), Failure> {
    let urls = std::iter::once(url).chain(bucket.members.iter().map(|member| member.url.as_str()));
    let directory = |url: &'_ str| {
        let (scheme, path) = url.split_once("://")?;
        scheme.eq_ignore_ascii_case("file").then(|| path.to_owned())
    };
    for backing in urls.filter_map(directory) {
        let stored = places::real(Path::new(&backing));
        if let Some((what, path)) = paths.iter().find(|(_, path)| path.starts_with(&stored)) {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "{what} {path} would be within {backing}, where the volume is stored: choose \
                 another"
            )));
        }
    }
    Ok(())
}

pub fn member(args: &args::Member, read_only: bool, patience: Option<Duration>) -> BucketSettings {
    BucketSettings {
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        path_style: args.addressing.map(|addressing| addressing == args::Addressing::Path),
        profile: args.profile.clone(),
        server_side_encryption: args.server_side_encryption.map(server_side_encryption),
        kms_key: args.kms_key.clone(),
        request_payer: args.request_payer.clone(),
        anonymous: args.anonymous,
        patience,
        read_only,
        ..BucketSettings::default()
    }
}

/// Keys and secrets are no settings: the bucket finds them itself.
pub fn bucket(args: &args::Bucket, read_only: bool, patience: Option<Duration>) -> BucketSettings {
    BucketSettings {
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        path_style: args.addressing.map(|addressing| addressing == args::Addressing::Path),
        profile: args.profile.clone(),
        server_side_encryption: args.server_side_encryption.map(server_side_encryption),
        kms_key: args.kms_key.clone(),
        request_payer: args.request_payer.clone(),
        anonymous: args.anonymous,
        patience,
        read_only,
        ..BucketSettings::default()
    }
}

fn server_side_encryption(method: args::ServerSideEncryption) -> ServerSideEncryption {
    match method {
        args::ServerSideEncryption::Aes256 => ServerSideEncryption::Aes256,
        args::ServerSideEncryption::Kms => ServerSideEncryption::Kms,
        args::ServerSideEncryption::KmsDsse => ServerSideEncryption::KmsDsse,
    }
}

pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is valid for its length.
    let result = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    if result == 0 {
        String::from_utf8_lossy(&name[..end]).into_owned()
    } else {
        "unnamed host".into()
    }
}
