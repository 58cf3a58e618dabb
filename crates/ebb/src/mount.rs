//! `ebb mount`: a volume at a directory, from a node of this process or over the network.

use crate::daemon::{self, Report};
use crate::data_dir;
use crate::encryption::DataDir;
use crate::failure::Failure;
use crate::host::{self, Elsewhere, Host};
use crate::http::{Listener, Metrics};
use crate::output::Shown;
use crate::settings;
use crate::signals::Signals;
use crate::source::Source;
use crate::supervisor::{self, Mode};
use crate::supervisor_link::SupervisorLink;
use crate::{block_on, log, passthrough, security};
use ebb_cli::args;
use ebb_cli::places::{self, Left, MountRecord, Process, RunDir};
use ebb_client::{AttachError, Client, ClientPorts, Grant, Link, LocalLink, WireLink};
use ebb_fuse::{Consistency, Ids, Mount, MountError, MountOptions, Session, Volume};
use ebb_model::{ClusterId, FileKind, Ino, Name};
use ebb_node::Node;
use ebb_node::head::TakeOver;
use ebb_os::{OsNet, Security};
use ebb_ports::Disk;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// How long open files keep working after a signal.
const OPEN_FILES_PATIENCE: Duration = Duration::from_secs(10);

/// How long a node may take to force the changes that it has acknowledged.
const DETACH_PATIENCE: Duration = Duration::from_secs(60);

/// A requested mount, checked as far as possible without other processes.
struct Plan {
    /// The source as given.
    text: String,
    source: Source,
    mountpoint: PathBuf,
    options: MountOptions,
    data_dir: PathBuf,
    /// Default data directories of this volume under earlier spellings of its address.
    former_data_dirs: Vec<PathBuf>,
    listen: Option<String>,
    tls: args::Tls,
    security: Security,
    /// Passthrough is granted to the kernel where it is safe.
    passthrough: bool,
    consistency: args::Consistency,
    node: args::Node,
    bucket: args::Bucket,
    run_dir: RunDir,
    /// `Some` if another process supervises this one.
    supervisor_link: Option<SupervisorLink>,
    /// Bound before the volume is taken over: an address in use refuses the mount.
    metrics: RefCell<Option<Listener>>,
    /// Holds the lock of the data directory, unless the mount is a client of a node elsewhere.
    locked: RefCell<Option<Rc<dyn Disk>>>,
    /// The data directory may hold the only copy of changes: it has served a volume before, or
    /// programs or other mounts may have written through this process.
    is_in_use: Cell<bool>,
}

/// `tells`: progress is shown.
pub fn run(args: args::Mount, tells: bool) -> Result<(), Failure> {
    let supervisor_link = SupervisorLink::inherited()?;
    let is_ward = supervisor_link.is_some();
    // A configuration file may have changed by the time that a daemon takes over.
    let foreground = if is_ward { supervisor::is_in_foreground()? } else { args.foreground };
    let plan = Plan::new(args, supervisor_link)?;
    if plan.heir().is_none() {
        Mount::expect_allowed().map_err(|error| Failure::Failed(error.to_string()))?;
    }
    let made = match is_ward {
        false => !plan.data_dir.exists(),
        true => {
            let by_parent = std::env::var_os(daemon::MADE).is_some();
            plan.heir().is_none() && (by_parent || !plan.data_dir.exists())
        }
    };
    let log_path = plan.data_dir.join("ebb.log");
    let level = plan.node.log;
    if is_ward {
        let mut report = Report::inherited().unwrap_or(Report::Closed);
        if foreground {
            log::to_stderr(level)
        } else {
            log::to_file(level, log_path)
        }
        std::env::set_current_dir("/").map_err(|error| Failure::of("/", error))?;
        return block_on(async {
            let outcome = plan.mount(&mut report).await;
            if outcome.is_err() && made && !plan.is_in_use.get() {
                plan.remove_data();
            }
            outcome.inspect_err(|failure| report.failed(failure))
        });
    }
    if foreground {
        // The daemon has reported everything itself.
        let Plan { mountpoint, data_dir, .. } = plan;
        return match supervisor::run(Mode::Foreground { level, mountpoint, data_dir }, None)? {
            0 => Ok(()),
            status => Err(Failure::Found(status)),
        };
    }
    // The directory of the log; the node will need it too.
    ebb_os::ports(&plan.data_dir)
        .map_err(|error| Failure::of("the data directory cannot be used", error))?;
    daemon::start(&log_path, &plan.mountpoint, &plan.data_dir, tells, made)
}

