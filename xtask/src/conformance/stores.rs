//! Other stores in pinned versions: the published emulators of Google Cloud Storage and Azure
//! blobs, and S3 servers. Each passes the clauses of the bucket port, and a real mount over it
//! returns every byte.

use crate::rig::{Rig, Shape, Store};
use crate::tree;
use crate::{Outcome, name_of, tool};
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// fake-gcs-server, a Go module.
    Gcs,
    /// Azurite, an npm package.
    Azure,
    /// An S3 server, a Go module.
    Minio,
    /// An S3 server over a directory, a Go module.
    Versitygw,
}

impl Server {
    /// The default. The others take minutes to build, and most other tests cover S3.
    pub const USUAL: [Server; 2] = [Server::Gcs, Server::Azure];

    /// The tests that run against it.
    fn tests(self) -> &'static str {
        match self {
            Server::Gcs => "gcs",
            Server::Azure => "azure",
            Server::Minio | Server::Versitygw => "s3",
        }
    }

    /// Clauses of the port that it is known to break (docs/conformance.md).
    fn known(self) -> &'static str {
        match self {
            Server::Minio => "a_file_and_its_directory,directories_come_once",
            Server::Versitygw => "missing_objects_are_not_found,odd_keys_are_kept_apart_or_refused",
            Server::Gcs | Server::Azure => "",
        }
    }

    /// Installs the server below the target directory, if needed; returns its program.
    fn install(self) -> Outcome<PathBuf> {
        match self {
            Server::Gcs => {
                go_install("fake-gcs-server", "github.com/fsouza/fake-gcs-server", FAKE_GCS_SERVER)
            }
            Server::Minio => go_install("minio", "github.com/minio/minio", MINIO),
            Server::Versitygw => {
                go_install("versitygw", "github.com/versity/versitygw/cmd/versitygw", VERSITYGW)
            }
            Server::Azure => {
                let place = tool::conformance()?.join(format!("azurite-{AZURITE}"));
                let program = place.join("node_modules/.bin/azurite-blob");
                tool::needs(
                    "node",
                    "--version",
                    "Node.js 20 or later (https://nodejs.org) runs the emulator of Azure blobs",
                )?;
                if !program.exists() {
                    tool::needs(
                        "npm",
                        "--version",
                        "npm (https://nodejs.org) installs the emulator of Azure blobs",
                    )?;
                    println!("installing azurite {AZURITE}");
                    let package = format!("azurite@{AZURITE}");
                    let mut command = Command::new("npm");
                    command
                        .args([
                            "install",
                            "--loglevel=error",
                            "--no-audit",
                            "--no-fund",
                            "--ignore-scripts",
                            &package,
                            "--prefix",
                        ])
                        .arg(&place);
                    tool::run(command.current_dir(tool::target()))?;
                }
                Ok(program)
            }
        }
    }

    /// Starts it with one empty bucket, and all its files below `place`.
    fn start(self, program: &Path, place: &Path) -> Outcome<Running> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let log = File::create(place.join("log"))?;
        let mut command = Command::new(program);
        let objects = place.join("objects");
        let environment = match self {
            Server::Gcs => {
                let seed = place.join("seed");
                fs::create_dir_all(seed.join(BUCKET))?;
                command.args([
                    "-backend",
                    "memory",
                    "-scheme",
                    "http",
                    "-host",
                    "127.0.0.1",
                    "-port",
                    &port.to_string(),
                ]);
                command.args(["-public-host", &address, "-log-level", "error", "-data"]).arg(seed);
                vec![("STORAGE_EMULATOR_HOST", address.clone())]
            }
            Server::Azure => {
                let key = base64_of_random()?;
                command.args([
                    "--blobHost",
                    "127.0.0.1",
                    "--blobPort",
                    &port.to_string(),
                    "--inMemoryPersistence",
                    "--silent",
                ]);
                command.arg("--disableTelemetry");
                command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{key}"));
                let endpoint = format!("http://{address}/{ACCOUNT}");
                let connection =
                    format!("AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint}");
                vec![
                    ("AZURE_STORAGE_CONNECTION_STRING", connection),
                    ("KEY", key),
                    ("ENDPOINT", endpoint),
                ]
            }
            Server::Minio => {
                command.args(["server", "--quiet", "--address", &address]).arg(&objects);
                command.envs([("MINIO_ROOT_USER", USER), ("MINIO_ROOT_PASSWORD", SECRET)]);
                of_s3(&address)
            }
            Server::Versitygw => {
                fs::create_dir_all(&objects)?;
                command
                    .args([
                        "--access", USER, "--secret", SECRET, "--port", &address, "--quiet",
                        "posix",
                    ])
                    .arg(&objects);
                of_s3(&address)
            }
        };
        let child = command
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut running = Running { child, environment, log: place.join("log") };
        running.wait_until(&format!("answers at {address}"), || {
            TcpStream::connect(&address).is_ok()
        })?;
        if self == Server::Azure {
            // Only a signed request can create a container.
            tool::run(
                Command::new("node")
                    .args(["-e", CREATE_CONTAINER])
                    .envs(running.environment.iter().cloned()),
            )?;
        }
        if self.tests() == "s3" {
            // For both a bucket is a directory, and MinIO requires an empty root at its first
            // start.
            running.wait_until("has made its own files", || {
                self != Server::Minio || objects.join(".minio.sys/format.json").exists()
            })?;
            fs::create_dir(objects.join(BUCKET))?;
        }
        Ok(running)
    }

    fn url(self, prefix: &str) -> String {
        match self {
            Server::Gcs => format!("gs://{BUCKET}/{prefix}"),
            Server::Azure => format!("az://{BUCKET}/{prefix}"),
            Server::Minio | Server::Versitygw => format!("s3://{BUCKET}/{prefix}"),
        }
    }
}

