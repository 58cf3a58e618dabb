//! What came out, for people and for programs.

use super::place::{Column, Places};
use super::plot::{self, Panel, Point};
use super::quiet::Busy;
use super::tables::{self, Bound, Goal, Row, Table};
use super::{Outcome, commit, tool};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// One row, with what was measured in each round.
pub struct Taken {
    row: &'static Row,
    cells: Vec<(Column, Vec<f64>)>,
}

impl Taken {
    pub fn of(row: &'static Row) -> Taken {
        Taken { row, cells: row.columns.iter().map(|column| (*column, Vec::new())).collect() }
    }

    pub fn add(&mut self, column: Column, value: f64) {
        if let Some((_, values)) = self.cells.iter_mut().find(|(there, _)| *there == column) {
            values.push(value);
        }
    }

    fn spread(&self, column: Column) -> Option<Spread> {
        self.cells.iter().find(|(there, _)| *there == column).and_then(|(_, values)| Spread::of(values))
    }

    /// Of ebb's median to the one that it is held against.
    fn ratio(&self, goal: &Goal) -> Option<f64> {
        Some(self.spread(Column::Ebb)?.median / self.spread(goal.against)?.median)
    }
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
    rounds: usize,
    taken: Vec<Taken>,
    columns: Vec<Column>,
    busy: bool,
    /// The part of the machine that others had, at the worst.
    others: f64,
    machine: Vec<(&'static str, String)>,
}

impl Report {
    pub fn new(table: Table, rounds: usize, taken: Vec<Taken>, busy: &Busy, places: &Places) -> Outcome<Report> {
        let said = |program: &str, args: &[&str]| tool::output(Command::new(program).args(args)).map(|text| text.trim().to_owned());
        let machine = vec![
            ("date", said("date", &["-u", "+%F"])?),
            ("commit", commit(&tool::root())?),
            ("kernel", said("uname", &["-r"])?),
            ("processors", std::thread::available_parallelism()?.to_string()),
            ("L3", last_cache()),
            ("native", places.native_kind()?),
        ];
        let columns = tables::columns(taken.iter().map(|taken| taken.row.columns));
        Ok(Report { table, rounds, taken, columns, busy: busy.is_busy(), others: busy.worst(), machine })
    }

    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let said: Vec<String> = self.machine.iter().map(|(what, value)| format!("{what} {value}")).collect();
        // Writing to a string cannot fail.
        let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
        line(format!("## {}\n", self.table.name()));
        if self.busy {
            line(format!("**Taken on a busy machine: others had {:.0} % of it. Not for publication.**\n", 100.0 * self.others));
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
        line(format!("|---|---|{}{}", "---|".repeat(names.len()), if with_goals { "---|---|" } else { "" }));
        for taken in &self.taken {
            let cells = self.columns.iter().map(|column| taken.spread(*column).map(|spread| shown(&spread)).unwrap_or_default());
            let cells: Vec<String> = cells.collect();
            let goals = taken.row.goals;
            let reached = goals.iter().map(|goal| {
                let ratio = taken.ratio(goal).unwrap_or(f64::NAN);
                let missed = if goal.bound.is_met(ratio) { "" } else { " (missed)" };
                format!("{ratio:.2} × {}{missed}", goal.against.name())
            });
            let lines = |lines: Vec<String>| lines.join("<br>");
            let goal = match with_goals {
                true => format!(" {} | {} |", lines(reached.collect()), lines(goals.iter().map(|goal| bound(goal.bound)).collect())),
                false => String::new(),
            };
            line(format!("| {} | {} | {} |{goal}", taken.row.name, taken.row.unit, cells.join(" | ")));
        }
        line(String::new());
        for column in &self.columns {
            line(format!("- **{}**: {}", column.name(), column.explained()));
        }
        text
    }

    pub fn json(&self) -> Outcome<String> {
        let rows: Vec<Value> = self.taken.iter().map(|taken| self.row(taken)).collect();
        let columns: Vec<Value> = self.columns.iter().map(|column| json!({"name": column.name(), "is": column.explained()})).collect();
        let machine: serde_json::Map<String, Value> = self.machine.iter().map(|(what, value)| (what.to_string(), json!(value))).collect();
        let whole = json!({
            "table": self.table.name(), "note": self.table.setup().note, "busy": self.busy, "others": self.others, "rounds": self.rounds,
            "machine": machine, "columns": columns, "rows": rows,
        });
        Ok(serde_json::to_string_pretty(&whole)? + "\n")
    }

    fn row(&self, taken: &Taken) -> Value {
        let cells: serde_json::Map<String, Value> = taken
            .cells
            .iter()
            .filter_map(|(column, values)| {
                let Spread { least, median, most } = Spread::of(values)?;
                Some((column.name().to_owned(), json!({"median": median, "least": least, "most": most, "values": values})))
            })
            .collect();
        let goals = taken.row.goals.iter().map(|goal| {
            let ratio = taken.ratio(goal);
            let met = ratio.is_some_and(|ratio| goal.bound.is_met(ratio));
            json!({"against": goal.against.name(), "bound": bound(goal.bound), "ratio": ratio, "met": met})
        });
        let goals: Vec<Value> = goals.collect();
        json!({"name": taken.row.name, "unit": taken.row.unit, "cells": cells, "goals": goals})
    }

    fn plot(&self) -> String {
        let point =
            |taken: &Taken, column: Column| Some(Point { name: column.name(), spread: taken.spread(column)?, ours: column == Column::Ebb });
        let points = |taken: &Taken| self.columns.iter().filter_map(|column| point(taken, *column)).collect();
        let panels = self.taken.iter().map(|taken| Panel { name: taken.row.name, unit: taken.row.unit, points: points(taken) });
        plot::svg(&self.table.name(), &panels.collect::<Vec<_>>())
    }

    /// Puts the table into a page, in place of an older one, and its plot into a directory of the page's name.
    pub fn publish(&self, path: &Path) -> Outcome<()> {
        let page = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (plots, name) = (path.with_extension(""), self.table.name());
        let directory = plots.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("{}\n![The same as a plot]({directory}/{name}.svg)\n", self.markdown());
        let page = replaced(&page, &name, &text).ok_or_else(|| format!("{} has no place for the table {name}", path.display()))?;
        std::fs::create_dir_all(&plots)?;
        std::fs::write(plots.join(format!("{name}.svg")), self.plot())?;
        Ok(std::fs::write(path, page)?)
    }
}

/// The page with a new text between the marks of the table.
fn replaced(page: &str, table: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- bench {table} -->\n"), format!("<!-- end {table} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

/// What the processors share; nothing where the kernel does not say.
fn last_cache() -> String {
    let said = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    said.map_or_else(|_| "unknown".into(), |size| size.trim().to_owned())
}

fn shown(spread: &Spread) -> String {
    let [least, median, most] = [spread.least, spread.median, spread.most].map(figures);
    format!("{median} ({least}–{most})")
}

/// Three figures.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0]), Some(Spread { least: 1.0, median: 2.5, most: 4.0 }));
    }

    #[test]
    fn a_table_replaces_its_own_older_one() {
        let page = "a\n<!-- bench files -->\nold\n<!-- end files -->\n<!-- bench limits -->\nkept\n<!-- end limits -->\n";
        let expected = "a\n<!-- bench files -->\nnew\n<!-- end files -->\n<!-- bench limits -->\nkept\n<!-- end limits -->\n";
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
