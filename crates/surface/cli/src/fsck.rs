//! Reports of `ebb fsck`, as text and as JSON.

use ebb_model::{FsckReport, Remedy};
use serde_json::{Value, json};
use std::fmt::Write;

pub fn write(out: &mut String, report: &FsckReport) -> std::fmt::Result {
    let FsckReport { inodes, blocks, objects, pages, waiting, undecided, problems, others } =
        report;
    for problem in problems {
        writeln!(out, "PROBLEM {}", problem.what)?;
        if let Some(known) = &problem.remedy {
            writeln!(out, "        --repair {}", remedy(known))?;
        }
    }
    for what in others {
        writeln!(out, "changed by others: {what}")?;
    }
    if *waiting > 0 {
        writeln!(out, "{waiting} files, directories and deletes wait to be written to the bucket")?;
    }
    if *undecided > 0 {
        writeln!(
            out,
            "{undecided} objects below .ebb/ may belong to directories that are not loaded: they \
             are not judged"
        )?;
    }
    let in_bucket = if objects + pages > 0 {
        format!(", {objects} objects and {pages} pages in the bucket")
    } else {
        String::new()
    };
    let verdict = if problems.is_empty() { "no problem" } else { "NOT CLEAN" };
    writeln!(out, "{inodes} inodes, {blocks} blocks{in_bucket} checked: {verdict}")
}

pub fn json(report: &FsckReport) -> Value {
    let FsckReport { inodes, blocks, objects, pages, waiting, undecided, problems, others } =
        report;
    json!({
        "inodes": inodes,
        "blocks": blocks,
        "objects": objects,
        "pages": pages,
        "waiting": waiting,
        "undecided": undecided,
        "problems": problems.iter().map(|problem| json!({
            "what": problem.what,
            "remedy": problem.remedy.as_ref().map(remedy),
        })).collect::<Vec<_>>(),
        "others": others,
    })
}

/// The repair that `ebb fsck --repair` does.
pub fn remedy(remedy: &Remedy) -> &'static str {
    match remedy {
        Remedy::Refetch { .. } => "fetches it again from the bucket",
        Remedy::SendAgain { .. } => "sends it to the bucket again",
        Remedy::Delete { .. } => "deletes it",
        Remedy::Remove { .. } => "removes it",
        Remedy::Snapshot => {
            "writes a snapshot of what is known, which is all, and goes on in a new segment where \
             the log is damaged"
        }
    }
}
