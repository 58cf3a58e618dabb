//! Work with what is in the bucket, beside `curl` at the same server.

use super::data::{self, LARGE_BYTES};
use super::place::{Column, Places};
use crate::{Outcome, tool};
use ebb_bench::Rng;
use ebb_bench::work::{self, Durability, READ_BYTES, Stop, WRITE_BYTES};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Requests at one time, where there are several.
const AT_ONCE: u64 = 8;

/// Files of which the beginning is read.
const FILES: usize = 200;
const FILE_BYTES: usize = 1 << 20;

/// Reads anywhere.
const READS: u64 = 1024;

/// One object from the beginning to the end, with nothing of it on the node: MB/s. Of ebb the
/// mount is new and its data directory empty.
pub fn sequential(places: &mut Places, column: Column) -> Outcome<f64> {
    let path = data::large(places, Column::Ebb)?;
    let part = LARGE_BYTES / AT_ONCE;
    let parts = (0..AT_ONCE).map(|at| vec![Asked::of(&path, at * part, part)]).collect();
    let seconds = cold(places, column, parts, || {
        let mut buffer = vec![0; WRITE_BYTES];
        data::read_all(&File::open(&path)?, &mut buffer).map(drop)
    })?;
    Ok(LARGE_BYTES as f64 / 1e6 / seconds)
}

/// The first 128 KiB of files whose names are known, one after the other: files a second.
pub fn beginnings(places: &mut Places, column: Column) -> Outcome<f64> {
    let root = places.root(Column::Ebb)?;
    let paths: Vec<PathBuf> = (0..FILES).map(|at| root.join(format!("begins-{at}"))).collect();
    if !paths[0].exists() {
        let content = Rng(7).bytes(FILE_BYTES);
        paths.iter().try_for_each(|path| fs::write(path, &content))?;
    }
    let asked = paths.iter().map(|path| Asked::of(path, 0, READ_BYTES as u64)).collect();
    let seconds = cold(places, column, vec![asked], || {
        let mut buffer = vec![0; READ_BYTES];
        paths.iter().try_for_each(|path| Ok(File::open(path)?.read_exact_at(&mut buffer, 0)?))
    })?;
    Ok(FILES as f64 / seconds)
}

/// 128 KiB anywhere in one object, eight at one time: reads a second.
pub fn anywhere(places: &mut Places, column: Column) -> Outcome<f64> {
    let path = data::large(places, Column::Ebb)?;
    let mut rng = Rng(128);
    let offsets: Vec<u64> = (0..READS).map(|_| rng.below(LARGE_BYTES / READ_BYTES as u64) * READ_BYTES as u64).collect();
    let lists: Vec<&[u64]> = offsets.chunks((READS / AT_ONCE) as usize).collect();
    let asked = lists.iter().map(|list| list.iter().map(|at| Asked::of(&path, *at, READ_BYTES as u64)).collect()).collect();
    let seconds = cold(places, column, asked, || {
        let file = File::open(&path)?;
        let read = |list: &[u64]| {
            let mut buffer = vec![0; READ_BYTES];
            list.iter().try_for_each(|at| file.read_exact_at(&mut buffer, *at))
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> = lists.iter().map(|list| scope.spawn(|| read(list))).collect();
            // All are waited for, whichever fails.
            let ends: Vec<std::io::Result<()>> =
                readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).collect();
            Ok(ends.into_iter().collect::<std::io::Result<()>>()?)
        })
    })?;
    Ok(READS as f64 / seconds)
}

/// What the node gets from the bucket for each byte that is read so.
pub fn amplification(places: &mut Places, column: Column) -> Outcome<f64> {
    anywhere(places, column)?;
    let rig = places.rig()?;
    let point = rig.mountpoint().display().to_string();
    let stats = tool::output(&mut rig.ebb(&["stats", &point, "--interval", "0", "--count", "1", "--json"]))?;
    let stats: serde_json::Value = serde_json::from_str(stats.trim())?;
    let bytes = stats["node"]["bucket"]["get"]["bytes"].as_u64().ok_or("the statistics have no bytes of GETs")?;
    Ok(bytes as f64 / (READS * READ_BYTES as u64) as f64)
}

