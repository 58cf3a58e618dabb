//! A simulated network between ebb and the store: one bandwidth per direction, shared by all
//! connections, and a fixed delay.

use crate::Outcome;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes forwarded at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The shaper catches up on delays shorter than this.
const SLACK: Duration = Duration::from_millis(10);

/// Chunks of one connection that can be in flight.
const MOST_PIECES: usize = 256;

#[derive(Clone, Copy)]
pub struct Line {
    pub bytes_per_sec: u64,
    /// From one end to the other.
    pub delay: Duration,
}

/// Returns the endpoint to use in place of `endpoint`; it exists until this process ends.
pub fn before(endpoint: &str, line: Line) -> Outcome<String> {
    let server = endpoint.strip_prefix("http://").ok_or("the endpoint is not HTTP")?.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let [there, back] = [(); 2].map(|()| Arc::new(Way::new(line)));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // The client sees a connection that ends, as if the server did not listen.
            let Ok(server) = TcpStream::connect(&server) else { continue };
            join(&client, &server, &there);
            join(&server, &client, &back);
        }
    });
    Ok(address)
}

/// Forwards one direction until either end closes.
fn join(from: &TcpStream, to: &TcpStream, way: &Arc<Way>) {
    let (Ok(from), Ok(to), way) = (from.try_clone(), to.try_clone(), way.clone()) else { return };
    thread::spawn(move || {
        let how = if way.carry(&from, &to).is_ok() { Shutdown::Write } else { Shutdown::Both };
        // The peer may have closed already.
        to.shutdown(how).ok();
    });
}

/// One direction.
struct Way {
    line: Line,
    /// When everything that was admitted has been sent.
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

    /// When bytes that arrive now will have been sent.
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
        // Back to back, starting at most 10 ms in the past.
        assert_eq!(
            [ends(500, 0), ends(500, 0), ends(100, 900)].map(|end| end.as_millis()),
            [490, 990, 1090]
        );
        // Unused bandwidth is lost.
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
