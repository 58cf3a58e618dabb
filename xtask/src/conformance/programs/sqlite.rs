//! SQLite: two processes write to one database and are killed in turn. Every acknowledged
//! transaction is present afterwards, and no partial one.

use crate::rng::Rng;
use crate::{Outcome, tool};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Journal modes: a rollback journal that is deleted, truncated or overwritten, and a write-ahead
/// log with an index in shared memory.
const JOURNALS: [&str; 4] = ["delete", "truncate", "persist", "wal"];

const WRITERS: u64 = 2;

/// The last acknowledged transaction of each writer.
type Answered = BTreeMap<u64, u64>;

pub fn prepare() -> Outcome<()> {
    tool::debian(Path::new("/usr/bin/sqlite3"), "sqlite3")
}

pub fn work(dir: &Path, kills: u32) -> Outcome<()> {
    let mut rng = Rng(1);
    for journal in JOURNALS {
        let database = dir.join(journal);
        ask(&database, &format!("pragma journal_mode = {journal}"))?;
        ask(
            &database,
            "create table entry (writer, number, content, primary key (writer, number))",
        )?;
        ask(&database, "create table total (writer primary key, entries)")?;
        let mut answered = Answered::new();
        for writer in 0..WRITERS {
            ask(&database, &format!("insert into total values ({writer}, 0)"))?;
            answered.insert(writer, 0);
        }
        for round in 0..kills {
            let at = |error| format!("journal {journal}, round {round}: {error}");
            kill_writers(&database, &mut answered, &mut rng).map_err(at)?;
            check(&database, &mut answered).map_err(at)?;
        }
        ask(&database, "delete from entry where number % 3 = 0")?;
        ask(
            &database,
            "update total set entries = (select count(*) from entry where entry.writer = \
             total.writer)",
        )?;
        ask(&database, "vacuum")?;
        sound(&database)?;
    }
    Ok(())
}

pub fn look_again(dir: &Path) -> Outcome<()> {
    JOURNALS.iter().try_for_each(|journal| sound(&dir.join(journal)))
}

/// Starts the writers where they stopped, and kills one of them while the others write.
fn kill_writers(database: &Path, answered: &mut Answered, rng: &mut Rng) -> Outcome<()> {
    let mut running: Vec<(u64, Child)> = answered
        .iter()
        .map(|(writer, last)| Ok((*writer, start(database, *writer, *last)?)))
        .collect::<Outcome<_>>()?;
    if rng.below(2) == 0 {
        running.reverse();
    }
    for (writer, mut child) in running {
        std::thread::sleep(Duration::from_millis(30 + rng.below(200)));
        let ended = child.try_wait()?;
        // It may have ended in between.
        child.kill().ok();
        let (mut said, mut complained) = (String::new(), String::new());
        child.stdout.take().ok_or("no output")?.read_to_string(&mut said)?;
        child.stderr.take().ok_or("no errors")?.read_to_string(&mut complained)?;
        child.wait()?;
        if ended.is_some() || !complained.is_empty() {
            return Err(format!(
                "writer {writer} ended by itself ({ended:?}): {}",
                complained.trim()
            )
            .into());
        }
        // An incomplete last line is no acknowledgement.
        let whole = said.rfind('\n').map_or("", |end| &said[..end]);
        if let Some(last) = whole.lines().last() {
            answered.insert(writer, last.trim().parse()?);
        }
    }
    Ok(())
}

/// Starts a process that writes one transaction after the other and prints the number of each
/// committed one. Some spill pages to the database before they commit.
fn start(database: &Path, writer: u64, last: u64) -> Outcome<Child> {
    // Line-buffered, so that every acknowledgement is printed.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "sqlite3", "-batch", "-bail"]).arg(database);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = child.stdin.take().ok_or("no input")?;
    std::thread::spawn(move || {
        let mut feed = || -> std::io::Result<()> {
            writeln!(lines, ".timeout 20000\npragma cache_size = 20; pragma synchronous = full;")?;
            for number in last + 1.. {
                let len = if number % 10 == 0 { 400_000 } else { 3_000 };
                writeln!(lines, "begin immediate;")?;
                writeln!(
                    lines,
                    "insert into entry values ({writer}, {number}, randomblob(abs(random()) % \
                     {len}));"
                )?;
                writeln!(lines, "update total set entries = entries + 1 where writer = {writer};")?;
                writeln!(
                    lines,
                    "delete from entry where writer = {writer} and number = {number} - 200;"
                )?;
                writeln!(
                    lines,
                    "update total set entries = entries - 1 where writer = {writer} and {number} > \
                     200;"
                )?;
                writeln!(lines, "commit; select {number};")?;
            }
            Ok(())
        };
        // Until the process is killed.
        feed().ok();
    });
    Ok(child)
}

/// Checks that every acknowledged transaction is present, and at most one more, which was in
/// flight.
fn check(database: &Path, answered: &mut Answered) -> Outcome<()> {
    sound(database)?;
    for (writer, last) in answered {
        let found = ask(
            database,
            &format!("select coalesce(max(number), 0) from entry where writer = {writer}"),
        )?
        .trim()
        .parse()?;
        if found != *last && found != *last + 1 {
            return Err(format!(
                "writer {writer} was answered {last} transactions, {found} are there"
            )
            .into());
        }
        *last = found;
    }
    Ok(())
}

fn sound(database: &Path) -> Outcome<()> {
    let said = ask(database, "pragma integrity_check")?;
    if said.trim() != "ok" {
        return Err(format!("{}: {}", database.display(), said.trim()).into());
    }
    let halves = "select writer from total where entries <> (select count(*) from entry where \
        entry.writer = total.writer)";
    match ask(database, halves)?.trim() {
        "" => Ok(()),
        writers => {
            Err(format!("{}: half a transaction of writers {writers}", database.display()).into())
        }
    }
}

fn ask(database: &Path, sql: &str) -> Outcome<String> {
    tool::output(
        Command::new("sqlite3")
            .args(["-batch", "-bail"])
            .arg(database)
            .arg(sql)
            .stdin(Stdio::null()),
    )
}