/// A server that runs until this is dropped.
struct Running {
    child: Child,
    /// Settings by which `ebb` finds it.
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
}

impl Running {
    fn wait_until(&mut self, what: &str, is_so: impl Fn() -> bool) -> Outcome<()> {
        let began = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || began.elapsed() > PATIENCE {
                return Err(format!(
                    "waited in vain until the server {what} ({ended:?}): {}",
                    self.log.display()
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn run(servers: &[Server], release: bool) -> Outcome<()> {
    let programs = servers.iter().map(|server| server.install()).collect::<Outcome<Vec<_>>>()?;
    let binaries = tool::build(&["ebb"], release)?;
    for (server, program) in servers.iter().zip(programs) {
        let name = name_of(*server);
        let place = tool::conformance()?.join(&name);
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        let running = server.start(&program, &place)?;
        let began = Instant::now();
        clauses(*server, &running)?;
        let clauses = began.elapsed();
        let began = Instant::now();
        round_trip(*server, &running, &binaries)
            .map_err(|error| format!("a mount over {name}: {error}"))?;
        println!(
            "{name}: clauses in {:.0} s, mount in {:.0} s",
            clauses.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// The clauses that every bucket keeps. Built like all tests, so that nothing is built twice.
fn clauses(server: Server, running: &Running) -> Outcome<()> {
    let mut command = Command::new(tool::cargo());
    command
        .args([
            "test",
            "--locked",
            "--quiet",
            "--workspace",
            "--test",
            server.tests(),
            "--",
            "--nocapture",
        ])
        .current_dir(tool::root());
    command.env("EBB_TEST_STORE", server.url("suite")).env("EBB_TEST_S3_KNOWN", server.known());
    tool::run(command.envs(running.environment.iter().cloned()))
}

/// Files written through one mount are read by a second one that starts from the bucket alone.
fn round_trip(server: Server, running: &Running, binaries: &Path) -> Outcome<()> {
    let store = Store::of(server.url("mount"), running.environment.clone());
    let mut rig = Rig::over(Shape::EmbeddedDir, &name_of(server), store, binaries)?;
    let (mount, reference) = (rig.mountpoint(), rig.dir.join("reference"));
    fs::create_dir(&reference)?;
    rig.mount("")?;
    write(&reference)?;
    write(&mount)?;
    rig.flush()?;
    change(&reference)?;
    change(&mount)?;
    rig.fsck()?;
    tree::copy_times(&reference, &mount)?;
    rig.umount()?;
    rig.drop_cache()?;
    rig.mount("")?;
    let compared = tree::compare(&reference, &mount)?;
    println!(
        "{}: {} files with {} MiB came back",
        name_of(server),
        compared.files,
        compared.bytes >> 20
    );
    rig.umount()
}

/// Files of all lengths with a case of their own, and names that are not valid keys.
fn write(root: &Path) -> Outcome<()> {
    for dir in ["d/e/f", "leer é", "odd"] {
        fs::create_dir_all(root.join(dir))?;
    }
    for (name, len) in
        [("empty", 0), ("one", 1), ("d/block", 4096), ("d/e/small", 100_000), ("d/large", 40 << 20)]
    {
        File::create(root.join(name))?.write_all(&content(len, name.len() as u32))?;
    }
    for n in 0..100 {
        fs::write(root.join(format!("d/e/f/{n}")), content(n * 31, n as u32))?;
    }
    for name in ["a b+c%2F", "\u{1F980}", "\u{feff}", "#?&=", "~", ".hidden"] {
        fs::write(root.join("odd").join(name), name)?;
    }
    std::os::unix::fs::symlink("../one", root.join("d/link"))?;
    Ok(())
}

/// Replaces, renames and removes objects.
fn change(root: &Path) -> Outcome<()> {
    fs::rename(root.join("d/e"), root.join("moved"))?;
    fs::rename(root.join("d/block"), root.join("empty"))?;
    fs::remove_file(root.join("one"))?;
    let mut large = File::options().append(true).open(root.join("d/large"))?;
    large.write_all(&content(3 << 20, 77))?;
    Ok(())
}

fn content(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn go_install(program: &str, module: &str, version: &str) -> Outcome<PathBuf> {
    let place = tool::conformance()?.join(format!("{program}-{version}"));
    let installed = place.join(program);
    if !installed.exists() {
        tool::needs(
            "go",
            "version",
            &format!("Go 1.24 or later (https://go.dev/dl) builds {program}"),
        )?;
        println!("installing {program} {version}");
        tool::run(
            Command::new("go")
                .args(["install", &format!("{module}@{version}")])
                .env("GOBIN", &place)
                .current_dir(tool::target()),
        )?;
    }
    Ok(installed)
}

/// Settings of an S3 server, for mounts and for tests.
fn of_s3(address: &str) -> Vec<(&'static str, String)> {
    let endpoint = format!("http://{address}");
    let keys =
        [("AWS_ACCESS_KEY_ID", USER.to_owned()), ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned())];
    keys.into_iter()
        .chain([("EBB_TEST_S3_ENDPOINT", endpoint.clone()), ("EBB_ENDPOINT", endpoint)])
        .collect()
}

fn base64_of_random() -> Outcome<String> {
    Ok(tool::output(
        Command::new("node").args(["-p", "require('crypto').randomBytes(64).toString('base64')"]),
    )?
    .trim()
    .to_owned())
}

const FAKE_GCS_SERVER: &str = "v1.56.1";
const MINIO: &str = "v0.0.0-20260212201848-7aac2a2c5b7c";
const VERSITYGW: &str = "v1.8.0";
const USER: &str = "ebb-test-user";
const SECRET: &str = "ebb-test-secret";
const AZURITE: &str = "3.37.0";
const ACCOUNT: &str = "ebbtest";
const CREATE_CONTAINER: &str = r#"
const { KEY, ENDPOINT } = process.env, crypto = require("crypto"), url = new URL(ENDPOINT);
const account = url.pathname.slice(1), path = `${url.pathname}/ebb-test`, date = new Date().toUTCString(), version = "2021-08-06";
const text = `PUT${"\n".repeat(12)}x-ms-date:${date}\nx-ms-version:${version}\n/${account}${path}\nrestype:container`;
const signature = crypto.createHmac("sha256", Buffer.from(KEY, "base64")).update(text).digest("base64");
const headers = { "x-ms-date": date, "x-ms-version": version, authorization: `SharedKey ${account}:${signature}` };
fetch(`${url.origin}${path}?restype=container`, { method: "PUT", headers }).then(async answer => {
    if (answer.status !== 201) { console.error(await answer.text()); process.exit(1); }
});
"#;
const BUCKET: &str = "ebb-test";
/// Time limit for the start of a server.
const PATIENCE: Duration = Duration::from_secs(30);
