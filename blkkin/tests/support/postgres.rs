//! A PostgreSQL server on a disk of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::disk::Disk;
use super::tools::{capture, tool};

const UNPRIVILEGED: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// A cluster, without a running server.
pub(crate) struct Cluster {
    pub(crate) disk: Disk,
    pub(crate) bin: PathBuf,
}

impl Cluster {
    pub(crate) fn make(disk_bytes: u64) -> Result<Cluster, String> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let bins = versions.map(|version| version.path().join("bin"));
        let bin = bins.filter(|bin| bin.join("postgres").is_file()).max().unwrap_or("/usr/bin".into());
        if !bin.join("postgres").is_file() {
            return Err("postgres is not installed".to_owned());
        }
        let cluster = Cluster { disk: Disk::ext4(disk_bytes)?, bin };
        capture(tool("chown").arg("65534:65534").arg(cluster.disk.mount_point()))?;
        let data = cluster.data().display().to_string();
        capture(cluster.as_user("initdb").args(["-D", &data, "--auth=trust", "--no-sync", "-U", "nobody"]))?;
        Ok(cluster)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.disk.mount_point().join("data")
    }

    /// Returns a path next to the data.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.disk.mount_point().join(name)
    }

    pub(crate) fn as_user(&self, program: &str) -> Command {
        let mut command = tool(UNPRIVILEGED[0]);
        command.args(&UNPRIVILEGED[1..]).arg(self.bin.join(program)).current_dir(self.disk.mount_point());
        command
    }

    /// Builds a script in which `$PSQL` connects to the server. The server runs meanwhile, and is
    /// stopped at the end even after an error.
    pub(crate) fn script(&self, options: &str, work: &str) -> String {
        let (user, bin, data) =
            (UNPRIVILEGED.join(" "), self.bin.display(), self.data().display().to_string());
        let socket = self.disk.mount_point().display().to_string();
        format!(
            "set -e; cd {socket}; U='{user}'; PSQL=\"$U {bin}/psql -X -q -h {socket} -d postgres\"; \
             $U {bin}/postgres -D {data} -k {socket} {options} >>server.log 2>&1 & \
             trap '$U {bin}/pg_ctl stop -s -w -m fast -D {data}' EXIT; \
             until $U {bin}/pg_isready -q -h {socket}; do sleep 0.05; done; {work}"
        )
    }
}