/// Checks a mount as far as possible without making it.
pub fn check(args: args::Mount) -> Result<(), Failure> {
    Plan::new(args, None).map(|_| ())
}

impl Plan {
    fn new(args: args::Mount, supervisor_link: Option<SupervisorLink>) -> Result<Plan, Failure> {
        let source = Source::parse(&args.source)?;
        settings::check(&args.node)?;
        if matches!(source, Source::Served { .. }) && !args.bucket.members.is_empty() {
            return Err(Failure::Usage(format!(
                "{} is served by another process: buckets are configured there",
                args.source
            )));
        }
        let mut options = MountOptions { source: args.source.clone(), ..MountOptions::default() };
        for list in &args.options {
            options.apply(list).map_err(|error| Failure::Usage(error.to_string()))?;
        }
        for (option, ranges) in [("map_uid", &args.map_uid), ("map_gid", &args.map_gid)] {
            for range in ranges {
                options
                    .apply(&format!("{option}={range}"))
                    .map_err(|error| Failure::Usage(error.to_string()))?;
            }
        }
        options.squash = (args.squash == args::Squash::Root)
            .then_some(Ids { uid: args.anonymous_uid, gid: args.anonymous_gid });
        if let Some(Ids { uid, gid }) = options.squash {
            let known = options.ids.users.to_remote(uid).is_some_and(|uid| uid != 0)
                && options.ids.groups.to_remote(gid).is_some();
            if !known {
                return Err(Failure::Usage(format!(
                    "squash: user {uid} or group {gid} is in no range of map-uid and map-gid, or \
                     root of the volume; choose another with anonymous-uid and anonymous-gid"
                )));
            }
        }
        options.read_only |= args.node.take_over == args::TakeOver::Never;
        // The mount waits for this process, so its path must not be looked up.
        let is_resumed = supervisor_link.as_ref().is_some_and(SupervisorLink::is_resumed);
        let chosen = |name| std::env::var_os(name).filter(|_| is_resumed).map(PathBuf::from);
        let mountpoint = match chosen(supervisor::MOUNTPOINT) {
            Some(mountpoint) => mountpoint,
            None => Mount::prepare(&args.mountpoint).map_err(|error| match error {
                MountError::Missing(_) | MountError::NotDirectory(_) => {
                    Failure::Usage(error.to_string())
                }
                error => Failure::Failed(error.to_string()),
            })?,
        };
        if mountpoint.to_str().is_none() {
            return Err(Failure::Usage(format!(
                "mount point {} is not UTF-8: choose another name",
                mountpoint.shown()
            )));
        }
        // Clients of a node share nothing on disk but have a log each.
        let given = chosen(supervisor::DATA_DIR).or_else(|| args.node.data.clone());
        let (data_dir, former_data_dirs) = match (given, &source) {
            (Some(data_dir), _) => (data_dir, Vec::new()),
            (None, Source::Storage { url }) => data_dir::of_storage(url)?,
            (None, Source::Served { .. }) => {
                let key = format!("{} at {}", args.source, mountpoint.display());
                (places::data_dir(&key), Vec::new())
            }
        };
        let data_dir =
            std::path::absolute(&data_dir).map_err(|error| Failure::of(data_dir.shown(), error))?;
        if !is_resumed {
            let real = places::real(&data_dir);
            if real.starts_with(&mountpoint) {
                let (data, at) = (data_dir.shown(), mountpoint.shown());
                return Err(Failure::Usage(format!(
                    "the data directory {data} would be below its own mount, at {at}: put it \
                     elsewhere with --data"
                )));
            }
            settings::check_apart(
                &args.source,
                &args.bucket,
                &[("the data directory", &real), ("the mount point", &mountpoint)],
            )?;
        }
        let run_dir = RunDir::of_user()
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        let (listen, mut node, bucket) = (args.listen, args.node, args.bucket);
        let tls = security::located(args.tls)?;
        let security = security::open(&tls).map_err(Failure::Failed)?;
        if !is_resumed {
            security::check_validity(&security)?;
        }
        // A daemon has another working directory.
        if let Some(file) = &mut node.encryption.encryption_key_file {
            *file =
                std::path::absolute(&*file).map_err(|error| Failure::of(file.shown(), error))?;
        }
        if listen.is_some() && matches!(source, Source::Served { .. }) {
            return Err(Failure::Usage(
                "--listen is for what this mount serves itself: others can \
                mount an ebb:// source as it is"
                    .into(),
            ));
        }
        let passthrough = args.passthrough == args::Passthrough::Auto;
        let consistency = args.consistency;
        let text = args.source;
        Ok(Plan {
            text,
            source,
            mountpoint,
            options,
            data_dir,
            former_data_dirs,
            listen,
            tls,
            security,
            passthrough,
            consistency,
            node,
            bucket,
            run_dir,
            supervisor_link,
            metrics: RefCell::default(),
            locked: RefCell::default(),
            is_in_use: Cell::new(false),
        })
    }

