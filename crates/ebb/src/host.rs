//! A node in this process: opening it, and the end of it.

use crate::daemon::Report;
use crate::failure::Failure;
use crate::settings;
use crate::signals::Signals;
use ebb_bucket::OpenError;
use ebb_cli::args;
use ebb_cli::places::Left;
use ebb_node::{Node, Options, Stopped};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// What takes longer to open says why.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the storage and a node over it. A signal ends the wait.
pub async fn open(
    url: &str,
    bucket: &args::Bucket,
    data_dir: &Path,
    options: Options,
    report: &mut Report,
    signals: &mut Signals,
) -> Result<Rc<Node>, Failure> {
    let ports = ebb_os::ports(data_dir).map_err(|error| Failure::of("the data directory cannot be used", error))?;
    // Before the storage is asked, which may take its time.
    ports.disk.lock().map_err(|error| Failure::of(data_dir.display(), error))?;
    let bucket = settings::bucket(bucket, options.read_only);
    let opening = async {
        let bucket = ebb_bucket::open(url, &bucket).await.map_err(|error| match error {
            OpenError::Url { .. } | OpenError::Settings { .. } => Failure::Usage(error.to_string()),
            error => Failure::Failed(error.to_string()),
        })?;
        Node::open(ports, Some(bucket), options).await.map_err(|error| Failure::of(data_dir.display(), error))
    };
    tokio::pin!(opening);
    tokio::select! {
        node = &mut opening => return node,
        () = signals.next() => return Err(interrupted()),
        () = tokio::time::sleep(PATIENCE) => {}
    }
    report.note(&format!("opening {url}: waiting to see whether the node that served it last still lives, if it is not this one"));
    tokio::select! {
        node = &mut opening => node,
        () = signals.next() => Err(interrupted()),
    }
}

fn interrupted() -> Failure {
    Failure::Failed("interrupted".into())
}

/// Writes everything dirty to the bucket and stops the node. A signal ends the wait; what
/// has not reached the bucket is given, and safe in the data directory.
pub async fn stop(node: &Rc<Node>, signals: &mut Signals) -> Option<Left> {
    crate::supervisor::stopping();
    let why = tokio::select! {
        stopped = node.stop(true) => match stopped {
            Ok(Stopped::Released) => return None,
            Ok(Stopped::Kept { .. }) => "the bucket did not take it; the log says why".to_owned(),
            Err(error) => error.to_string(),
        },
        () = signals.next() => "it was told to end without waiting for the bucket".to_owned(),
    };
    let status = status(node).await?;
    if status.read_only {
        return None;
    }
    let left = Left { files: status.dirty_files, bytes: status.dirty_bytes, deletes: status.pending_deletes, why };
    if left.files + left.deletes == 0 {
        return None;
    }
    tracing::warn!(files = left.files, bytes = left.bytes, deletes = left.deletes, why = left.why, "not everything reached the bucket");
    Some(left)
}

async fn status(node: &Rc<Node>) -> Option<ebb_model::Status> {
    use ebb_model::{AdminReply, AdminRequest, Reply, Request};
    match node.handle(Request::Admin(AdminRequest::Status)).await {
        Ok(Reply::Admin(AdminReply::Status(status))) => Some(status),
        _ => None,
    }
}
