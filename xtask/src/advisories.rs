//! Security advisories: no package of `Cargo.lock` has a version that an advisory affects.
//!
//! CI machines may not reach the RustSec database, so its verdict on our packages is recorded in
//! `advisories.toml`; a package without a record is an error. `--database DIR`, a checkout of the
//! database, writes the file anew. `deny.toml` lists accepted advisories with their reasons, in
//! cargo-deny's format.

use crate::{Outcome, tool};
use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Serialize, Deserialize)]
struct Known {
    /// Date of the database's last change.
    database: String,
    /// Packages without advisories.
    silent: BTreeSet<String>,
    /// By package, then by advisory id.
    advisories: BTreeMap<String, BTreeMap<String, Affects>>,
}

/// Versions that an advisory excludes.
#[derive(Serialize, Deserialize)]
struct Affects {
    #[serde(default)]
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

#[derive(Deserialize)]
struct Deny {
    advisories: Accepted,
}

#[derive(Deserialize)]
struct Accepted {
    ignore: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    id: String,
    /// An exception without a reason is an error.
    #[expect(dead_code, reason = "for the reader of deny.toml")]
    reason: String,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: Version,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    advisory: Heading,
    versions: Affects,
}

#[derive(Deserialize)]
struct Heading {
    id: String,
    withdrawn: Option<String>,
}

pub fn run(database: Option<PathBuf>) -> Outcome<()> {
    let lock: Lock = toml::from_str(&fs::read_to_string(tool::root().join("Cargo.lock"))?)?;
    let packages: Vec<Package> =
        lock.package.into_iter().filter(|package| package.source.is_some()).collect();
    let file = tool::root().join("advisories.toml");
    if let Some(database) = database {
        fs::write(&file, toml::to_string(&look_up(&packages, &database)?)?)?;
    }
    let known: Known = toml::from_str(&fs::read_to_string(&file)?)?;
    let deny: Deny = toml::from_str(&fs::read_to_string(tool::root().join("deny.toml"))?)?;
    let accepted = deny.advisories.ignore.into_iter().map(|exception| exception.id).collect();
    let wrong: Vec<String> =
        packages.iter().filter_map(|package| verdict(package, &known, &accepted)).collect();
    if wrong.is_empty() {
        println!(
            "{} packages, none at a version that an advisory of before {} speaks of",
            packages.len(),
            known.database
        );
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

/// The reason to refuse a package, if there is one.
fn verdict(package: &Package, known: &Known, accepted: &BTreeSet<String>) -> Option<String> {
    let Package { name, version, .. } = package;
    let Some(advisories) = known.advisories.get(name) else {
        return (!known.silent.contains(name)).then(|| {
            format!(
                "{name} has not been looked up: cargo xtask advisories --database \
                <checkout of the RustSec database>"
            )
        });
    };
    let clear = |affects: &Affects| {
        affects.patched.iter().chain(&affects.unaffected).any(|versions| versions.matches(version))
    };
    let hit: Vec<&str> = advisories
        .iter()
        .filter(|(id, affects)| !clear(affects) && !accepted.contains(*id))
        .map(|(id, _)| id.as_str())
        .collect();
    (!hit.is_empty()).then(|| format!("{name} {version}: {}", hit.join(", ")))
}

fn look_up(packages: &[Package], database: &Path) -> Outcome<Known> {
    let changed = tool::output(Command::new("git").arg("-C").arg(database).args([
        "log",
        "-1",
        "--format=%cs",
    ]))?;
    let mut known = Known {
        database: changed.trim().into(),
        silent: BTreeSet::new(),
        advisories: BTreeMap::new(),
    };
    for Package { name, .. } in packages {
        let place = database.join("crates").join(name);
        if !place.is_dir() {
            known.silent.insert(name.clone());
            continue;
        }
        for file in fs::read_dir(place)? {
            let entry = parse(&fs::read_to_string(file?.path())?)?;
            if entry.advisory.withdrawn.is_none() {
                known
                    .advisories
                    .entry(name.clone())
                    .or_default()
                    .insert(entry.advisory.id, entry.versions);
            }
        }
        if !known.advisories.contains_key(name) {
            known.silent.insert(name.clone());
        }
    }
    Ok(known)
}

/// An advisory is Markdown with a TOML header.
fn parse(text: &str) -> Outcome<Entry> {
    let heading = text
        .split("```toml")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .ok_or("an advisory has no heading")?;
    Ok(toml::from_str(heading)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "```toml\n[advisory]\nid = \"RUSTSEC-1\"\npackage = \
        \"a\"\n\n[versions]\npatched = [\">= 1.2.0\"]\nunaffected = [\"< 1.0.0\"]\n```\n# A bug\n";

    fn verdict_on(name: &str, version: &str) -> Option<String> {
        verdict_with(name, version, &[])
    }

    fn verdict_with(name: &str, version: &str, accepted: &[&str]) -> Option<String> {
        let Entry { advisory, versions } = parse(TEXT).unwrap();
        let advisories = BTreeMap::from([("a".into(), BTreeMap::from([(advisory.id, versions)]))]);
        let known = Known {
            database: "2026-01-01".into(),
            silent: BTreeSet::from(["b".into()]),
            advisories,
        };
        verdict(
            &Package { name: name.into(), version: version.parse().unwrap(), source: None },
            &known,
            &accepted.iter().map(|id| (*id).into()).collect(),
        )
    }

    #[test]
    fn an_accepted_advisory_is_no_error() {
        assert_eq!(verdict_with("a", "1.1.9", &["RUSTSEC-1"]), None);
        assert!(verdict_with("a", "1.1.9", &["RUSTSEC-2"]).is_some());
    }

    #[test]
    fn a_version_that_an_advisory_speaks_of_is_named() {
        assert_eq!(verdict_on("a", "1.1.9").unwrap(), "a 1.1.9: RUSTSEC-1");
        assert_eq!(verdict_on("a", "1.2.0"), None);
        assert_eq!(verdict_on("a", "0.9.0"), None);
    }

    #[test]
    fn a_package_that_nobody_has_looked_up_is_an_error() {
        assert_eq!(verdict_on("b", "1.0.0"), None);
        assert!(verdict_on("c", "1.0.0").unwrap().contains("not been looked up"));
    }
}