    /// Removes the data directory that this command has created, if the mount was refused. A
    /// directory that another process has locked or used in the meantime stays.
    fn remove_data(&self) {
        let locked = self.locked.take().or_else(|| {
            let disk = ebb_os::ports(&self.data_dir).ok()?.disk;
            disk.lock().ok()?;
            (!data_dir::may_hold_changes(&self.data_dir)).then_some(disk)
        });
        if locked.is_some()
            && let Err(error) = data_dir::remove(&self.data_dir)
        {
            tracing::warn!(%error, data = %self.data_dir.shown(), "the data directory stays");
        }
    }

    async fn bind_metrics(&self) -> Result<(), Failure> {
        let is_bound = self.metrics.borrow().is_some();
        if let Some(address) = self.node.metrics.as_ref().filter(|_| !is_bound) {
            let listener = Listener::at_address(&address.0).await?;
            self.metrics.replace(Some(listener));
        }
        Ok(())
    }

    async fn mount(&self, report: &mut Report) -> Result<(), Failure> {
        let mut signals = Signals::listen()?;
        report
            .watch(signals.ask())
            .map_err(|error| Failure::of("who has asked for the mount", error))?;
        if let Some(supervisor_link) = &self.supervisor_link {
            supervisor_link.hears();
        }
        if matches!(self.security, Security::Insecure) {
            tracing::warn!("{}", security::INSECURE);
            report.warn(security::INSECURE);
        }
        self.run_dir
            .sweep()
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        match &self.source {
            Source::Storage { url } => self.embedded(url, report, &mut signals).await,
            Source::Served { addresses, volume, subdirectory } => {
                self.bind_metrics().await?;
                self.detached(addresses, volume, subdirectory, report, &mut signals).await
            }
        }
    }

