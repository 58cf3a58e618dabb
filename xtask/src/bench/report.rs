//! Results, as text and as JSON.

use super::place::{Column, Places};
use super::plot::{self, Panel, Point};
use super::quiet::Busy;
use super::tables::{Bound, Goal, Row, Table};
use super::{Outcome, Peers, commit, tool};
use crate::name_of;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One row, with the measurement of each round.
pub struct Taken {
    pub row: &'static Row,
    cells: Vec<(Column, Vec<f64>)>,
    /// Failures of peers, with reasons.
    failures: Vec<(Column, String)>,
}

impl Taken {
    /// A row with columns for the available peers.
    pub fn of(row: &'static Row, peers: &[(Column, String)]) -> Taken {
        let there = row
            .columns
            .iter()
            .filter(|column| !column.is_peer() || peers.iter().any(|(peer, _)| peer == *column));
        Taken {
            row,
            cells: there.map(|column| (*column, Vec::new())).collect(),
            failures: Vec::new(),
        }
    }

    /// Columns that are still measured.
    pub fn columns(&self) -> Vec<Column> {
        self.cells.iter().map(|(column, _)| *column).collect()
    }

    pub fn add(&mut self, column: Column, value: f64) {
        if let Some((_, values)) = self.cells.iter_mut().find(|(there, _)| *there == column) {
            values.push(value);
        }
    }

    /// Drops the earlier measurements of this column, which would mislead.
    pub fn fail(&mut self, column: Column, why: String) {
        self.cells.retain(|(there, _)| *there != column);
        self.failures.push((column, brief(&why)));
    }

    fn spread(&self, column: Column) -> Option<Spread> {
        self.cells
            .iter()
            .find(|(there, _)| *there == column)
            .and_then(|(_, values)| Spread::of(values))
    }

    /// ebb's median relative to the best column of a goal, and that column.
    fn ratio(&self, goal: &Goal) -> Option<(Column, f64)> {
        let ours = self.spread(Column::Ebb)?.median;
        let ratios = goal
            .against
            .iter()
            .filter_map(|column| Some((*column, ours / self.spread(*column)?.median)));
        let by_ratio = |one: &(Column, f64), other: &(Column, f64)| one.1.total_cmp(&other.1);
        match goal.bound {
            Bound::AtLeast(_) => ratios.min_by(by_ratio),
            Bound::AtMost(_) => ratios.max_by(by_ratio),
        }
    }

    /// All goals with a column to compare with.
    fn reached(&self) -> Vec<Reached> {
        let reached = |goal: &Goal| {
            self.ratio(goal).map(|(against, ratio)| Reached { against, ratio, bound: goal.bound })
        };
        self.row.goals.iter().filter_map(reached).collect()
    }
}

struct Reached {
    against: Column,
    ratio: f64,
    bound: Bound,
}

#[derive(PartialEq, Debug)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Spread { least, median: (lower + upper) / 2.0, most })
    }
}

