//! A line to the store: carries so many bytes a second each way, of all connections together, and
//! takes its time for each.

use crate::Outcome;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// What is carried at one time.
const PIECE_BYTES: usize = 64 << 10;

/// A line that was late by less makes up for it.
const SLACK: Duration = Duration::from_millis(10);

/// Pieces of one connection that are on their way at one time.
const MOST_PIECES: usize = 256;

#[derive(Clone, Copy)]
pub struct Line {
    pub bytes_per_sec: u64,
    /// From one end to the other.
    pub delay: Duration,
}

/// Gives the endpoint to use instead of `endpoint`, which is there until this process ends.
pub fn before(endpoint: &str, line: Line) -> Outcome<String> {
    let server = endpoint.strip_prefix("http://").ok_or("the endpoint is not HTTP")?.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let [there, back] = [(); 2].map(|()| Arc::new(Way::new(line)));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Who asks sees a connection that ends, as it does where the server does not listen.
            let Ok(server) = TcpStream::connect(&server) else { continue };
            join(&client, &server, &there);
            join(&server, &client, &back);
        }
    });
    Ok(address)
}

/// Carries what comes from the one to the other, until either ends.
fn join(from: &TcpStream, to: &TcpStream, way: &Arc<Way>) {
    let (Ok(from), Ok(to), way) = (from.try_clone(), to.try_clone(), way.clone()) else { return };
    thread::spawn(move || {
        let how = if way.carry(&from, &to).is_ok() { Shutdown::Write } else { Shutdown::Both };
        // It may be gone already.
        to.shutdown(how).ok();
    });
}

/// One direction.
struct Way {
    line: Line,
    /// When all that was let through is over.
    free_at: Mutex<Instant>,
}

impl Way {
    fn new(line: Line) -> Way {
        Way { line, free_at: Mutex::new(Instant::now()) }
    }

    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        to.set_nodelay(true)?;
        let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(MOST_PIECES);
        thread::scope(|scope| {
            let arrival = scope.spawn(move || {
                pieces.iter().try_for_each(|(due, piece)| {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    to.write_all(&piece)
                })
            });
            let mut piece = vec![0; PIECE_BYTES];
            let departure = loop {
                let len = match from.read(&mut piece) {
                    Ok(0) => break Ok(()),
                    Ok(len) => len,
                    Err(error) => break Err(error),
                };
                let now = Instant::now();
                thread::sleep(self.taken(len, now).saturating_duration_since(now));
                if sender.send((Instant::now() + self.line.delay, piece[..len].to_vec())).is_err() {
                    break Ok(());
                }
            };
            drop(sender);
            let arrival = arrival
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("what arrives is not known")));
            departure.and(arrival)
        })
    }

    /// When bytes that are there now have passed.
    fn taken(&self, len: usize, now: Instant) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = now.checked_sub(SLACK).map_or(now, |earliest| free_at.max(earliest));
        *free_at = begins + Duration::from_secs_f64(len as f64 / self.line.bytes_per_sec as f64);
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_carries_its_rate() {
        let way = Way::new(Line { bytes_per_sec: 1000, delay: Duration::ZERO });
        let began = Instant::now() + Duration::from_secs(1);
        let ends = |len, after_ms: u64| {
            way.taken(len, began + Duration::from_millis(after_ms)).saturating_duration_since(began)
        };
        // From 10 ms before, one after the other.
        assert_eq!(
            [ends(500, 0), ends(500, 0), ends(100, 900)].map(|end| end.as_millis()),
            [490, 990, 1090]
        );
        // What was not used is lost.
        assert_eq!(ends(500, 5000).as_millis(), 5490);
    }

    #[test]
    fn what_comes_out_is_what_went_in() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line { bytes_per_sec: 1 << 30, delay: Duration::from_millis(3) };
        let endpoint = before(&format!("http://{}", server.local_addr().unwrap()), line).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let sent = ebb_bench::Rng(1).bytes(3 * PIECE_BYTES + 1);
        let began = Instant::now();
        let mut stream = TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == sent && began.elapsed() >= 2 * line.delay);
    }
}
