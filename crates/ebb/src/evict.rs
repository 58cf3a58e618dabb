//! `ebb evict`: drops clean cached bytes, in pieces, so that other requests run in between.

use crate::ask::{Last, ResolvedTarget};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::rate_limit::RateLimit;
use crate::signals::Signals;
use ebb_cli::args::Evict;
use ebb_cli::units::Bytes;
use ebb_model::{AdminReply, AdminRequest, Ino};
use std::cell::Cell;

/// Dropped at one time.
const PIECE_BYTES: u64 = 64 << 20;

pub async fn run(args: Evict) -> Result<(), Failure> {
    let rate_limit = RateLimit::new(args.rate)?;
    let node = ResolvedTarget::at(&args.target.path, Last::Followed, &args.target.tls).await?;
    let mut signals = Signals::listen()?;
    let freed = Cell::new(0);
    let outcome = tokio::select! {
        outcome = evict(&node, &rate_limit, &freed) => outcome,
        () = signals.next() => Err(Failure::Failed("interrupted; the same command goes on where it \
            was".into())),
    };
    // If no request was answered at all there is no sum to show.
    if outcome.is_ok() || freed.get() > 0 {
        output::reply(&AdminReply::Evicted { bytes: freed.get(), next: None }, args.target.output)?;
    }
    outcome
}

async fn evict(
    node: &ResolvedTarget,
    rate_limit: &RateLimit,
    freed: &Cell<u64>,
) -> Result<(), Failure> {
    let mut progress = Progress::new("evict");
    let cached = crate::ask::node_status(&node.address).await?.cached_bytes;
    let path = node.path().await?;
    let mut from = (Ino(0), 0);
    loop {
        let limit_bytes = rate_limit.piece_bytes(PIECE_BYTES);
        let reply = node.ask(AdminRequest::Evict { path: path.clone(), from, limit_bytes }).await?;
        let AdminReply::Evicted { bytes: dropped, next } = reply else {
            return Err(Failure::Failed("a reply of the wrong kind".into()));
        };
        freed.set(freed.get() + dropped);
        let Some(next) = next else { return Ok(()) };
        from = next;
        progress.show(freed.get(), cached, || format!("{} dropped", Bytes(freed.get())));
        rate_limit.wait(dropped).await;
    }
}