pub struct Report {
    table: Table,
    rounds: u16,
    taken: Vec<Taken>,
    columns: Vec<Column>,
    busy: bool,
    /// The largest share of the machine that other processes used.
    others: f64,
    machine: Vec<(&'static str, String)>,
    /// Requested peers that were not available.
    absent: Vec<(Column, String)>,
}

impl Report {
    pub fn new(
        table: Table,
        rounds: u16,
        taken: Vec<Taken>,
        peers: Peers,
        busy: &Busy,
        places: &Places,
    ) -> Outcome<Report> {
        let said = |program: &str, args: &[&str]| {
            tool::output(Command::new(program).args(args)).map(|text| text.trim().to_owned())
        };
        let mut machine = vec![
            ("date", said("date", &["-u", "+%F"])?),
            ("commit", commit(&tool::root())?),
            ("kernel", said("uname", &["-r"])?),
            ("processors", std::thread::available_parallelism()?.to_string()),
            ("L3", last_cache()),
            ("native", places.native_kind()?),
        ];
        if pages_out() {
            machine.push(("DAMON", "pages out what looks unused".into()));
        }
        machine.extend(peers.there.into_iter().map(|(column, version)| (column.name(), version)));
        let columns: BTreeSet<Column> =
            taken.iter().flat_map(|taken| taken.cells.iter().map(|(column, _)| *column)).collect();
        let columns = columns.into_iter().collect();
        Ok(Report {
            table,
            rounds,
            taken,
            columns,
            busy: busy.is_busy(),
            others: busy.worst(),
            machine,
            absent: peers.absent,
        })
    }

    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let said: Vec<String> =
            self.machine.iter().map(|(what, value)| format!("{what} {value}")).collect();
        // Writing to a string cannot fail.
        let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
        line(format!("## {}\n", name_of(self.table)));
        if self.busy {
            line(format!(
                "**Taken on a busy machine: others had {:.0} % of it. Not for publication.**\n",
                100.0 * self.others
            ));
        }
        line(format!("{}; median (least–most) of {} rounds.\n", said.join(", "), self.rounds));
        let note = self.table.setup().note;
        if !note.is_empty() {
            line(format!("{note}\n"));
        }
        let names: Vec<&str> = self.columns.iter().map(|column| column.name()).collect();
        let with_goals = self.taken.iter().any(|taken| !taken.row.goals.is_empty());
        let goals = if with_goals { " of ebb | goal |" } else { "" };
        line(format!("| | unit | {} |{goals}", names.join(" | ")));
        line(format!(
            "|---|---|{}{}",
            "---|".repeat(names.len()),
            if with_goals { "---|---|" } else { "" }
        ));
        for taken in &self.taken {
            let cells = self.columns.iter().map(|column| {
                taken.spread(*column).map(|spread| shown(&spread)).unwrap_or_default()
            });
            let cells: Vec<String> = cells.collect();
            let reached = taken.reached();
            let ratio = |Reached { against, ratio, bound }: &Reached| {
                let missed = if bound.is_met(*ratio) { "" } else { " (missed)" };
                format!("{ratio:.2} × {}{missed}", against.name())
            };
            let lines = |of: &dyn Fn(&Reached) -> String| {
                reached.iter().map(of).collect::<Vec<_>>().join("<br>")
            };
            let goal = match with_goals {
                true => {
                    format!(" {} | {} |", lines(&ratio), lines(&|reached| bound(reached.bound)))
                }
                false => String::new(),
            };
            line(format!(
                "| {} | {} | {} |{goal}",
                taken.row.name,
                taken.row.unit,
                cells.join(" | ")
            ));
        }
        line(String::new());
        for (column, why) in &self.absent {
            line(format!("- {} is not here: {why}.", column.name()));
        }
        for (row, column, why) in self.failures() {
            line(format!("- {} could not do \"{row}\": {why}.", column.name()));
        }
        text
    }

    fn failures(&self) -> impl Iterator<Item = (&'static str, Column, &str)> {
        self.taken.iter().flat_map(|taken| {
            taken.failures.iter().map(|(column, why)| (taken.row.name, *column, why.as_str()))
        })
    }

    pub fn json(&self) -> Outcome<String> {
        let rows: Vec<Value> = self.taken.iter().map(|taken| self.row(taken)).collect();
        let columns: Vec<Value> = self
            .columns
            .iter()
            .map(|column| json!({"name": column.name(), "is": column.explained()}))
            .collect();
        let absent: Vec<Value> = self
            .absent
            .iter()
            .map(|(column, why)| json!({"name": column.name(), "why": why}))
            .collect();
        let failures: Vec<Value> = self
            .failures()
            .map(|(row, column, why)| json!({"row": row, "name": column.name(), "why": why}))
            .collect();
        let machine: serde_json::Map<String, Value> =
            self.machine.iter().map(|(what, value)| (what.to_string(), json!(value))).collect();
        let whole = json!({
            "table": name_of(self.table), "note": self.table.setup().note, "busy": self.busy, "others": self.others, "rounds": self.rounds,
            "machine": machine, "columns": columns, "absent": absent, "failures": failures, "rows": rows,
        });
        Ok(serde_json::to_string_pretty(&whole)? + "\n")
    }

