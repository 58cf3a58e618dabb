//! Measures the cost of TLS on loopback: `cargo run --release -p ebb-os --example tls`.
//!
//! Both ends are on one thread, as a node and its clients are in tests; frames go through the `Net`
//! port. Prints medians of rounds in turns.

use bytes::Bytes;
use ebb_certificates::{Authority, Credentials, Identity, Kind, Request, now};
use ebb_os::{OsNet, Security};
use ebb_ports::{FrameReceiver, FrameSender, Net};
use std::error::Error;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const EXCHANGES: usize = 5_000;
const REQUEST_BYTES: usize = 128;
const BULK_FRAMES: usize = 512;
const BULK_BYTES: usize = 1 << 20;
const CONNECTIONS: u32 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, measure())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let node = OsNet::new(Security::Tls(Rc::new(credentials(dir.path(), Kind::Node)?)));
    let mount = OsNet::new(Security::Tls(Rc::new(credentials(dir.path(), Kind::Mount)?)));
    let plain = OsNet::default();
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rounds[0].push(round(&plain, &plain).await?);
        rounds[1].push(round(&node, &mount).await?);
    }
    for (name, rounds) in ["plain", "TLS"].iter().zip(&mut rounds) {
        let mut median = |value: fn(&Round) -> f64| {
            rounds.sort_by(|a, b| value(a).total_cmp(&value(b)));
            value(&rounds[ROUNDS / 2])
        };
        let request = median(|round| round.request.as_secs_f64() * 1e6);
        let bulk = median(|round| round.bulk_bytes_per_sec / 1e6);
        let connect = median(|round| round.connect.as_secs_f64() * 1e6);
        println!("{name}: request {request:.1} us, bulk {bulk:.0} MB/s, connect {connect:.0} us");
    }
    Ok(())
}

fn credentials(dir: &Path, kind: Kind) -> Result<Credentials, Box<dyn Error>> {
    let (ca, out) = (dir.join("ca"), dir.join(kind.name()));
    if !ca.exists() {
        Authority::create(&ca, "bench", now())?;
    }
    let addresses = if kind == Kind::Node { vec!["127.0.0.1".into()] } else { Vec::new() };
    let request = Request { identity: Identity::new(kind, "one")?, addresses, days: 1 };
    Authority::open(&ca, now())?.issue(&request, &out, now())?;
    Ok(Credentials::open(&out)?)
}

struct Round {
    /// Median of a request with its reply.
    request: Duration,
    bulk_bytes_per_sec: f64,
    /// With the handshake.
    connect: Duration,
}

async fn round(server: &OsNet, client: &OsNet) -> Result<Round, Box<dyn Error>> {
    let mut listener = server.listen("127.0.0.1:0").await?;
    let address = listener.address();
    // Replies to each frame with one of the same length, but to bulk with a short one.
    let serving = tokio::task::spawn_local(async move {
        while let Ok(connection) = listener.accept().await {
            let (mut sender, mut receiver) = connection.split();
            while let Ok(Some(frame)) = receiver.receive().await {
                let reply = frame.slice(..frame.len().min(REQUEST_BYTES));
                if sender.send(vec![reply]).await.is_err() {
                    break;
                }
            }
        }
    });
    let began = Instant::now();
    for _ in 0..CONNECTIONS {
        exchange(&mut client.connect(&address).await?.split(), Bytes::from_static(b"1")).await?;
    }
    let connect = began.elapsed() / CONNECTIONS;

    let mut ends = client.connect(&address).await?.split();
    let request = Bytes::from(vec![7; REQUEST_BYTES]);
    let mut times = Vec::new();
    for _ in 0..EXCHANGES {
        let began = Instant::now();
        exchange(&mut ends, request.clone()).await?;
        times.push(began.elapsed());
    }
    times.sort();

    let bulk = Bytes::from(vec![7; BULK_BYTES]);
    let began = Instant::now();
    for _ in 0..BULK_FRAMES {
        exchange(&mut ends, bulk.clone()).await?;
    }
    let bulk_bytes_per_sec = (BULK_FRAMES * BULK_BYTES) as f64 / began.elapsed().as_secs_f64();
    serving.abort();
    Ok(Round { request: times[EXCHANGES / 2], bulk_bytes_per_sec, connect })
}

type Ends = (Box<dyn FrameSender>, Box<dyn FrameReceiver>);

async fn exchange(ends: &mut Ends, frame: Bytes) -> Result<(), Box<dyn Error>> {
    ends.0.send(vec![frame]).await?;
    ends.1.receive().await?.ok_or("closed")?;
    Ok(())
}
