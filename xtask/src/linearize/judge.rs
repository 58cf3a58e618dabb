//! The second judge: porcupine, with a model of its own in Go.

use crate::{Outcome, tool};
use clap::ValueEnum;
use ebb_linearize::{History, Verdict};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    Porcupine,
}

/// A running judge, which reads histories and answers each with a line.
pub struct Porcupine {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Porcupine {
    pub fn start() -> Outcome<Porcupine> {
        tool::needs("go", "version", "the second judge is a Go program")?;
        let binary = tool::conformance()?.join("porcupine-judge");
        let source = tool::root().join("conformance/linearize/porcupine");
        tool::run(
            Command::new("go").arg("build").arg("-o").arg(&binary).arg(".").current_dir(source),
        )?;
        let mut child =
            Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("the judge has no input")?;
        let from = BufReader::new(child.stdout.take().ok_or("the judge has no output")?);
        Ok(Porcupine { child, to, from })
    }

    /// Whether it judges the other way. `unknown` is out of its time.
    pub fn disagrees(&mut self, history: &History, verdict: &Verdict) -> Outcome<bool> {
        history.write(&mut self.to)?;
        self.to.write_all(b"\n")?;
        self.to.flush()?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match (line.trim(), verdict) {
            ("ok", Verdict::Violation(_)) | ("illegal", Verdict::Linearizable) => Ok(true),
            ("ok" | "illegal" | "unknown", _) => Ok(false),
            (other, _) => Err(format!("the judge answers {other:?}").into()),
        }
    }
}

impl Drop for Porcupine {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