    fn row(&self, taken: &Taken) -> Value {
        let cells: serde_json::Map<String, Value> = taken
            .cells
            .iter()
            .filter_map(|(column, values)| {
                let Spread { least, median, most } = Spread::of(values)?;
                Some((
                    column.name().to_owned(),
                    json!({"median": median, "least": least, "most": most, "values": values}),
                ))
            })
            .collect();
        let goal = |Reached { against, ratio, bound: of }: Reached| json!({"against": against.name(), "bound": bound(of), "ratio": ratio, "met": of.is_met(ratio)});
        let goals: Vec<Value> = taken.reached().into_iter().map(goal).collect();
        json!({"name": taken.row.name, "unit": taken.row.unit, "cells": cells, "goals": goals})
    }

    fn plot(&self) -> String {
        let point = |taken: &Taken, column: Column| {
            Some(Point {
                name: column.name(),
                spread: taken.spread(column)?,
                ours: column == Column::Ebb,
            })
        };
        let points = |taken: &Taken| {
            self.columns.iter().filter_map(|column| point(taken, *column)).collect()
        };
        let panels = self.taken.iter().map(|taken| Panel {
            name: taken.row.name,
            unit: taken.row.unit,
            points: points(taken),
        });
        plot::svg(&name_of(self.table), &panels.collect::<Vec<_>>())
    }

    /// Replaces the table in a page, and writes its plot into a directory with the page's name.
    pub fn publish(&self, path: &Path) -> Outcome<()> {
        let page = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let (plots, name) = (path.with_extension(""), name_of(self.table));
        let directory = plots.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("{}\n![The same as a plot]({directory}/{name}.svg)\n", self.markdown());
        let page = replaced(&page, &name, &text)
            .ok_or_else(|| format!("{} has no place for the table {name}", path.display()))?;
        std::fs::create_dir_all(&plots)?;
        std::fs::write(plots.join(format!("{name}.svg")), self.plot())?;
        Ok(std::fs::write(path, page)?)
    }
}

/// The page with `text` between the marks of the table.
fn replaced(page: &str, table: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- bench {table} -->\n"), format!("<!-- end {table} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

/// Size of the shared processor cache; empty if the kernel does not report it.
fn last_cache() -> String {
    let said = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    said.map_or_else(|_| "unknown".into(), |size| size.trim().to_owned())
}

/// Whether DAMON reclaims idle memory on this machine, which includes the page cache.
fn pages_out() -> bool {
    let Ok(kdamonds) = std::fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds") else {
        return false;
    };
    let says = |path: PathBuf, what: &str| {
        std::fs::read_to_string(path).is_ok_and(|said| said.trim() == what)
    };
    kdamonds.flatten().map(|kdamond| kdamond.path()).any(|kdamond| {
        says(kdamond.join("state"), "on")
            && says(kdamond.join("contexts/0/schemes/0/action"), "pageout")
    })
}

fn shown(spread: &Spread) -> String {
    let [least, median, most] = [spread.least, spread.median, spread.most].map(figures);
    format!("{median} ({least}–{most})")
}

/// Three significant digits.
pub fn figures(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(least) => format!("≥ {least}"),
        Bound::AtMost(most) => format!("≤ {most}"),
    }
}

/// Prefix of a run's directories.
const SCRATCH: &str = "/ebb-bench-";

