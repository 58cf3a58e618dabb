//! `ebb serve`: a node for other mounts.

use crate::daemon::Report;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{host, log, output, settings, supervisor};
use ebb_cli::{args, places};

pub async fn run(args: args::Serve) -> Result<(), Failure> {
    settings::check(&args.node)?;
    if args.name.is_empty() || args.name.contains('/') {
        return Err(Failure::Usage(format!("{:?} cannot be the name of a volume: it stands in ebb://HOST:PORT/VOLUME", args.name)));
    }
    log::to_stderr(args.node.log);
    let mut signals = Signals::listen()?;
    let data_dir = args.node.data.clone().unwrap_or_else(|| places::data_dir(&args.backing));
    let options = settings::node(&args.node, &args.name, &data_dir, false);
    let node = host::open(&args.backing, &args.bucket, &data_dir, options, &mut Report::Log, &mut signals).await?;
    let listener = match node.ports().net.listen(&args.listen).await {
        Ok(listener) => listener,
        Err(error) => {
            host::stop(&node, &mut signals).await;
            return Err(Failure::of("cannot listen", error));
        }
    };
    output::print(&format!("serving ebb://{}/{} over {}\n", listener.address(), args.name, args.backing))?;
    node.ports().spawn.spawn(Box::pin(ebb_node::wire::serve(node.clone(), listener)));
    supervisor::ready();
    signals.next().await;
    tracing::info!("stopping: writing what is dirty to the bucket; a second signal ends without waiting");
    match host::stop(&node, &mut signals).await {
        None => Ok(()),
        Some(left) => Err(Failure::Failed(format!(
            "{} files had not reached the bucket: {}. They are safe in {}, and the next start goes on with them",
            left.files,
            left.why,
            data_dir.display()
        ))),
    }
}
