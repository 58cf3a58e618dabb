//! Servers that some peers need beside the S3 server.

use super::{Column, Programs, Storage};
use crate::{Outcome, tool};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

mod moosefs;

pub enum Servers {
    None,
    MooseFs(moosefs::Cluster),
    /// JuiceFS's metadata engine.
    Redis(Server),
    /// Master, volume server and filer in one.
    SeaweedFs(Server),
    ZeroFs(Server),
}

/// One process, and the address for its mount.
pub struct Server {
    process: Child,
    pub url: String,
}

impl Servers {
    /// Starts the servers of `column`, with all their files below this directory and in the store.
    pub fn start(
        column: Column,
        programs: &Programs,
        directory: &Path,
        storage: &Storage,
    ) -> Outcome<Servers> {
        let own = directory.join("servers");
        fs::create_dir_all(&own)?;
        Ok(match column {
            Column::MooseFs => Servers::MooseFs(moosefs::Cluster::start(programs, &own)?),
            Column::JuiceFs => Servers::Redis(redis(programs, &own, storage)?),
            Column::SeaweedFs => Servers::SeaweedFs(seaweedfs(programs, &own)?),
            Column::ZeroFs => {
                Servers::ZeroFs(zerofs(programs, &own, &directory.join("cache"), storage)?)
            }
            _ => Servers::None,
        })
    }

    pub fn processes(&self) -> Vec<&Child> {
        match self {
            Servers::None => Vec::new(),
            Servers::MooseFs(cluster) => cluster.servers().iter().collect(),
            Servers::Redis(server) | Servers::SeaweedFs(server) | Servers::ZeroFs(server) => {
                vec![&server.process]
            }
        }
    }
}

impl Server {
    fn start(mut command: Command, directory: &Path, url: String) -> Outcome<Server> {
        let log = fs::File::create(directory.join("log"))?;
        command.current_dir(directory).stdout(log.try_clone()?).stderr(log);
        Ok(Server { process: command.process_group(0).spawn()?, url })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        tool::signal_group(self.process.id(), libc::SIGKILL).ok();
        self.process.wait().ok();
    }
}

/// Redis, with a formatted JuiceFS volume in it.
fn redis(programs: &Programs, directory: &Path, storage: &Storage) -> Outcome<Server> {
    let port = free_port()?;
    let mut command = programs.command("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--appendonly", "yes", "--dir"])
        .arg(directory);
    let server = Server::start(command, directory, format!("redis://127.0.0.1:{port}/1"))?;
    let bucket = format!("{}/{}", storage.endpoint, storage.bucket);
    let mut format = programs.command("juicefs");
    format.args([
        "format",
        "--storage",
        "s3",
        "--bucket",
        &bucket,
        "--trash-days",
        "0",
        &server.url,
        "juicefs",
    ]);
    format.args([
        "--access-key",
        storage.key("AWS_ACCESS_KEY_ID")?,
        "--secret-key",
        storage.key("AWS_SECRET_ACCESS_KEY")?,
    ]);
    let listens = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    super::wait(listens, "redis-server does not answer")?;
    tool::output(&mut format)?;
    Ok(server)
}

fn seaweedfs(programs: &Programs, directory: &Path) -> Outcome<Server> {
    let [master, volume, filer] = [free_port()?, free_port()?, free_port()?];
    let mut command = programs.command("weed");
    command.args([
        "-logtostderr=true",
        "server",
        "-filer",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
    ]);
    command
        .arg(format!("-dir={}", directory.display()))
        .arg(format!("-filer.localSocket={}", directory.join("filer.sock").display()));
    command.args([
        format!("-master.port={master}"),
        format!("-volume.port={volume}"),
        format!("-filer.port={filer}"),
    ]);
    Server::start(command, directory, format!("127.0.0.1:{filer}"))
}

fn zerofs(
    programs: &Programs,
    directory: &Path,
    cache: &Path,
    storage: &Storage,
) -> Outcome<Server> {
    let [settings, socket, control] =
        ["settings.toml", "9p.sock", "rpc.sock"].map(|name| directory.join(name));
    // A killed server leaves its sockets.
    [&socket, &control].into_iter().filter(|left| left.exists()).try_for_each(fs::remove_file)?;
    let (access, secret) =
        (storage.key("AWS_ACCESS_KEY_ID")?, storage.key("AWS_SECRET_ACCESS_KEY")?);
    let Storage { endpoint, bucket, prefix, .. } = storage;
    let [cache, shown, control] = [cache, &socket, &control].map(|path| path.display());
    // The S3 server of the tables supports no multi-object delete.
    fs::write(
        &settings,
        format!(
            "[cache]\ndir = \"{cache}\"\ndisk_size_gb = 10.0\nmemory_size_gb = 1.0\n\
             [storage]\nurl = \"s3://{bucket}/{prefix}\"\nencryption_password = \"of a \
             benchmark\"\n\
             [servers.ninep]\nunix_socket = \"{shown}\"\n[servers.rpc]\nunix_socket = \
             \"{control}\"\n\
             [telemetry]\nenabled = false\n\
             [aws]\naccess_key_id = \"{access}\"\nsecret_access_key = \"{secret}\"\nendpoint = \
             \"{endpoint}\"\n\
             default_region = \"us-east-1\"\nallow_http = \"true\"\ndisable_bulk_delete = \
             \"true\"\n"
        ),
    )?;
    let mut command = programs.command("zerofs");
    command.args(["run", "-c"]).arg(&settings);
    Server::start(command, directory, socket.display().to_string())
}

/// A port such that it and the port 10,000 above are free; SeaweedFS uses both.
fn free_port() -> Outcome<u16> {
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let above =
            port.checked_add(10_000).map(|above| TcpListener::bind((Ipv4Addr::LOCALHOST, above)));
        if let Some(Ok(_)) = above {
            return Ok(port);
        }
    }
}
