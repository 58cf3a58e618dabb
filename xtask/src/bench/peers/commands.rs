//! The mount command of each peer: its defaults, except for the settings that an S3 server on this
//! machine requires.

use super::servers::Servers;
use super::{Column, Peer, Programs, Storage};
use crate::Outcome;
use std::process::Command;

impl Peer {
    /// Runs in the foreground.
    pub(super) fn mounting(&self, programs: &Programs) -> Outcome<Command> {
        let (cache, point) = (self.cache().display().to_string(), self.point());
        let Storage { endpoint, bucket, prefix, .. } = &self.storage;
        let program = |program: &str, words: &[&str]| {
            let mut command = programs.command(program);
            command.args(words);
            command
        };
        let mut command = match (self.column, &self.servers) {
            (_, Servers::MooseFs(cluster)) => return Ok(cluster.mounting(programs, &point)),
            (_, Servers::Redis(redis)) => program(
                "juicefs",
                &[
                    "mount",
                    "--no-usage-report",
                    "--no-syslog",
                    "--metrics",
                    "127.0.0.1:0",
                    "--cache-dir",
                    &cache,
                    &redis.url,
                ],
            ),
            (_, Servers::SeaweedFs(weed)) => {
                let (dir, socket) = (point.display(), self.directory.join("mount.sock"));
                let mut command = program(
                    "weed",
                    &[
                        "-logtostderr=true",
                        "mount",
                        &format!("-filer={}", weed.url),
                        &format!("-dir={dir}"),
                    ],
                );
                command
                    .arg(format!("-cacheDir={cache}"))
                    .arg(format!("-localSocket={}", socket.display()));
                return Ok(command);
            }
            (_, Servers::ZeroFs(zerofs)) => program("zerofs", &["mount", &zerofs.url]),
            (Column::S3fs, _) => {
                let options = format!(
                    "url={endpoint},use_path_request_style,endpoint=us-east-1,listobjectsv2,tmpdir={cache}"
                );
                let mut command = program("s3fs", &["-f", "-o", &options]);
                command.arg(format!("{bucket}:/{prefix}"));
                command
            }
            (Column::GeeseFs, _) => {
                let log = self.log().display().to_string();
                let asked = [
                    "-f",
                    "--log-file",
                    &log,
                    "--endpoint",
                    endpoint,
                    "--region",
                    "us-east-1",
                    "--list-type",
                    "2",
                ];
                let mut command = program("geesefs", &asked);
                command.arg(format!("{bucket}:{prefix}"));
                command
            }
            (Column::Mountpoint, _) => {
                let mut command = program(
                    "mount-s3",
                    &[
                        "-f",
                        "--force-path-style",
                        "--region",
                        "us-east-1",
                        "--endpoint-url",
                        endpoint,
                    ],
                );
                // Skips the detection of the cloud, which needs a network.
                command
                    .args(["--maximum-throughput-gbps", "10"])
                    .env("AWS_EC2_METADATA_DISABLED", "true");
                // The S3 server of the tables does not support CRC32C.
                command.args([
                    "--upload-checksums",
                    "crc64nvme",
                    "--allow-delete",
                    "--allow-overwrite",
                ]);
                command.args(["--prefix", &format!("{prefix}/"), bucket]);
                command
            }
            _ => {
                let options = "provider=Other,env_auth=true,region=us-east-1,force_path_style=true,list_version=2,no_check_bucket=true";
                let mut command = program(
                    "rclone",
                    &[
                        "mount",
                        "--vfs-cache-mode",
                        "full",
                        "--vfs-write-back",
                        "0s",
                        "--cache-dir",
                        &cache,
                    ],
                );
                command
                    .arg(format!(":s3,{options},endpoint='{endpoint}':{bucket}/{prefix}"))
                    .env("RCLONE_CONFIG", "/dev/null");
                command
            }
        };
        command.arg(&point);
        Ok(command)
    }
}
