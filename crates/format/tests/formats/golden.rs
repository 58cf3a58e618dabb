//! Bytes that a released version can have written must stay readable for ever. So the bytes of
//! sample values are kept under `golden/`, one line each: name, hex, and meaning. A line that
//! decodes or encodes differently means that the format has changed: give it a new version and keep
//! reading the old one. `EBB_REGENERATE_GOLDEN=1 cargo test -p ebb-format` adds lines for new
//! variants and replaces lines that no longer match. After a release only additions are allowed.

use crate::samples::{self, Draw};
use crate::{backup, encryption, head, identity, page, record, rpc, segment, snapshot, versions};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// Situation: a node reads a log, snapshot or bucket of an earlier build, or talks to an earlier
/// build. Danger: a change of a type has silently moved a field. Expectation: the same bytes with
/// the same meaning.
#[test]
fn bytes_are_those_of_the_golden_files() {
    check("record", record::golden(), record::reread);
    check("segment", segment::golden(), segment::reread);
    check("snapshot", snapshot::golden(), snapshot::reread);
    check("rpc", rpc::golden(), rpc::reread);
    check("versions", versions::golden(), versions::reread);
    check("page", page::golden(), page::reread);
    check("page-piece", page::golden_piece(), page::reread_piece);
    check("head", head::golden(), head::reread);
    check("identity", identity::golden(), identity::reread);
    check("wrapped-key", encryption::golden_key(), encryption::reread_key);
    check("backup", backup::golden(), backup::reread);
    check("encrypted-file", encryption::golden_header(), encryption::reread_header);
}

/// Lines of release 0.1.0 in a format that has another version since: they are read, and no longer
/// written.
#[test]
fn bytes_of_release_0_1_0_are_read() {
    check_old("head-0.1.0", head::meaning);
    check_old("identity-0.1.0", identity::meaning);
    check_old("snapshot-0.1.0", snapshot::meaning);
}

fn check_old(format: &str, meaning: fn(&[u8]) -> Option<String>) {
    let golden = std::fs::read_to_string(path_of(format)).expect("the golden file exists");
    for line in golden.lines() {
        let (_, rest) = line.split_once(' ').expect("a line begins with a name");
        let (bytes, expected) = rest.split_once(' ').expect("the meaning follows the bytes");
        let bytes = from_hex(bytes).expect("the bytes are in hexadecimal");
        assert_eq!(meaning(&bytes).as_deref(), Some(expected), "{format}");
    }
}

#[test]
fn every_variant_has_a_sample() {
    let mut draw = Draw(0);
    let names = |names: Vec<&'static str>| names.into_iter().collect::<BTreeSet<_>>();
    let listed = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(
        names(draw.payloads().iter().map(samples::payload_name).collect()),
        listed(samples::PAYLOADS)
    );
    assert_eq!(
        names(draw.messages().iter().map(samples::message_name).collect()),
        listed(&[samples::MESSAGES, samples::MUTATIONS].concat())
    );
    assert_eq!(
        names(draw.installed_kinds().iter().map(samples::installed_name).collect()),
        listed(samples::INSTALLED)
    );
    assert_eq!(
        names(samples::ALL_KINDS.iter().map(samples::kind_name).collect()),
        listed(samples::KINDS)
    );
}

/// Numbers the samples that share a name.
pub fn named(samples: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut seen = BTreeMap::new();
    let number = |(name, bytes): (&'static str, Vec<u8>)| {
        let count = seen.entry(name).and_modify(|count| *count += 1).or_insert(1);
        (format!("{name}-{count}"), bytes)
    };
    samples.into_iter().map(number).collect()
}

/// Meaning of the bytes and their current encoding; `None` if decoding fails.
pub type Reread = fn(&[u8]) -> Option<(String, Vec<u8>)>;

fn check(format: &str, samples: Vec<(String, Vec<u8>)>, reread: Reread) {
    let path = path_of(format);
    let regenerate = std::env::var_os("EBB_REGENERATE_GOLDEN").is_some();
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        if regenerate { String::new() } else { panic!("{format}: {error}") }
    });

    let holds = |line: &str| {
        let mut fields = line.splitn(3, ' ').skip(1);
        let bytes = from_hex(fields.next()?)?;
        let (meaning, again) = reread(&bytes)?;
        (fields.next() == Some(meaning.as_str()) && again == bytes).then_some(())
    };
    let mut kept: BTreeMap<&str, String> = BTreeMap::new();
    for line in golden.lines() {
        assert!(
            regenerate || holds(line).is_some(),
            "{format}: no longer read or written as it was: {line}"
        );
        if holds(line).is_some() {
            kept.insert(line.split(' ').next().unwrap_or_default(), line.to_string());
        }
    }
    let mut text = String::new();
    for (name, bytes) in samples {
        assert!(
            regenerate || kept.contains_key(name.as_str()),
            "{format}: {name} has no golden line"
        );
        let (meaning, again) = reread(&bytes).expect("the encoding decodes");
        assert_eq!(again, bytes, "{format}: {name}");
        let line = kept
            .remove(name.as_str())
            .unwrap_or_else(|| format!("{name} {} {meaning}", to_hex(&bytes)));
        text.push_str(&line);
        text.push('\n');
    }
    assert!(
        regenerate || kept.is_empty(),
        "{format}: golden lines without a sample: {:?}",
        kept.keys()
    );
    if regenerate {
        std::fs::write(&path, text).expect("the golden directory is writable");
    }
}

fn path_of(format: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{format}.txt"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("strings take everything");
        hex
    })
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
}