    /// Node and mount in one process (O-5), or a client of the node that has the volume already.
    async fn embedded(
        &self,
        url: &str,
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let settings =
            settings::node(&self.node, &self.volume(), &self.data_dir, self.options.read_only);
        let mut options = ebb_node::Options { embedded: self.listen.is_none(), ..settings };
        options.resumes =
            self.heir().and_then(|supervisor_link| supervisor_link.handover().session());
        if self.heir().is_some_and(SupervisorLink::has_joined) {
            options.take_over = TakeOver::Leave;
        }
        let read_only = options.read_only;
        let listen = self.listen.as_ref().map(|address| {
            self.heir()
                .map_or_else(|| address.clone(), |supervisor_link| supervisor_link.address(address))
        });
        let listen = listen.as_deref();
        let data_dir = DataDir { path: &self.data_dir, encryption: &self.node.encryption };
        for former in &self.former_data_dirs {
            report.warn(&data_dir::former(former, &self.data_dir));
        }
        let node = loop {
            let locked = host::lock(&data_dir, &self.security, report, signals).await?;
            self.locked.replace(Some(locked.ports.disk.clone()));
            if data_dir::may_hold_changes(&self.data_dir) {
                self.is_in_use.set(true);
            }
            // Not before: the previous owner of the data directory may have had the address too.
            self.bind_metrics().await?;
            match host::open(url, &self.bucket, locked, listen, options.clone(), report, signals)
                .await?
            {
                Host::Here(node, port) => {
                    if listen.is_some() {
                        self.is_in_use.set(true);
                    }
                    if let (Some(supervisor_link), Some(port)) = (&self.supervisor_link, port) {
                        supervisor_link.listens(port);
                    }
                    break node;
                }
                Host::Elsewhere(there) => {
                    self.locked.take();
                    if let Some(supervisor_link) =
                        self.heir().filter(|supervisor_link| !supervisor_link.has_joined())
                    {
                        supervisor_link.gives_up();
                        return Err(Failure::Failed(format!(
                            "{url} is served by another node now, at {}",
                            there.address
                        )));
                    }
                    if there.stranded > 0 {
                        let what = format!(
                            "{} changes in it never reached {url}, which another node serves now",
                            there.stranded
                        );
                        tracing::error!(data = %self.data_dir.shown(), "{what}: docs/operation.md \
                            says how to get at them");
                        report.warn(&format!("{}: {what}", self.data_dir.shown()));
                    }
                    let why = match self.join(&there, report, signals).await? {
                        Ok((client, addresses)) => {
                            if let Some(supervisor_link) = &self.supervisor_link {
                                supervisor_link.joins();
                            }
                            return self
                                .over_client(client, &addresses, &[], report, signals)
                                .await;
                        }
                        Err(why) => why,
                    };
                    if options.take_over == TakeOver::Leave {
                        return Err(Failure::of(&there.address, why));
                    }
                    report.note(&format!("{url} cannot be joined at {}: {why}", there.address));
                    options.take_over = TakeOver::IfAbandoned;
                }
            }
        };
        let outcome = tokio::select! {
            outcome = self.over_node(&node, read_only, report, signals) => outcome,
            // Other mounts wait for a node with the state acknowledged to them: the next start of
            // this one.
            error = node.failure(), if listen.is_some() => return Err(host::failed(&self.data_dir, &error)),
        };
        if outcome.is_err() && self.leaves_all() {
            return outcome.map(drop);
        }
        let left = host::stop(&node, read_only, signals).await;
        if left.is_some() {
            self.is_in_use.set(true);
        }
        match outcome {
            // The mount was never usable, or ended by itself.
            Err(failure) => Err(failure),
            Ok(record) => self.end(record, left),
        }
    }

    /// The volume's name for clients: the last part of its source.
    fn volume(&self) -> String {
        let last = self.text.rsplit('/').find(|part| !part.is_empty() && !part.ends_with(':'));
        last.unwrap_or(&self.text).to_owned()
    }

