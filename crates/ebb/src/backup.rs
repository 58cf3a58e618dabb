//! `ebb backup` and `ebb restore`: a volume's metadata in other storage, and a data directory made
//! of it (decision 14).

use crate::ask::{ResolvedTarget, node_status};
use crate::encryption::{self, DataDir};
use crate::failure::Failure;
use crate::fsck::ask;
use crate::output::{self, Shown};
use crate::progress::Progress;
use crate::settings;
use crate::source::path_bytes;
use ebb_cli::args::{Backup, Restore, TakeAway, Tls};
use ebb_cli::member;
use ebb_cli::render::with_path;
use ebb_cli::units::Bytes;
use ebb_model::{AdminReply, AdminRequest, shown_path};
use ebb_node::head::TakeOver;
use ebb_node::{ENCRYPTION, Loss, Of, Options, Outlook, Restoring, TakingOver};
use serde_json::json;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// `ebb backup`
pub async fn back_up(args: Backup) -> Result<(), Failure> {
    let node = ResolvedTarget::of(&args.mount, &Tls::default())?;
    let record = node.mount.as_ref().filter(|record| record.embedded);
    let record = record.ok_or_else(|| {
        Failure::Usage(format!("{} has its node elsewhere: back it up there", args.mount.shown()))
    })?;
    let failed = |error: &dyn std::fmt::Display| Failure::of(&args.target, error);
    let backing = node_status(&node.address).await?.backing;
    if member::overlap((&backing, &None), (&args.target, &None)) {
        return Err(Failure::Usage(format!(
            "{} would be shown in the volume, which is over {backing}",
            args.target
        )));
    }
    let target = ebb_bucket::open(&args.target, &settings::bucket(&args.store, false, None))
        .await
        .map_err(|error| failed(&error))?;
    let AdminReply::Snapshot { cluster, incarnation, index, unloaded } =
        node.ask(AdminRequest::Snapshot).await?
    else {
        return Err(Failure::Failed("a reply of the wrong kind".into()));
    };
    let encryption = read_if_there(&record.data_dir.join(ENCRYPTION))?;
    let ports = ebb_os::ports(&record.data_dir).map_err(|error| failed(&error))?;
    let of = Of { cluster, incarnation, backing, index, encryption };
    let mut progress = Progress::new("backup");
    let show = |done| progress.show(done, done, || format!("{} copied", Bytes(done)));
    let done = ebb_node::backup(&ports, of, &*ports.disk, &*target, show)
        .await
        .map_err(|error| failed(&error))?;
    drop(progress);
    let bytes = done.parts.iter().map(|part| u64::from(part.len_bytes)).sum();
    let encrypted = done.encryption.is_some();
    if args.output.json {
        return output::json(
            &json!({ "bytes": bytes, "index": done.index.0, "encrypted": encrypted, "unloaded_directories": unloaded }),
        );
    }
    let left_out = match unloaded {
        0 => String::new(),
        _ => format!(
            "{unloaded} directories were not loaded: what is in them is in the bucket alone\n"
        ),
    };
    output::print(&format!("{} in {}\n{left_out}", Bytes(bytes), args.target))
}

/// `ebb restore`
pub async fn restore(args: Restore) -> Result<(), Failure> {
    let shown = args.data_dir.shown();
    let failed = |error: &dyn std::fmt::Display| Failure::of(&shown, error);
    let open = async |url: &str, read_only| {
        ebb_bucket::open(url, &settings::bucket(&args.store, read_only, None))
            .await
            .map_err(|error| Failure::of(url, error))
    };
    let source = open(&args.source, true).await?;
    let raw = ebb_os::ports(&args.data_dir).map_err(|error| failed(&error))?;
    raw.disk.lock().map_err(|error| failed(&error))?;
    let found = ebb_node::find_backup(&raw, &*source).await.map_err(|error| failed(&error))?;
    let mut progress = Progress::new("restore");
    let total = found.parts.iter().map(|part| u64::from(part.len_bytes)).sum();
    let show =
        |done| progress.show(done, total, || format!("{} of {} read", Bytes(done), Bytes(total)));
    ebb_node::fetch_backup(&raw, &found, &*source, &*raw.disk, show)
        .await
        .map_err(|error| failed(&error))?;
    drop(progress);
    let has_key = args.encryption.encryption_key_file.is_some()
        || args.encryption.encryption_key_command.is_some();
    if has_key && found.encryption.is_none() {
        return Err(Failure::Usage(
            "the backup is of a data directory that is not encrypted, and so is what is made of it"
                .into(),
        ));
    }
    let ports = encryption::unlock(
        raw.clone(),
        &DataDir { path: &args.data_dir, encryption: &args.encryption },
    )
    .await?;
    // SAFETY: both calls have no preconditions and cannot fail.
    let owner = unsafe { (libc::geteuid(), libc::getegid()) };
    let restoring =
        Restoring::read(ports, found.clone(), owner).await.map_err(|error| failed(&error))?;
    let outlook = restoring
        .outlook(&*open(&args.volume, true).await?)
        .await
        .map_err(|error| failed(&error))?;
    if !args.output.json {
        output::print(&text(&outlook))?;
    }
    let question = format!("Restore that, and take over {} from whoever serves it?", args.volume);
    if !args.yes && !ask(&question)? {
        ebb_node::discard_backup(&found, &*raw.disk).await.map_err(|error| failed(&error))?;
        if args.output.json {
            output::json(&document(&outlook, false))?;
        }
        return Err(Failure::Failed("nothing was done".into()));
    }
    let taking_over = TakingOver {
        owner: format!(
            "{} ({shown}, process {}, restoring)",
            settings::host_name(),
            std::process::id()
        ),
        term: Options::default().head_term,
        take_over: match args.take_over {
            TakeAway::Now => TakeOver::Now,
            TakeAway::IfAbandoned => TakeOver::IfAbandoned,
        },
    };
    let outlook = restoring
        .carry_out(open(&args.volume, false).await?, taking_over)
        .await
        .map_err(|error| failed(&error))?;
    match args.output.json {
        true => output::json(&document(&outlook, true)),
        false => output::print(&format!("restored: mount {} with --data {shown}\n", args.volume)),
    }
}

fn text(outlook: &Outlook) -> String {
    let mut out = String::new();
    for (path, loss) in &outlook.losses {
        out += &format!("{:<8} /{}\n", word(*loss), shown_path(&path_bytes(path)));
    }
    let count = |wanted| outlook.losses.iter().filter(|(_, loss)| *loss == wanted).count();
    out += &format!(
        "{} inodes; {} files as they were last sent to the bucket, {} as they are there now, {} \
         whose content is lost; {} other objects\n",
        outlook.inodes,
        count(Loss::Older),
        count(Loss::Changed),
        count(Loss::Lost),
        outlook.others
    );
    out
}

fn document(outlook: &Outlook, restored: bool) -> serde_json::Value {
    let paths = |wanted| {
        outlook
            .losses
            .iter()
            .filter(|(_, loss)| *loss == wanted)
            .map(|(path, _)| with_path(&path_bytes(path), json!({})))
            .collect::<Vec<_>>()
    };
    json!({
        "restored": restored,
        "inodes": outlook.inodes,
        "others": outlook.others,
        "older": paths(Loss::Older),
        "changed": paths(Loss::Changed),
        "lost": paths(Loss::Lost),
    })
}

fn word(loss: Loss) -> &'static str {
    match loss {
        Loss::Older => "older",
        Loss::Changed => "changed",
        Loss::Lost => "lost",
    }
}

fn read_if_there(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::of(path.shown(), error)),
    }
}
