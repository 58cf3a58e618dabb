//! References between pages, messages and tests resolve.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn of_project(path: &str) -> String {
    fs::read_to_string(project().join(path)).expect(path)
}

/// All files below `dir` whose name ends with `.{extension}`, by path inside the project.
fn files(dir: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(project().join(dir)).expect(dir) {
        let entry = entry.expect(dir);
        let path = format!("{dir}/{}", entry.file_name().to_str().expect(dir));
        if entry.file_type().expect(dir).is_dir() {
            found.extend(files(&path, extension));
        } else if path.ends_with(&format!(".{extension}")) {
            found.push(path);
        }
    }
    found
}

/// One row of a table of clauses.
struct Clause {
    page: String,
    id: String,
    text: String,
    shown_by: String,
}

/// Every row of `docs/semantics/*.md` whose first cell is an id such as S-29 or S-29a.
fn clauses() -> Vec<Clause> {
    let mut clauses = Vec::new();
    for page in files("docs/semantics", "md") {
        for line in of_project(&page).lines() {
            let Some(row) = line.strip_prefix("| S-") else { continue };
            let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
            let [id, text, shown_by] = cells[..] else {
                panic!("{page}: a clause has an id, a text and its tests: {line}")
            };
            clauses.push(Clause {
                page: page.clone(),
                id: format!("S-{id}"),
                text: text.to_owned(),
                shown_by: shown_by.to_owned(),
            });
        }
    }
    assert!(clauses.len() > 100, "docs/semantics has its clauses in tables");
    clauses
}

/// Every page, and all code.
fn sources() -> Vec<String> {
    let mut sources = pages();
    for dir in ["crates", "sim", "xtask"] {
        sources.extend(files(dir, "rs"));
    }
    sources
}

fn pages() -> Vec<String> {
    let mut pages =
        ["README.md", "ARCHITECTURE.md", "GLOSSARY.md", "CHANGELOG.md"].map(String::from).to_vec();
    pages.extend(files("docs", "md"));
    pages
}

/// Words such as S-29a: the prefix, digits, and an optional letter.
fn citations(text: &str, prefix: &str) -> BTreeSet<String> {
    let starts = text.match_indices(prefix).map(|(at, _)| at);
    let alone = starts.filter(|&at| !text[..at].ends_with(|before: char| before.is_alphanumeric()));
    let words = alone.map(|at| {
        let number = text[at + prefix.len()..].chars().take_while(char::is_ascii_alphanumeric);
        format!("{prefix}{}", number.collect::<String>())
    });
    words
        .filter(|word| word[prefix.len()..].starts_with(|first: char| first.is_ascii_digit()))
        .collect()
}

/// Texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn clauses_have_unique_ids_and_short_texts() {
    let mut seen = BTreeSet::new();
    for clause in clauses() {
        let Clause { page, id, text, .. } = &clause;
        assert!(seen.insert(id.clone()), "{page}: {id} is the id of another clause too");
        let sentences = text.matches(". ").count() + 1;
        assert!(sentences <= 3, "{page}: {id} has {sentences} sentences, of 3 at most");
    }
}

/// A clause names its tests as `file::test`, as a path, or as `cargo xtask NAME`.
#[test]
fn clauses_name_tests_that_exist() {
    let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dir in ["crates", "sim", "xtask"] {
        for path in files(dir, "rs") {
            for line in of_project(&path).lines() {
                let line = line.trim_start();
                let line = line.strip_prefix("async ").unwrap_or(line);
                let name = line.strip_prefix("fn ").and_then(|line| line.split_once('('));
                if let Some((name, _)) = name {
                    tests.entry(name.to_owned()).or_default().push(path.clone());
                }
            }
        }
    }
    let programs = of_project("xtask/src/main.rs");
    let mut missing = Vec::new();
    for Clause { page, id, shown_by, .. } in clauses() {
        let names: Vec<&str> = quoted(&shown_by).collect();
        assert!(!names.is_empty() || shown_by == "—", "{page}: {id} names no test: {shown_by}");
        for name in names {
            let exists = if let Some((file, test)) = name.split_once("::") {
                tests.get(test).is_some_and(|paths| {
                    paths.iter().any(|path| {
                        let path = path.trim_end_matches(".rs").trim_end_matches("/main");
                        path.split('/').any(|part| part == file)
                    })
                })
            } else if let Some(program) = name.strip_prefix("cargo xtask ") {
                let variant: String =
                    program.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
                let is_variant = |line: &str| {
                    line.trim_start()
                        .strip_prefix(&variant)
                        .is_some_and(|rest| rest.starts_with([' ', '(', ',']))
                };
                programs.lines().any(is_variant)
            } else {
                name.contains('/') && project().join(name).exists()
            };
            if !exists {
                missing.push(format!("{page}: {id}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "clauses name tests that do not exist: {missing:#?}");
}

/// Pages and comments cite clauses as S-29 or S-29a.
#[test]
fn cited_clauses_exist() {
    let ids: BTreeSet<String> = clauses().into_iter().map(|clause| clause.id).collect();
    for path in sources() {
        for id in citations(&of_project(&path), "S-") {
            assert!(ids.contains(&id), "{path} cites {id}, which is no clause");
        }
    }
}

/// Numbers such as O-55 or C-9 name mechanisms of papers, and `docs/mechanisms.md` explains each.
#[test]
fn cited_mechanisms_are_explained() {
    let page = of_project("docs/mechanisms.md");
    let explained: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    for path in sources() {
        let text = of_project(&path);
        for paper in ["O-", "L-", "H-", "C-", "D-"] {
            for cited in citations(&text, paper) {
                assert!(
                    explained.contains(cited.as_str()),
                    "{path} cites {cited}, which docs/mechanisms.md does not explain"
                );
            }
        }
    }
}

/// `[text](page#heading)` between pages of the project.
#[test]
fn links_between_pages_resolve() {
    for page in pages() {
        let text = of_project(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let target = target.0;
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let dir = Path::new(&page).parent().expect("a page has a directory");
            let linked = if file.is_empty() { PathBuf::from(&page) } else { dir.join(file) };
            assert!(project().join(&linked).exists(), "{page} links to {target}: no such file");
            if !heading.is_empty() {
                let linked = of_project(linked.to_str().expect("paths are UTF-8"));
                let mut anchors = linked
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .map(|line| anchor(line.trim_start_matches('#')));
                assert!(
                    anchors.any(|anchor| anchor == heading),
                    "{page} links to {target}: no such heading"
                );
            }
        }
    }
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || "-_".contains(letter) => {
            Some(letter.to_ascii_lowercase())
        }
        _ => None,
    });
    kept.collect()
}

/// Messages refer to these pages, and a release contains no other copy.
#[test]
fn a_release_has_the_pages_for_its_users() {
    let release = of_project("packaging/release");
    let copied = release.lines().find_map(|line| line.strip_prefix("cp docs/{")?.split_once('}'));
    let copied: Vec<&str> = copied.expect("the release copies pages").0.split(',').collect();
    for page in ["configuration", "limitations", "operation", "semantics"] {
        assert!(copied.contains(&page), "docs/{page}.md is not in a release");
    }
    assert!(release.contains("cp docs/semantics/*.md "), "docs/semantics is not in a release");
}