/// A new large file, until the bucket has it: MB/s.
pub fn write_back(places: &mut Places, column: Column) -> Outcome<f64> {
    let scratch = places.scratch("parts")?;
    if column == Column::Curl {
        let part = (LARGE_BYTES / AT_ONCE) as usize;
        if !scratch.exists() {
            fs::create_dir(&scratch)?;
            (0..AT_ONCE).try_for_each(|at| fs::write(scratch.join(at.to_string()), Rng(at).bytes(part)))?;
        }
        let sent = (0..AT_ONCE).map(|at| vec![Asked { key: format!("part-{at}"), what: What::Put(scratch.join(at.to_string())) }]);
        let sent = sent.collect();
        let began = Instant::now();
        curl(places, sent)?;
        return Ok(LARGE_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64());
    }
    let path = places.root(column)?.join("written-back");
    let began = Instant::now();
    work::write_stream(&path, LARGE_BYTES, Durability::Unforced, &Stop::default())?;
    places.settle(column)?;
    let seconds = began.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(LARGE_BYTES as f64 / 1e6 / seconds)
}

/// How long it takes with nothing on the node: `curl` asks for `asked`, ebb does `read`.
fn cold(places: &mut Places, column: Column, asked: Vec<Vec<Asked>>, read: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    places.settle(Column::Ebb)?;
    if column == Column::Curl {
        let began = Instant::now();
        curl(places, asked)?;
        return Ok(began.elapsed().as_secs_f64());
    }
    let rig = places.rig()?;
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    // Names are known.
    fs::read_dir(rig.mountpoint())?.try_for_each(|entry| entry?.metadata().map(drop))?;
    let began = Instant::now();
    read()?;
    Ok(began.elapsed().as_secs_f64())
}

/// A request to the store itself.
struct Asked {
    /// Below the volume's.
    key: String,
    what: What,
}

enum What {
    Get { offset: u64, len_bytes: u64 },
    Put(PathBuf),
}

impl Asked {
    fn of(path: &Path, offset: u64, len_bytes: u64) -> Asked {
        let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Asked { key, what: What::Get { offset, len_bytes } }
    }
}

/// A process for each list of requests, which makes them one after the other.
fn curl(places: &mut Places, lists: Vec<Vec<Asked>>) -> Outcome<()> {
    let rig = places.rig()?;
    let of = |name: &str| rig.store.environment.iter().find(|(there, _)| *there == name).map(|(_, value)| value.clone());
    let user = of("AWS_ACCESS_KEY_ID").zip(of("AWS_SECRET_ACCESS_KEY")).map(|(id, secret)| format!("{id}:{secret}"));
    let user = user.ok_or("the store's credentials are not known")?;
    let root = format!("{}/{}", rig.store.endpoint().ok_or("the store has no endpoint")?, rig.store.url.trim_start_matches("s3://"));
    let mut clients = Vec::new();
    for list in lists {
        let mut client = Command::new("curl").args(["--config", "-"]).stdin(Stdio::piped()).spawn()?;
        let requests = list.iter().map(|Asked { key, what }| {
            let what = match what {
                What::Get { offset, len_bytes } => format!("range = \"{offset}-{}\"", offset + len_bytes - 1),
                What::Put(path) => format!("upload-file = \"{}\"", path.display()),
            };
            format!(
                "url = \"{root}/{key}\"\n{what}\noutput = \"/dev/null\"\nfail\nsilent\nshow-error\naws-sigv4 = \"aws:amz:us-east-1:s3\"\n\
                 user = \"{user}\"\nheader = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\n"
            )
        });
        let requests = requests.collect::<Vec<_>>().join("next\n");
        client.stdin.take().ok_or("curl has no input")?.write_all(requests.as_bytes())?;
        clients.push(client);
    }
    for mut client in clients {
        let status = client.wait()?;
        if !status.success() {
            return Err(format!("curl: {status}").into());
        }
    }
    Ok(())
}

/// What the rows of this file need of the machine.
pub fn check() -> Outcome<()> {
    if tool::has("curl") { Ok(()) } else { Err("curl is missing: it reads objects beside ebb".into()) }
}
