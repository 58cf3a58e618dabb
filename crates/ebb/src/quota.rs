//! `ebb quota`.

use crate::ask::{Last, POLL, ResolvedTarget};
use crate::failure::Failure;
use crate::output;
use ebb_cli::args::{Quota, SetQuota, Target};
use ebb_cli::units::Bytes;
use ebb_model::{AdminReply, AdminRequest, FsError, QuotaLimits, QuotaStatus};
use std::time::{Duration, Instant};

/// Interval between reports on the progress of counting.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub async fn run(command: Quota) -> Result<(), Failure> {
    let (target, request): (_, fn(_) -> _) = match command {
        Quota::Set(args) => return set(args).await,
        Quota::Remove(target) => return remove(target).await,
        Quota::Get(target) => (target, |path| AdminRequest::Quotas { path }),
        Quota::List(target) => (target, |path| AdminRequest::ListQuotas { path }),
    };
    let node = ResolvedTarget::at(&target.path, Last::Followed, &target.tls).await?;
    output::reply(&node.ask(request(node.path().await?)).await?, target.output)
}

async fn remove(target: Target) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&target.path, Last::Followed, &target.tls).await?;
    let request = AdminRequest::SetQuota { path: node.path().await?, limits: None };
    let reply = node.ask_explaining(request, |error| match error {
        FsError::NoAttribute => Some(Failure::of(node.shown(), "it has no quota")),
        _ => None,
    });
    let reply = reply.await?;
    if !target.output.json {
        output::print(&format!("{}: its quota is removed\n", node.shown()))?;
        if matches!(&reply, AdminReply::Quotas(above) if above.is_empty()) {
            return Ok(());
        }
    }
    // Limits of parent directories still apply.
    output::reply(&reply, target.output)
}

/// Waits until the whole tree has been counted. The user can interrupt the wait: the quota stays,
/// and the node continues counting.
async fn set(args: SetQuota) -> Result<(), Failure> {
    let node = ResolvedTarget::at(&args.target.path, Last::Followed, &args.target.tls).await?;
    let path = node.path().await?;
    let limits = QuotaLimits { bytes: args.bytes.map(|Bytes(bytes)| bytes), inodes: args.inodes };
    let mut reply =
        node.ask(AdminRequest::SetQuota { path: path.clone(), limits: Some(limits) }).await?;
    let mut said = Instant::now();
    while let Some(status) = counting(&reply) {
        if said.elapsed() >= LINE_EVERY {
            said = Instant::now();
            output::say(format!(
                "counting what is in the bucket: {} inodes, {} so far",
                status.used.inodes,
                Bytes(status.used.bytes)
            ));
        }
        tokio::time::sleep(POLL).await;
        reply = node.ask(AdminRequest::Quotas { path: path.clone() }).await?;
    }
    output::reply(&reply, args.target.output)
}

/// The quota of the directory itself, if that is still being counted.
fn counting(reply: &AdminReply) -> Option<&QuotaStatus> {
    match reply {
        AdminReply::Quotas(quotas) => quotas.first().filter(|status| !status.counted),
        _ => None,
    }
}
