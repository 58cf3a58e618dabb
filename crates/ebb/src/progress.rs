//! How far long work is: a bar on a terminal, plain lines elsewhere, both on standard error.

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
    pub fn new(what: &'static str) -> Progress {
        let shape = match std::io::stderr().is_terminal() {
            true => Shape::Bar(bar()),
            false => Shape::Lines { last: Instant::now() },
        };
        Progress { what, most_bytes: 0, shape }
    }

    /// Shows what is still dirty.
    pub fn update(&mut self, status: &Status) {
        self.most_bytes = self.most_bytes.max(status.dirty_bytes);
        let left = || format!("{} files, {} left", status.dirty_files, Bytes(status.dirty_bytes));
        self.show(self.most_bytes - status.dirty_bytes, self.most_bytes, left);
    }

    /// Shows how much of the bytes is done, and says it where there is no bar to see.
    pub fn show(&mut self, done_bytes: u64, total_bytes: u64, said: impl Fn() -> String) {
        match &mut self.shape {
            Shape::Bar(bar) => {
                bar.set_length(total_bytes);
                bar.set_position(done_bytes);
                bar.set_message(format!("{}: {}", self.what, said()));
            }
            Shape::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{}: {}", self.what, said());
            }
            Shape::Lines { .. } => {}
        }
    }

    /// Says what is to stay.
    pub fn line(&self, text: &str) {
        match &self.shape {
            Shape::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            Shape::Lines { .. } => eprintln!("{text}"),
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

fn bar() -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:32} {bytes}/{total_bytes} {msg}").expect("the template is constant, and a test shows it");
    ProgressBar::new(0).with_style(style)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_is_one() {
        super::bar().finish_and_clear();
    }
}
