//! Progress of long work: a bar on a terminal, plain lines elsewhere, both on standard error.

use crate::output;
use ebb_cli::units::Bytes;
use ebb_model::Status;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    what: &'static str,
    /// The most that was ever left: writers may add to it.
    most_bytes: u64,
    shape: Shape,
}

enum Shape {
    Bar(ProgressBar),
    Lines { last: Instant },
}

impl Progress {
    /// Counts bytes.
    pub fn new(what: &'static str) -> Progress {
        Progress::shaped(what, BYTES)
    }

    /// Counts items instead of bytes.
    pub fn counting(what: &'static str) -> Progress {
        Progress::shaped(what, COUNTS)
    }

    fn shaped(what: &'static str, template: &'static str) -> Progress {
        let shape = match std::io::stderr().is_terminal() {
            true => Shape::Bar(bar(template)),
            false => Shape::Lines { last: Instant::now() },
        };
        Progress { what, most_bytes: 0, shape }
    }

    /// Shows the dirty bytes, and a possible reason.
    pub fn update(&mut self, status: &Status) {
        // Parts of large files that have not changed are sent too.
        let left_bytes = status.dirty_bytes.saturating_sub(status.sent_bytes);
        self.most_bytes = self.most_bytes.max(left_bytes);
        let trouble = match &status.troubles[..] {
            [] => String::new(),
            [one] => format!(": {}", one.what),
            [one, more @ ..] => format!(": {} (`ebb status` says {} more)", one.what, more.len()),
        };
        let left = || format!("{} files, {} left{trouble}", status.dirty_files, Bytes(left_bytes));
        self.show(self.most_bytes - left_bytes, self.most_bytes, left);
    }

    /// Shows the progress, as a line if there is no bar.
    pub fn show(&mut self, done: u64, total: u64, said: impl Fn() -> String) {
        match &mut self.shape {
            Shape::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(format!("{}: {}", self.what, said()));
            }
            Shape::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                output::say(format!("{}: {}", self.what, said()));
            }
            Shape::Lines { .. } => {}
        }
    }

    /// Prints a line that stays on the screen.
    pub fn line(&self, text: &str) {
        match &self.shape {
            Shape::Bar(bar) => bar.suspend(|| output::say(text)),
            Shape::Lines { .. } => output::say(text),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shape::Bar(bar) = &self.shape {
            bar.finish_and_clear();
        }
    }
}

const BYTES: &str = "{bar:32} {bytes}/{total_bytes} {msg}";
const COUNTS: &str = "{bar:32} {pos}/{len} {msg}";

fn bar(template: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(template)
        .expect("the templates are constant, and a test shows it");
    ProgressBar::new(0).with_style(style)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_templates_are_some() {
        for template in [super::BYTES, super::COUNTS] {
            super::bar(template).finish_and_clear();
        }
    }
}