/// The first line of an error, with paths relative to the run's directory, so that it can be
/// published.
fn brief(why: &str) -> String {
    let line = why.lines().next().unwrap_or_default();
    let words = line.split(' ').map(|word| {
        match word.split_once(SCRATCH).and_then(|(_, rest)| rest.split_once('/')) {
            Some((_, below)) => below.replace('"', ""),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_without_paths_of_the_machine() {
        let why = "\"tar\" \"--file=-\" \"/var/x/ebb-bench-17/GeeseFS/mnt/tree\": exit status: \
            1\nmany bytes";
        assert_eq!(brief(why), "\"tar\" \"--file=-\" GeeseFS/mnt/tree: exit status: 1");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(
            Spread::of(&[3.0, 1.0, 2.0]),
            Some(Spread { least: 1.0, median: 2.0, most: 3.0 })
        );
        assert_eq!(Spread::of(&[4.0, 1.0]), Some(Spread { least: 1.0, median: 2.5, most: 4.0 }));
    }

    const fn row(goals: &'static [Goal]) -> Row {
        const COLUMNS: &[Column] = &[Column::Native, Column::Ebb, Column::S3fs, Column::Rclone];
        Row { name: "row", unit: "s", columns: COLUMNS, goals, measure: |_, _| Ok(0.0) }
    }

    const PEERS: &[Column] = &[Column::S3fs, Column::Rclone];

    fn there(peers: &[Column]) -> Vec<(Column, String)> {
        peers.iter().map(|peer| (*peer, "1.0".to_owned())).collect()
    }

    /// ebb has 10, s3fs 2 and rclone 5.
    fn best(row: &'static Row, peers: &[Column]) -> Vec<(Column, f64)> {
        let mut taken = Taken::of(row, &there(peers));
        for (column, value) in [(Column::Ebb, 10.0), (Column::S3fs, 2.0), (Column::Rclone, 5.0)] {
            taken.add(column, value);
        }
        taken.reached().iter().map(|reached| (reached.against, reached.ratio)).collect()
    }

    #[test]
    fn the_best_of_those_that_are_there_is_what_counts() {
        static RATE: Row = row(&[Goal { against: PEERS, bound: Bound::AtLeast(1.0) }]);
        static TIME: Row = row(&[Goal { against: PEERS, bound: Bound::AtMost(1.0) }]);
        assert_eq!(
            (best(&RATE, PEERS), best(&TIME, PEERS)),
            (vec![(Column::Rclone, 2.0)], vec![(Column::S3fs, 5.0)])
        );
        assert_eq!(best(&RATE, &[Column::S3fs]), [(Column::S3fs, 5.0)]);
        assert_eq!(best(&RATE, &[]), []);
    }

    #[test]
    fn a_peer_that_has_failed_is_left_out() {
        static ROW: Row = row(&[]);
        let mut taken = Taken::of(&ROW, &there(&[Column::Rclone]));
        assert_eq!(taken.columns(), [Column::Native, Column::Ebb, Column::Rclone]);
        taken.add(Column::Rclone, 1.0);
        taken.fail(Column::Rclone, "why".into());
        assert_eq!(taken.columns(), [Column::Native, Column::Ebb]);
        assert_eq!(taken.spread(Column::Rclone), None);
    }

    #[test]
    fn a_table_replaces_its_own_older_one() {
        let page = "a\n<!-- bench files -->\nold\n<!-- end files -->\n<!-- bench limits \
            -->\nkept\n<!-- end limits -->\n";
        let expected = "a\n<!-- bench files -->\nnew\n<!-- end files -->\n<!-- bench limits \
            -->\nkept\n<!-- end limits -->\n";
        assert_eq!(replaced(page, "files", "new\n").as_deref(), Some(expected));
        assert_eq!(replaced(page, "metadata", "new\n"), None);
    }

    #[test]
    fn goals_are_bounds() {
        assert!(Bound::AtLeast(0.9).is_met(0.9) && !Bound::AtLeast(0.9).is_met(0.89));
        assert!(Bound::AtMost(1.2).is_met(1.2) && !Bound::AtMost(1.2).is_met(1.3));
        assert!(!Bound::AtLeast(0.9).is_met(f64::NAN) && !Bound::AtMost(1.2).is_met(f64::NAN));
    }

    #[test]
    fn three_figures() {
        assert_eq!([1234.6, 12.34, 1.234, 0.1234].map(figures), ["1235", "12.3", "1.23", "0.123"]);
    }
}
