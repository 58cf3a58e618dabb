//! `ebb serve`: a node for other mounts.

use crate::daemon::Report;
use crate::data_dir;
use crate::encryption::DataDir;
use crate::failure::Failure;
use crate::host::Host;
use crate::http::{Listener, Metrics};
use crate::output::Shown;
use crate::signals::Signals;
use crate::{host, log, output, replicated, security, service, settings};
use ebb_cli::{args, places};
use ebb_os::Security;

pub async fn run(args: args::Serve) -> Result<(), Failure> {
    settings::check(&args.node)?;
    if args.name.is_empty() || args.name.contains('/') {
        return Err(Failure::Usage(format!(
            "{:?} cannot be the name of a volume: it stands in ebb://HOST:PORT/VOLUME",
            args.name
        )));
    }
    let tls = security::located(args.tls.clone())?;
    let security = security::open(&tls).map_err(Failure::Failed)?;
    security::check_validity(&security)?;
    log::to_stderr(args.node.log);
    if matches!(security, Security::Insecure) {
        tracing::warn!("{}", security::INSECURE);
    }
    let mut signals = Signals::listen()?;
    let metrics = match &args.node.metrics {
        Some(address) => Some(Listener::at_address(&address.0).await?),
        None => None,
    };
    let (data_dir, former) = match &args.node.data {
        Some(data_dir) => (data_dir.clone(), Vec::new()),
        None => data_dir::of_storage(&args.backing)?,
    };
    former.iter().for_each(|left| tracing::warn!("{}", data_dir::former(left, &data_dir)));
    settings::check_apart(
        &args.backing,
        &args.bucket,
        &[("the data directory", &places::real(&data_dir))],
    )?;
    let options = settings::node(&args.node, &args.name, &data_dir, false);
    let read_only = options.read_only;
    let listen = Some(args.listen.as_str());
    let place = DataDir { path: &data_dir, encryption: &args.node.encryption };
    let report = &mut Report::Closed;
    let is_replicated = replicated::is_wanted(&args, &data_dir)?;
    let locked = host::lock(&place, &security, report, &mut signals).await?;
    if is_replicated {
        return replicated::run(&args, &tls, &data_dir, locked, options, metrics, &mut signals)
            .await;
    }
    let node = match host::open(
        &args.backing,
        &args.bucket,
        locked,
        listen,
        options,
        report,
        &mut signals,
    )
    .await?
    {
        Host::Here(node, _) => node,
        Host::Elsewhere(there) => {
            return Err(Failure::Failed(format!(
                "{} is served at {}: mount that",
                args.backing, there.address
            )));
        }
    };
    if let Some(metrics) = metrics {
        metrics.answer(Metrics { mount: None, node: Some(node.clone()), host: None });
    }
    output::print(&format!("serving {} over {}\n", node.address(), args.backing))?;
    service::ready();
    tokio::select! {
        () = signals.next() => {}
        error = node.failure() => return Err(host::failed(&data_dir, &error)),
    }
    tracing::info!(
        "stopping: writing what is dirty to the bucket; a second signal ends without waiting"
    );
    match host::stop(&node, read_only, &mut signals).await {
        None => Ok(()),
        Some(left) => Err(Failure::Failed(format!(
            "{} files had not reached the bucket: {}. They are safe in {}, and the next start goes \
             on with them",
            left.files,
            left.why,
            data_dir.shown()
        ))),
    }
}
