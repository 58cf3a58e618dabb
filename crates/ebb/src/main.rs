//! The ebb binary: wires adapters into node, client and surface.

mod ask;
mod attribute;
mod backup;
mod bench;
mod busy;
mod cert;
mod daemon;
mod data_dir;
mod encryption;
mod evict;
mod failure;
mod fsck;
mod helper;
mod host;
mod http;
mod log;
mod mount;
mod node;
mod output;
mod passthrough;
mod pin;
mod predecessor;
mod profile;
mod progress;
mod quota;
mod rate_limit;
mod refresh;
mod replicated;
mod security;
mod serve;
mod service;
mod settings;
mod signals;
mod source;
mod stats;
mod supervisor;
mod supervisor_link;
mod trash;
mod umount;
mod upgrade;
mod warmup;

use clap::CommandFactory;
use ebb_cli::config::ConfigError;
use ebb_cli::{Cli, Command};
use failure::Failure;
use std::future::Future;
use std::io::ErrorKind;
use std::process::ExitCode;
use warmup::Stay;

fn main() -> ExitCode {
    log::abort_on_panic();
    // A daemon is started by the name that its supervisor's binary has for that itself.
    // SAFETY: the name ends in NUL, and is copied.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"ebb".as_ptr()) };
    if let Some(mode) = supervisor::Mode::inherited() {
        return supervise(mode);
    }
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(name) = ebb_cli::helper::name(&program) {
        return helper::run(name);
    }
    let outcome = match ebb_cli::parse(std::env::args_os()) {
        Ok(cli) => {
            output::warn_deprecated(&cli.deprecated);
            run(cli.command)
        }
        Err(ConfigError::Usage(text)) => {
            // Help and version arrive here too.
            match (text.print(), text.exit_code()) {
                (Err(error), 0) if error.kind() != ErrorKind::BrokenPipe => {
                    Err(Failure::of("standard output", error))
                }
                // If the terminal has gone the text has no reader.
                (_, status) => return ExitCode::from(u8::try_from(status).unwrap_or(2)),
            }
        }
        Err(error @ ConfigError::File { .. }) => Err(Failure::Usage(error.to_string())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::fail("ebb", &failure);
            ExitCode::from(failure.status())
        }
    }
}

fn supervise(mode: supervisor::Mode) -> ExitCode {
    match supervisor::run(mode, daemon::Report::descriptor()) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            tracing::error!("{}", failure.text().unwrap_or_default());
            ExitCode::from(failure.status())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Mount(args) => mount::run(args, true),
        Command::Serve(args) => block_on(serve::run(args)),
        Command::Node(command) => block_on(node::run(command)),
        Command::Umount(args) => block_on(umount::run(args)),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Status(target) => block_on(ask::status(target)),
        Command::Stats(args) => block_on(stats::run(args)),
        Command::Profile(args) => block_on(profile::run(args)),
        Command::LsDirty(args) => block_on(ask::list_dirty(args)),
        Command::Flush(target) => block_on(ask::flush(target)),
        Command::Refresh(target) => block_on(refresh::run(target)),
        Command::Warmup(args) => block_on(warmup::run(args, Stay::No)),
        Command::Pin(args) => block_on(warmup::run(args, Stay::Yes)),
        Command::Unpin(args) => pin::remove(&args.paths),
        Command::Evict(args) => block_on(evict::run(args)),
        Command::Explain(target) => block_on(ask::explain(target)),
        Command::Quota(command) => block_on(quota::run(command)),
        Command::Trash(command) => block_on(trash::run(command)),
        Command::Fsck(args) => block_on(fsck::run(args)),
        Command::ChangeKey(args) => block_on(encryption::change_key(args)),
        Command::Rollback(args) => block_on(fsck::roll_back(args)),
        Command::Backup(args) => block_on(backup::back_up(args)),
        Command::Restore(args) => block_on(backup::restore(args)),
        Command::Bench(args) => block_on(bench::run(args)),
        Command::Cert(command) => cert::run(command),
        Command::Version(output) => output::version(output),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ebb", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    }
}

/// Everything runs on this one thread; blocking work goes to the runtime's pool.
fn block_on(flow: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Poll the sockets after every task: the default polls once per many tasks, so with tasks
        // that are always ready a message would wait for thousands of them.
        .event_interval(1)
        .build()
        .map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, flow);
    // A thread may hang in a file system that does not answer; it is not waited for.
    runtime.shutdown_background();
    outcome
}
