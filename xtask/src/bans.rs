//! What core, node and client must not touch: time, chance, threads, files
//! and sockets come to them through ports, so that a simulation can repeat a run.
//!
//! A scan for words, because clippy's lists hold for a whole workspace and adapters need
//! what is banned here. Tests may do as they like.

use crate::{Outcome, tool};
use std::fs;
use std::path::{Path, PathBuf};

/// Where, what, and why not.
const BANS: &[(&[&str], &[&str])] = &[
    (
        &["model", "format", "core", "node", "client"],
        &[
            "Instant::now",
            "SystemTime",
            "std::time::Instant",
            "thread_rng",
            "rand::",
            "std::thread",
            "thread::spawn",
            "tokio::",
            "std::fs",
            "std::net",
            "std::process",
            "std::env::",
            "HashMap",
            "HashSet",
            "RandomState",
            "libc::",
        ],
    ),
    (
        &["model", "format", "core"],
        &["ebb_ports", "async fn", ".await", "std::io::Read", "std::io::Write"],
    ),
];

pub fn run() -> Outcome<()> {
    let mut found = Vec::new();
    let mut files = 0;
    for (crates, words) in BANS {
        for name in *crates {
            for file in sources(&tool::root().join("crates").join(name).join("src"))? {
                files += 1;
                let text = fs::read_to_string(&file)?;
                found.extend(offences(&text, words).map(|(line, word)| {
                    format!(
                        "{}:{line}: {word} is banned here",
                        file.strip_prefix(tool::root()).unwrap_or(&file).display()
                    )
                }));
            }
        }
    }
    if found.is_empty() {
        println!("{files} files keep to the ports");
        return Ok(());
    }
    Err(found.join("\n").into())
}

/// Comments may name what code may not use.
fn offences<'a>(text: &'a str, words: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    let code = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or("")));
    code.flat_map(move |(number, line)| {
        words.iter().filter(move |word| holds(line, word)).map(move |word| (number, *word))
    })
}

/// Whether the word is there, and not as a part of a longer one.
fn holds(line: &str, word: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) =
            (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let longer_before = word.starts_with(in_name) && before.is_some_and(in_name);
        let longer_after = word.ends_with(in_name) && after.is_some_and(in_name);
        !longer_before && !longer_after
    })
}

/// `tests.rs` and `tests/` are not part of the product.
fn sources(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_test {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !is_test {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #[test]
    fn code_is_found_and_comments_are_not() {
        let text = "use std::fs;\n// std::fs\nlet x = 1; // HashMap\nlet y: HashMap<u8, \
            u8>;\nNoHashMap, HashMaps\n";
        let found: Vec<_> = super::offences(text, &["std::fs", "HashMap"]).collect();
        assert_eq!(found, [(1, "std::fs"), (4, "HashMap")]);
    }
}
