//! `ebb bench`: how fast a file system is, ebb's or another one, so that they can be compared.

use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::signals::Signals;
use ebb_bench::bench::{self, Amount, Figure, LEAST_LARGE_BYTES};
use ebb_bench::work::{Durability, Stop};
use ebb_cli::args;
use ebb_cli::units::Bytes;
use serde_json::{Value, json};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tokio::sync::mpsc;

pub async fn run(args: args::Bench) -> Result<(), Failure> {
    if args.size.0 < LEAST_LARGE_BYTES {
        return Err(Failure::Usage(format!(
            "--size must be at least {}",
            Bytes(LEAST_LARGE_BYTES)
        )));
    }
    let amount = Amount {
        small_files: args.files as usize,
        large_bytes: args.size.0,
        threads: args.threads.into(),
    };
    let mut signals = Signals::at_terminal()?;
    let stop = Arc::new(Stop::default());
    let (sender, mut figures) = mpsc::unbounded_channel();
    let (path, stopped) = (args.path.clone(), stop.clone());
    // A receiver that is gone has stopped the work.
    let work =
        move || bench::run(&path, amount, &stopped, |figure| drop(sender.send(figure.clone())));
    let mut work = tokio::task::spawn_blocking(work);
    let mut table = Table { json: args.output.json, figures: Vec::new(), shown: Ok(()) };
    let ended = loop {
        tokio::select! {
            Some(figure) = figures.recv() => {
                table.add(figure);
                if table.shown.is_err() {
                    stop.stop();
                }
            }
            () = signals.next() => {
                if stop.check().is_err() {
                    return Err(Failure::of(args.path.shown(), "interrupted; .ebb-bench-* is left \
                        there"));
                }
                stop.stop();
            }
            ended = &mut work => break ended,
        }
    };
    while let Ok(figure) = figures.try_recv() {
        table.add(figure);
    }
    table.shown?;
    match ended.unwrap_or_else(|died| Err(io::Error::other(died))) {
        Err(error) if error.kind() == ErrorKind::Interrupted && stop.check().is_err() => {
            Err(Failure::Failed("interrupted".into()))
        }
        Err(error) => Err(Failure::of(args.path.shown(), error)),
        Ok(()) if args.output.json => output::json(&report(&args, &table.figures)),
        Ok(()) => Ok(()),
    }
}

struct Table {
    json: bool,
    figures: Vec<Figure>,
    /// Whether standard output has taken all of them.
    shown: Result<(), Failure>,
}

impl Table {
    fn add(&mut self, figure: Figure) {
        if !self.json && self.shown.is_ok() {
            self.shown = output::print(&line(&figure, self.figures.last()));
        }
        self.figures.push(figure);
    }
}

/// A row of the table, below its heads where they are due.
fn line(figure: &Figure, before: Option<&Figure>) -> String {
    let head = match before {
        Some(before) if before.group == figure.group => String::new(),
        _ => format!("{:<52} {:>10} {:<5} survives a power cut\n", figure.group.name(), "", ""),
    };
    let value = if figure.value < 100.0 {
        format!("{:.1}", figure.value)
    } else {
        format!("{:.0}", figure.value)
    };
    let survives = match figure.durability {
        None => "-",
        Some(Durability::Unforced) => "not yet",
        Some(Durability::Forced) => "yes: fsync is in the figure",
    };
    format!("{head}  {:<50} {value:>10} {:<5} {survives}\n", figure.name, figure.unit.name())
}

fn report(args: &args::Bench, figures: &[Figure]) -> Value {
    let figures = figures.iter().map(|figure| {
        json!({
            "group": figure.group.name(),
            "name": figure.name,
            "unit": figure.unit.name(),
            "value": figure.value,
            "forced": figure.durability.map(|durability| durability == Durability::Forced),
        })
    });
    json!({
        "path": args.path.to_string_lossy(),
        "files": args.files,
        "size_bytes": args.size.0,
        "threads": args.threads,
        "figures": figures.collect::<Vec<_>>(),
    })
}
