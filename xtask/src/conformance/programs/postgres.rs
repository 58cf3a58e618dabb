//! PostgreSQL: the server is killed under pgbench and recovers from its log. Every acknowledged
//! transaction is present, the balances agree, and pg_amcheck finds nothing.

use super::shell;
use crate::scratch::Scratch;
use crate::{Outcome, tool};
use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const CLIENTS: u64 = 4;

/// Time limit of a start, recovery included.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn prepare() -> Outcome<()> {
    tool::debian(&Path::new(PROGRAMS).join("pg_amcheck"), "postgresql-15")
}

pub fn work(dir: &Path, kills: u32) -> Outcome<()> {
    let cluster = Cluster::of(dir)?;
    cluster.run(
        "initdb",
        &[
            "--auth=trust",
            "--no-locale",
            "--encoding=UTF8",
            "--data-checksums",
            "--pgdata",
            &cluster.data,
        ],
    )?;
    let mut server = cluster.start()?;
    cluster.run("pgbench", &["--initialize", "--quiet", "--scale=2"])?;
    let mut answered = 0;
    for round in 0..kills {
        let mut load = cluster
            .command("pgbench", &["--no-vacuum", "--time=60", "--client", &CLIENTS.to_string()]);
        let load = load.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(1_000 + u64::from(round % 5) * 300));
        server.kill()?;
        // Checked before the next load, whose transactions would hide a loss.
        server = cluster.start()?;
        answered += processed(load)?;
        answered = cluster.check(answered).map_err(|error| format!("kill {round}: {error}"))?;
        cluster.amcheck()?;
    }
    server.stop()?;
    cluster.run("pg_checksums", &["--check", "--pgdata", &cluster.data]).map(drop)
}

pub fn look_again(dir: &Path) -> Outcome<()> {
    let cluster = Cluster::of(dir)?;
    cluster.run("pg_checksums", &["--check", "--pgdata", &cluster.data])?;
    let server = cluster.start()?;
    cluster.check(0)?;
    cluster.amcheck()?;
    server.stop()
}

struct Cluster {
    data: String,
    /// Sockets and the log, on this machine's disk.
    beside: Scratch,
}

impl Cluster {
    fn of(dir: &Path) -> Outcome<Cluster> {
        let beside = Scratch::new("postgres")?;
        let (user, group) = (id("-u")?, id("-g")?);
        for place in [dir, &*beside] {
            chown(place, Some(user), Some(group))?;
        }
        Ok(Cluster { data: dir.join("data").display().to_string(), beside })
    }

    /// A PostgreSQL program as PostgreSQL's user, since the server refuses to run as root.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
            .arg(Path::new(PROGRAMS).join(program));
        command
            .args(arguments)
            .env("PGHOST", &*self.beside)
            .env("PGDATABASE", "postgres")
            .env("PGUSER", "postgres");
        command.stdin(Stdio::null()).current_dir(&*self.beside);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Outcome<String> {
        tool::output(&mut self.command(program, arguments))
    }

    fn ask(&self, sql: &str) -> Outcome<String> {
        self.run(
            "psql",
            &[
                "--no-psqlrc",
                "--tuples-only",
                "--no-align",
                "--set=ON_ERROR_STOP=1",
                "--command",
                sql,
            ],
        )
    }

    /// Starts the server; retries while processes of the previous one still run.
    fn start(&self) -> Outcome<Server> {
        let began = Instant::now();
        loop {
            let log =
                fs::OpenOptions::new().create(true).append(true).open(self.beside.join("log"))?;
            let mut command = self.command(
                "postgres",
                &["-D", &self.data, "-h", "", "-k", &self.beside.display().to_string()],
            );
            let mut server =
                Server(command.stdout(log.try_clone()?).stderr(log).process_group(0).spawn()?);
            while server.0.try_wait()?.is_none() {
                if self.command("pg_isready", &["--quiet"]).status()?.success() {
                    return Ok(server);
                }
                if began.elapsed() > PATIENCE {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            if began.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.beside.join("log"))?;
                let end: Vec<&str> = log.lines().rev().take(10).collect();
                return Err(format!(
                    "the server does not start: {}",
                    end.into_iter().rev().collect::<Vec<_>>().join("; ")
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Checks that at least this many transactions are present and none is partial; returns their
    /// number.
    fn check(&self, answered: u64) -> Outcome<u64> {
        let found: u64 = self.ask("select count(*) from pgbench_history")?.trim().parse()?;
        if found < answered || (answered > 0 && found > answered + CLIENTS) {
            return Err(format!("{answered} transactions were answered, {found} are there").into());
        }
        let sums = self.ask(
            "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from \
             pgbench_tellers), \
             (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from \
             pgbench_history)",
        )?;
        let mut each = sums.trim().split('|');
        let first = each.next();
        if each.all(|sum| Some(sum) == first) {
            Ok(found)
        } else {
            Err(format!("the balances do not agree: {}", sums.trim()).into())
        }
    }

    fn amcheck(&self) -> Outcome<()> {
        self.run(
            "pg_amcheck",
            &["--all", "--install-missing", "--heapallindexed", "--parent-check"],
        )
        .map(drop)
    }
}

/// Killed on drop.
struct Server(Child);

impl Server {
    /// Kills the main process; the others notice and end.
    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }

    fn stop(mut self) -> Outcome<()> {
        tool::signal(self.0.id(), libc::SIGINT)?;
        let status = self.0.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the server did not stop well: {status}").into())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill().ok();
    }
}

/// Transactions that pgbench reports as done.
fn processed(load: Child) -> Outcome<u64> {
    let said = String::from_utf8(load.wait_with_output()?.stdout)?;
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "));
    let number = line.ok_or("pgbench does not say what it has done")?;
    Ok(number.split('/').next().unwrap_or(number).trim().parse()?)
}

/// A user or group id of PostgreSQL's package.
fn id(of: &str) -> Outcome<u32> {
    Ok(shell(Path::new("/"), &format!("id {of} postgres"), &[])?.trim().parse()?)
}
