//! The objects behind the mount, read by a client that knows nothing of ebb.

use ebb_rig::rig::Rig;
use ebb_rig::work::files;
use ebb_rig::{Outcome, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most objects that are fetched one by one.
const SAMPLE: usize = 200;

/// Compares the objects with the files of the reference copy; says how and how many.
pub fn compare(rig: &Rig, reference: &Path) -> Outcome<String> {
    let copy = rig.dir.join("objects");
    fs::create_dir(&copy)?;
    let with_aws = tool::has("aws", "--version");
    match with_aws {
        true => sync(rig, &copy)?,
        false => fetch(rig, reference, &copy)?,
    }
    let (mut same, mut bytes) = (0, 0);
    for path in files(&copy)? {
        let below = path.strip_prefix(&copy)?;
        if below.starts_with(".ebb") {
            continue;
        }
        let (object, file) = (fs::read(&path)?, fs::read(reference.join(below))?);
        if object != file {
            return Err(format!("the object of {} is not the file", below.display()).into());
        }
        same += 1;
        bytes += object.len();
    }
    if same == 0 {
        return Err("there are no objects".into());
    }
    Ok(format!(
        "{same} objects, {} MiB, with {}",
        bytes >> 20,
        if with_aws { "aws" } else { "curl" }
    ))
}

fn sync(rig: &Rig, copy: &Path) -> Outcome<()> {
    let mut command = Command::new("aws");
    command.envs(rig.store.environment.iter().cloned());
    if let Some(endpoint) = rig.store.endpoint() {
        command.args(["--endpoint-url", endpoint]);
    }
    command.args(["s3", "sync", "--quiet", &format!("{}/", rig.store.url)]).arg(copy);
    tool::output(&mut command).map(drop)
}

/// Plain names only: what must be encoded in a URL is aws's to show.
fn fetch(rig: &Rig, reference: &Path, copy: &Path) -> Outcome<()> {
    let of = |name: &str| rig.store.variable(name).map(str::to_owned);
    let from_environment = |name: &str| {
        of(name).or_else(|| std::env::var(name).ok()).ok_or_else(|| format!("{name} is not set"))
    };
    let user = format!(
        "{}:{}",
        from_environment("AWS_ACCESS_KEY_ID")?,
        from_environment("AWS_SECRET_ACCESS_KEY")?
    );
    let endpoint = rig.store.endpoint().ok_or("without aws an endpoint is needed")?;
    let place = rig.store.url.trim_start_matches("s3://");
    let plain = |path: &Path| {
        path.to_str().is_some_and(|text| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte))
        })
    };
    let mut sample: Vec<PathBuf> = files(reference)?
        .into_iter()
        .filter_map(|path| path.strip_prefix(reference).map(Path::to_owned).ok())
        .collect();
    sample.retain(|path| plain(path));
    // A hard-linked inode has one object, below one of its names.
    sample.retain(|path| {
        fs::metadata(reference.join(path))
            .is_ok_and(|meta| std::os::unix::fs::MetadataExt::nlink(&meta) == 1)
    });
    let step = sample.len().div_ceil(SAMPLE).max(1);
    for path in sample.iter().step_by(step) {
        let to = copy.join(path);
        fs::create_dir_all(to.parent().ok_or("a path without a directory")?)?;
        let mut command = Command::new("curl");
        command.args([
            "--fail",
            "--silent",
            "--show-error",
            "--aws-sigv4",
            "aws:amz:us-east-1:s3",
            "--user",
            &user,
        ]);
        command.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
        command.arg(format!("{endpoint}/{place}/{}", path.display())).arg("--output").arg(to);
        tool::output(&mut command)?;
    }
    Ok(())
}
