//! Redis with a log that is synced before every reply: the server is killed while clients append,
//! and no acknowledged entry is missing after its restart.

use super::shell;
use crate::scratch::Scratch;
use crate::{Outcome, tool};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
const SOCKET: &str = "socket";

pub fn prepare() -> Outcome<()> {
    tool::debian(Path::new("/usr/bin/redis-server"), "redis-server")
}

pub fn work(dir: &Path, kills: u32) -> Outcome<()> {
    let mut answered = [0; CLIENTS as usize];
    let mut server = Server::start(dir)?;
    for round in 0..kills {
        let running: Vec<_> = answered
            .iter()
            .enumerate()
            .map(|(list, last)| {
                let (socket, last) = (server.socket(), *last);
                std::thread::spawn(move || append(&socket, list, last))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200 + u64::from(round % 7) * 100));
        server.kill();
        for (last, thread) in answered.iter_mut().zip(running) {
            *last = thread.join().map_err(|_| "a client panicked")??;
        }
        server = Server::start(dir)?;
        for (list, last) in answered.iter_mut().enumerate() {
            let found = check(&server, list).map_err(|error| format!("kill {round}: {error}"))?;
            if found != *last && found != *last + 1 {
                return Err(format!(
                    "kill {round}: {last} entries of list {list} were answered, {found} are there"
                )
                .into());
            }
            *last = found;
        }
    }
    server.kill();
    sound(dir)
}

pub fn look_again(dir: &Path) -> Outcome<()> {
    sound(dir)?;
    let server = Server::start(dir)?;
    (0..CLIENTS as usize).try_for_each(|list| check(&server, list).map(drop))
}

fn sound(dir: &Path) -> Outcome<()> {
    shell(dir, "redis-check-aof appendonlydir/*.manifest", &[]).map(drop)
}

/// Appends numbers to a list until the server is gone; returns the last acknowledged one.
fn append(socket: &Path, list: usize, last: u64) -> Result<u64, String> {
    let mut connection = Connection::to(socket).map_err(|error| error.to_string())?;
    let mut last = last;
    loop {
        match connection.ask(&["RPUSH", &format!("list-{list}"), &format!("{}", last + 1)]) {
            Ok(answer) if answer == format!(":{}", last + 1) => last += 1,
            Ok(answer) => {
                return Err(format!(
                    "list {list} has {last} entries, and the server answers {answer}"
                ));
            }
            Err(_) => return Ok(last),
        }
    }
}

/// Checks that each entry of a list equals its index; returns the number of entries.
fn check(server: &Server, list: usize) -> Outcome<u64> {
    let mut connection = Connection::to(&server.socket())?;
    let list = format!("list-{list}");
    let answer = connection.ask(&["LLEN", &list])?;
    let len: u64 = answer.strip_prefix(':').ok_or_else(|| format!("LLEN: {answer}"))?.parse()?;
    let head = connection.ask(&["LRANGE", &list, "0", "-1"])?;
    if head != format!("*{len}") {
        return Err(format!("{list} has {len} entries and gives {head}").into());
    }
    for place in 1..=len {
        let (_, entry) = (connection.line()?, connection.line()?);
        if entry != place.to_string() {
            return Err(format!("{list} has {entry} at {place}").into());
        }
    }
    Ok(len)
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    fn to(socket: &Path) -> std::io::Result<Connection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Sends a command; returns the first line of the reply.
    fn ask(&mut self, words: &[&str]) -> std::io::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 || !line.ends_with("\r\n") {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }
}

/// Killed on drop.
struct Server {
    child: Child,
    /// Its socket, on this machine's disk.
    beside: Scratch,
}

impl Server {
    fn start(dir: &Path) -> Outcome<Server> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let beside = Scratch::new(&format!("redis-{count}"))?;
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]);
        // The log is rewritten every few seconds.
        command.args([
            "--auto-aof-rewrite-min-size",
            "64kb",
            "--auto-aof-rewrite-percentage",
            "50",
            "--loglevel",
            "warning",
        ]);
        command.arg("--unixsocket").arg(beside.join(SOCKET)).arg("--dir").arg(dir).current_dir(dir);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut server = Server { child, beside };
        let began = Instant::now();
        loop {
            let answer = Connection::to(&server.socket())
                .and_then(|mut connection| connection.ask(&["PING"]));
            match answer {
                Ok(answer) if answer == "+PONG" => return Ok(server),
                // It is still loading its log, or does not listen yet.
                _ if began.elapsed() < PATIENCE && server.child.try_wait()?.is_none() => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                answer => return Err(format!("the server does not start: {answer:?}").into()),
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.beside.join(SOCKET)
    }

    fn kill(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
