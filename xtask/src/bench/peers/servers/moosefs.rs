//! MooseFS with all its servers on this machine, in a network namespace of their own, since it
//! refuses loopback addresses.

use crate::bench::peers::Programs;
use crate::{Outcome, tool};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ADDRESS: &str = "10.99.0.1";

/// Metadata of an unused master, installed by the package.
const EMPTY: &str = "/var/lib/mfs/metadata.mfs.empty";

pub struct Cluster {
    /// The process that keeps the network namespace.
    network: Child,
    servers: Vec<Child>,
}

impl Cluster {
    /// Starts a cluster with all its files in this new directory.
    pub fn start(programs: &Programs, directory: &Path) -> Outcome<Cluster> {
        let [meta, chunks, notes] = ["meta", "chunks", "notes"].map(|name| directory.join(name));
        [&meta, &chunks, &notes].into_iter().try_for_each(fs::create_dir_all)?;
        fs::copy(EMPTY, meta.join("metadata.mfs")).map_err(|error| format!("{EMPTY}: {error}"))?;
        let (exports, disks) = (directory.join("exports"), directory.join("disks"));
        fs::write(&exports, format!("{ADDRESS} / rw,alldirs,admin,maproot=0:0\n{ADDRESS} . rw\n"))?;
        fs::write(&disks, format!("{}\n", chunks.display()))?;
        let common = "WORKING_USER = root\nWORKING_GROUP = root\n";
        let (master, chunkserver) = (directory.join("master"), directory.join("chunkserver"));
        let listens = ["MATOML", "MATOCS", "MATOCL"]
            .map(|part| format!("{part}_LISTEN_HOST = {ADDRESS}\n"))
            .concat();
        let (meta, notes) = (meta.display(), notes.display());
        fs::write(
            &master,
            format!(
                "{common}{listens}DATA_PATH = {meta}\nEXPORTS_FILENAME = {}\n",
                exports.display()
            ),
        )?;
        fs::write(
            &chunkserver,
            format!(
                "{common}DATA_PATH = {notes}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = \
                 {ADDRESS}\nCSSERV_LISTEN_HOST = {ADDRESS}\n\
                 BIND_HOST = {ADDRESS}\nHDD_LEAVE_SPACE_DEFAULT = 256MiB\n",
                disks.display()
            ),
        )?;
        let mut cluster = Cluster { network: network(programs)?, servers: Vec::new() };
        for (server, settings) in [("mfsmaster", master), ("mfschunkserver", chunkserver)] {
            let log = fs::File::create(directory.join(format!("{server}.log")))?;
            let mut command = cluster.within(programs, server);
            command
                .arg("-c")
                .arg(settings)
                .args(["-d", "start"])
                .stdout(log.try_clone()?)
                .stderr(log);
            cluster.servers.push(command.process_group(0).spawn()?);
        }
        Ok(cluster)
    }

    /// Runs in the foreground.
    pub fn mounting(&self, programs: &Programs, point: &Path) -> Command {
        let mut command = self.within(programs, "mfsmount");
        command.arg(point).args(["-H", ADDRESS, "-f"]);
        command
    }

    pub fn servers(&self) -> &[Child] {
        &self.servers
    }

    fn within(&self, programs: &Programs, program: &str) -> Command {
        let mut command = programs.command("nsenter");
        command.args(["--target", &self.network.id().to_string(), "--net", "--", program]);
        command
    }
}

fn network(programs: &Programs) -> Outcome<Child> {
    let set_up = format!(
        "ip link set lo up && ip address add {ADDRESS}/32 dev lo && echo ready && exec sleep \
         infinity"
    );
    let mut holder = programs
        .command("unshare")
        .args(["--net", "sh", "-c", &set_up])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().ok_or("the network has no output")?)
        .read_line(&mut line)?;
    if line.trim() != "ready" {
        holder.wait()?;
        return Err("a network of its own could not be made".into());
    }
    Ok(holder)
}

impl Drop for Cluster {
    /// Ends the chunk server first: it depends on the master, whose metadata writer would outlive
    /// it.
    fn drop(&mut self) {
        for server in self.servers.iter_mut().rev() {
            tool::signal_group(server.id(), libc::SIGKILL).ok();
            server.wait().ok();
        }
        self.network.kill().ok();
        self.network.wait().ok();
    }
}
