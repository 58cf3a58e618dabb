//! `ebb node`: the nodes of a replicated volume.

use crate::ask::{AskError, ResolvedTarget};
use crate::failure::Failure;
use crate::output;
use ebb_cli::args::{Nodes, OneNode};
use ebb_model::{AdminRequest, RpcError};
use std::time::{Duration, Instant};

/// The members of a volume change one at a time: another change delays this one.
const PATIENCE: Duration = Duration::from_secs(20);

const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub async fn run(command: Nodes) -> Result<(), Failure> {
    match command {
        Nodes::List(target) => {
            let node = ResolvedTarget::of(&target.path, &target.tls)?;
            output::reply(&node.ask(AdminRequest::ListNodes).await?, target.output)
        }
        Nodes::Remove(args) => {
            let request = AdminRequest::RemoveNode { node: args.node };
            change(args, request).await
        }
        Nodes::Promote(args) => {
            let request = AdminRequest::PromoteNode { node: args.node };
            change(args, request).await
        }
    }
}

/// Prints the nodes after the change.
async fn change(args: OneNode, request: AdminRequest) -> Result<(), Failure> {
    let node = ResolvedTarget::of(&args.path, &args.tls)?;
    node.confirm().await?;
    let began = Instant::now();
    loop {
        match node.answer(request.clone()).await {
            Ok(reply) => return output::reply(&reply, args.output),
            Err(AskError::Rpc(RpcError::Retry)) if began.elapsed() < PATIENCE => {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(Failure::of(node.shown(), error)),
        }
    }
}