    /// A client of the node that serves the volume, and its addresses; or why not.
    async fn join(
        &self,
        there: &Elsewhere,
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<Result<(Client, Vec<String>), AttachError>, Failure> {
        let Ok(Source::Served { addresses, volume, .. }) = Source::parse(&there.address) else {
            return Ok(Err(AttachError::Unreachable("that is no address of a node".into())));
        };
        let client =
            self.attach_to(&addresses, &volume, Some(there.cluster), report, signals).await?;
        Ok(client.map(|client| (client, addresses)))
    }

    async fn over_node(
        &self,
        node: &Rc<Node>,
        read_only: bool,
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<MountRecord, Failure> {
        let control = format!("unix:{}", self.run_dir.socket().display());
        let listener = node
            .ports()
            .net
            .listen(&control)
            .await
            .map_err(|error| Failure::of("cannot listen for other commands", error))?;
        node.ports().spawn.spawn(Box::pin(ebb_node::wire::serve(node.clone(), listener)));
        let (handler, teller) = (node.clone(), node.clone());
        let link = LocalLink::new(
            move |request| handler.handle(request),
            move |session| {
                let teller = teller.clone();
                Box::pin(async move { teller.next_notice(session).await })
            },
        );
        let lender = node.clone();
        let link = link.granting(move |ino, request| {
            let lender = lender.clone();
            Box::pin(async move {
                let file = lender.grant(ino, request).await?;
                Ok(file.map(|file| Grant::new(file, move || lender.take_back(ino))))
            })
        });
        // After a restart it attaches under the same name, which ends its previous session.
        let name = "the mount of the node itself".to_owned();
        let others = self.listen.is_some();
        let options = ebb_client::Options {
            read_only,
            others,
            ..ebb_client::Options::new(node.volume(), name)
        };
        let client = self.attach(Rc::new(link), ClientPorts::from(node.ports()), options).await;
        let client = client.map_err(|error| Failure::of(&self.text, error))?;
        let record = self.record(control, true, client.is_read_only());
        let outcome = self
            .serve(client.clone(), Ino::ROOT, record, Some(node.clone()), report, signals)
            .await;
        if outcome.is_err() && self.leaves_all() {
            return outcome;
        }
        if let Err(error) = client.detach(DETACH_PATIENCE).await {
            tracing::error!(%error, "what was acknowledged could not be made safe from a power \
                cut");
        }
        outcome
    }

    /// Attaches in the place of the daemon before, if there was one.
    async fn attach(
        &self,
        link: Rc<dyn Link>,
        ports: ClientPorts,
        options: ebb_client::Options,
    ) -> Result<Client, AttachError> {
        let Some(supervisor_link) = &self.supervisor_link else {
            return Client::attach(link, ports, options).await;
        };
        let attached =
            Client::attach_resumed(link, ports, options, supervisor_link.handover().clone()).await;
        if let Err(AttachError::Lost(_)) = attached {
            supervisor_link.gives_up();
        }
        attached
    }

    /// A client of a node somewhere (O-4).
    async fn detached(
        &self,
        addresses: &[String],
        volume: &str,
        subdirectory: &[Name],
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let client = self.attach_to(addresses, volume, None, report, signals).await?;
        let client = client.map_err(|error| Failure::of(&self.text, error))?;
        self.over_client(client, addresses, subdirectory, report, signals).await
    }

    /// A client of the leader among the nodes at these addresses: of the volume of that name, or of
    /// just this one.
    async fn attach_to(
        &self,
        addresses: &[String],
        volume: &str,
        cluster: Option<ClusterId>,
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<Result<Client, AttachError>, Failure> {
        let ports = ebb_os::ports(&self.data_dir)
            .map_err(|error| Failure::of("the data directory cannot be used", error))?;
        let net = Rc::new(OsNet::new(self.security.clone()));
        let link = WireLink::new(net, ClientPorts::from(&ports), addresses.iter().cloned());
        let link = link.borrowing(passthrough::grantee(self.run_dir.clone()));
        report.note(&format!("attaching to {}", addresses.join(", ")));
        let name = format!(
            "{} process {} at {}",
            settings::host_name(),
            std::process::id(),
            self.mountpoint.display()
        );
        let options = ebb_client::Options {
            read_only: self.options.read_only,
            cluster,
            ..ebb_client::Options::new(volume, name)
        };
        tokio::select! {
            client = self.attach(Rc::new(link), ClientPorts::from(&ports), options) => Ok(client),
            () = signals.next() => Err(Failure::Failed("interrupted".into())),
        }
    }

    async fn over_client(
        &self,
        client: Client,
        addresses: &[String],
        subdirectory: &[Name],
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let address = addresses.join(",");
        let root = match self.heir() {
            Some(supervisor_link) => Ok(supervisor_link.root()),
            None => directory(&client, subdirectory).await,
        };
        let outcome = match root {
            Ok(root) => {
                let record = self.record(address.clone(), false, client.is_read_only());
                self.serve(client.clone(), root, record, None, report, signals).await
            }
            Err(failure) => Err(failure),
        };
        if outcome.is_err() && self.leaves_all() {
            return outcome.map(drop);
        }
        let detached = tokio::select! {
            detached = client.detach(DETACH_PATIENCE) => detached,
            () = signals.next() => Err(ebb_model::FsError::TimedOut),
        };
        let record = outcome?;
        match detached {
            Ok(()) => self.end(record, None),
            Err(error) => {
                let why = format!(
                    "{address} has not confirmed that everything is safe from a power cut there: \
                     {error}"
                );
                self.end(record, Some(Left { files: 0, bytes: 0, deletes: 0, why }))
            }
        }
    }

    /// This daemon failed to take over: it leaves all state to the next one as it found it.
    fn leaves_all(&self) -> bool {
        self.supervisor_link.as_ref().is_some_and(SupervisorLink::takes_over)
    }

    /// If a daemon before this one has left something.
    fn heir(&self) -> Option<&SupervisorLink> {
        self.supervisor_link.as_ref().filter(|supervisor_link| supervisor_link.is_resumed())
    }

    fn record(&self, control: String, embedded: bool, read_only: bool) -> MountRecord {
        let subdirectory = match &self.source {
            Source::Served { subdirectory, .. } => subdirectory
                .iter()
                .map(|name| std::ffi::OsStr::from_bytes(name.as_bytes()))
                .collect(),
            Source::Storage { .. } => PathBuf::new(),
        };
        MountRecord {
            mountpoint: self.mountpoint.clone(),
            source: self.text.clone(),
            daemon: Process::this(),
            supervisor: self.supervisor_link.as_ref().and_then(SupervisorLink::supervisor),
            allow_handover: false,
            control,
            tls: self.tls.tls.clone(),
            insecure: self.tls.insecure,
            counters: Some(self.run_dir.counters_socket()),
            subdirectory,
            root: None,
            embedded,
            data_dir: self.data_dir.clone(),
            device: None,
            read_only,
            consistency: self.consistency,
            ending: false,
            left: None,
        }
    }

    /// Mounts, reports the mount once it answers, and serves it to its end.
    async fn serve(
        &self,
        client: Client,
        root: Ino,
        record: MountRecord,
        node: Option<Rc<Node>>,
        report: &mut Report,
        signals: &mut Signals,
    ) -> Result<MountRecord, Failure> {
        // A mount that no other can join leaves locks to the kernel.
        let shared_locks = !record.embedded || self.listen.is_some();
        let read_only = client.is_read_only();
        let passthrough = node.is_some()
            || self.run_dir.lender(client.run()).is_ok_and(|lender| lender.is_some());
        let passthrough = self.passthrough && passthrough;
        let mut consistency = match self.consistency {
            args::Consistency::Strong => Consistency::Strong,
            args::Consistency::CloseToOpen => Consistency::CloseToOpen,
        };
        let options = MountOptions {
            read_only,
            shared_locks,
            passthrough,
            consistency,
            ..self.options.clone()
        };
        let failed = |error: ebb_fuse::SessionError| Failure::of(self.mountpoint.shown(), error);
        let mut session =
            match self.supervisor_link.as_ref().and_then(|link| link.left(self.mountpoint.clone()))
            {
                Some((left, as_agreed)) => {
                    consistency = as_agreed;
                    Session::take_over(left).await.map_err(failed)?
                }
                None => {
                    let mount = Mount::new(&self.mountpoint, &options)
                        .map_err(|error| Failure::Failed(error.to_string()))?;
                    self.is_in_use.set(true);
                    Session::start(mount).await.map_err(failed)?
                }
            };
        session.hold_at_most(settings::request_buffer_bytes(&self.node));
        if let Some(node) = node.clone() {
            session.when_idle(move || node.apply_deferred());
        }
        let connection = match &self.supervisor_link {
            Some(supervisor_link) => supervisor_link.prepare(&mut session, root, consistency)?,
            None => None,
        };
        let device = Mount::device_at(&self.mountpoint)
            .map_err(|error| Failure::of(self.mountpoint.shown(), error))?;
        let record = MountRecord {
            root: (root != Ino::ROOT).then_some(root),
            device,
            allow_handover: connection.is_some(),
            ..record
        };
        let counters = session.counters();
        counters.tell_slower_than(settings::slow_operation(&self.node));
        let told = Metrics { mount: Some(counters), node: node.clone(), host: None };
        let socket = Listener::at_path(self.run_dir.counters_socket())
            .map_err(|error| Failure::of("the run directory cannot be used", error))?;
        [Some(socket), self.metrics.take()]
            .into_iter()
            .flatten()
            .for_each(|listener| listener.answer(told.clone()));
        let (notifier, agreed) = (session.notifier(), session.negotiated());
        let volume = Volume::new(
            client,
            root,
            notifier,
            agreed,
            options.access,
            consistency,
            session.passthrough(),
        )
        .mapping(options.ids)
        .squashing(options.squash);
        volume.take_up().await;
        let mut announced = Ok(());
        let stop = async {
            announced = self.announce(&record, connection, report).await;
            if announced.is_ok() {
                signals.next().await;
                tracing::info!("stopping; a second signal ends without waiting for the bucket");
            }
        };
        let ended = tokio::select! {
            ended = session.serve(&volume, stop, OPEN_FILES_PATIENCE) => ended.map_err(failed)?,
            never = self.forsake(node.as_deref(), &record) => match never {},
        };
        tracing::info!(?ended, "the mount has ended");
        announced?;
        let record = MountRecord { ending: true, ..record };
        self.run_dir
            .update(&record)
            .map_err(|error| Failure::of("the record of the mount", error))?;
        Ok(record)
    }

    /// Once its disk has failed, errors that a node has returned are known to it alone: no daemon
    /// may take over from it.
    async fn forsake(&self, node: Option<&Node>, record: &MountRecord) -> Infallible {
        if let (Some(node), Some(supervisor_link), true) =
            (node, &self.supervisor_link, record.allow_handover)
        {
            let error = node.failure().await;
            tracing::error!(%error, "the disk has failed: with the daemon the mount dies");
            supervisor_link.gives_up();
            if let Err(error) =
                self.run_dir.update(&MountRecord { allow_handover: false, ..record.clone() })
            {
                tracing::warn!(%error, "the record of the mount");
            }
        }
        std::future::pending().await
    }

    /// From here on another daemon takes over. Not before the mount answers: until then a failure
    /// is reported to the caller of the command. Before the mount is reported as usable: this
    /// daemon may be killed right after that.
    async fn announce(
        &self,
        record: &MountRecord,
        connection: Option<OwnedFd>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let mountpoint = self.mountpoint.clone();
        let answers =
            tokio::task::spawn_blocking(move || std::fs::metadata(mountpoint).map(|_| ())).await;
        let answers = answers.map_err(std::io::Error::other).and_then(|answer| answer);
        answers.map_err(|error| Failure::of(self.mountpoint.shown(), error))?;
        self.run_dir
            .write(record)
            .map_err(|error| Failure::of("the mount cannot be recorded", error))?;
        tracing::info!(
            source = self.text,
            at = %self.mountpoint.shown(),
            data = %self.data_dir.shown(),
            "mounted"
        );
        if let Some(supervisor_link) = &self.supervisor_link {
            if let Some(connection) = connection {
                supervisor_link.serves(connection);
            }
            supervisor_link.ready();
        }
        let (at, data) = (self.mountpoint.shown(), self.data_dir.shown());
        let text = format!("{} is mounted at {at}; its data directory is {data}", self.text);
        if report.ready(&text) {
            return Ok(());
        }
        self.run_dir
            .remove(record)
            .map_err(|error| Failure::of("the record of the mount", error))?;
        Err(Failure::Failed("whoever asked for the mount has gone".into()))
    }

    /// Records the changes that are left, if any.
    fn end(&self, record: MountRecord, left: Option<Left>) -> Result<(), Failure> {
        let noted = match &left {
            None => self.run_dir.remove(&record),
            Some(_) => self.run_dir.update(&MountRecord { left: left.clone(), ..record }),
        };
        noted.map_err(|error| Failure::of("the record of the mount", error))?;
        match left {
            None => Ok(()),
            Some(left) if left.files + left.deletes == 0 => Err(Failure::Failed(left.why)),
            Some(left) => Err(Failure::Failed(format!(
                "{} files and {} deletions had not reached the bucket: {}. They are safe in {}; \
                 mount again to go on",
                left.files,
                left.deletes,
                left.why,
                self.data_dir.shown()
            ))),
        }
    }
}

/// The directory at a path from the root of the volume.
async fn directory(client: &Client, path: &[Name]) -> Result<Ino, Failure> {
    let mut at = Ino::ROOT;
    let mut shown = PathBuf::new();
    for name in path {
        shown.push(Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())));
        let refused = |error: &dyn std::fmt::Display| {
            Failure::of(format!("subdirectory {}", shown.shown()), error)
        };
        let attr = client.lookup(at, name).await.map_err(|error| refused(&error))?;
        if attr.kind != FileKind::Directory {
            return Err(refused(&"not a directory"));
        }
        at = attr.ino;
    }
    Ok(at)
}
