//! Pages of `docs/`, executed as a reader would, command line after command line.
//!
//! *Input*: the page itself, on the machine's own disk; a real PostgreSQL for its guide. *Independent count*: the lines that
//! the page explains, which stand behind each block of commands (`support/guide.rs`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use crate::support::guide::{Guide, Image};
use crate::support::postgres::Cluster;
use crate::support::tools::{capture, tool};
use crate::support::vm_settings::VmSettings;
use crate::support::{needs, or_skip};

/// Columns of the terminal in the pages.
const COLUMNS: &str = "100";
const LESSON_IMAGE: &str = "/var/tmp/lesson.img";
const LESSONS: usize = 12;
/// Write-back of dirty pages after a second instead of half a minute, for which a lesson waits. Tests of this tier run one at
/// a time.
const QUICK_WRITE_BACK: [(&str, u64); 2] =
    [("dirty_expire_centisecs", 100), ("dirty_writeback_centisecs", 100)];
const DATABASE: u64 = 512 << 20;

/// Executes a script with this blkkin in a mount namespace of its own, and returns what it printed.
fn execute(script: &str) -> String {
    // On a disk, as pages use `/tmp` for files that cause I/O.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    symlink(env!("CARGO_BIN_EXE_blkkin"), folder.path().join("blkkin")).unwrap();
    // The tests install what a page needs, and run as root.
    for (name, text) in [("sudo", "exec \"$@\""), ("apt-get", "true")] {
        let program = folder.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        capture(tool("chmod").arg("+x").arg(program)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = tool("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "bash",
        "-c",
        "exec 2>&1; mkdir tmp; mount --bind tmp /tmp; eval \"$1\"",
        "bash",
        script,
    ]);
    command.env("PATH", path).env("COLUMNS", COLUMNS).current_dir(folder.path());
    let Output { stdout, .. } = command.output().unwrap();
    String::from_utf8_lossy(&stdout).into_owned()
}

#[test]
fn the_lessons_show_what_they_explain() {
    needs!("fio", "jq", "sqlite3", "losetup", "mkfs.ext4", "unshare");
    or_skip!(with_direct_io(Path::new("/var/tmp")));
    let guide = Guide::read("tutorial");
    let traces =
        guide.blocks.iter().filter(|block| block.commands.iter().any(|line| line.contains("blkkin ")));
    assert!(traces.count() >= LESSONS);
    let (_image, _quick) = (Image(LESSON_IMAGE), VmSettings::set(&QUICK_WRITE_BACK));
    let output = execute(&guide.script());
    guide.assert_output(&output);
    assert!(!Path::new("/mnt/lesson").exists() && !Path::new(LESSON_IMAGE).exists(), "{output}");
}

#[test]
fn the_first_trace_shows_what_it_explains() {
    needs!("unshare");
    let guide = Guide::read("first-trace");
    guide.assert_output(&execute(&guide.script()));
}

/// pgbench and a backup that writes to the same file system.
#[test]
fn the_guide_finds_why_commits_are_slow() {
    needs!("losetup", "mkfs.ext4", "initdb", "unshare");
    let guide = Guide::read("postgresql");
    let cluster = or_skip!(Cluster::make(DATABASE));
    let (pgbench, backup) = (cluster.bin.join("pgbench"), cluster.path("backup"));
    let (socket, backup) = (cluster.disk.mount_point(), backup.display());
    let load = format!(
        "PGBENCH=\"$U {} -h {} -U nobody\"; $PGBENCH -i -q -s 2 postgres; export PGHOST={} PGUSER=nobody PGDATABASE=postgres DISK={}; \
         (while :; do dd if=/dev/zero of={backup} bs=1M count=32 conv=fsync status=none; done) & BACKUP=$!; \
         $PGBENCH -c 4 -T 600 postgres >pgbench.out 2>&1 & CLIENTS=$!; \
         trap 'kill $BACKUP $CLIENTS; $U {}/pg_ctl stop -s -w -m fast -D {}' EXIT; sleep 1; set +e\n{}",
        pgbench.display(),
        socket.display(),
        socket.display(),
        cluster.disk.name(),
        cluster.bin.display(),
        cluster.data().display(),
        guide.script(),
    );
    guide.assert_output(&execute(&cluster.script("-c listen_addresses=", &load)));
}

/// The reason why files of this folder cannot be read past the page cache.
fn with_direct_io(folder: &Path) -> Result<(), String> {
    let file =
        tempfile::NamedTempFile::new_in(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    fs::write(file.path(), [0; 4096]).unwrap();
    let args = ["of=/dev/null", "bs=4k", "count=1", "iflag=direct", "status=none"];
    capture(tool("dd").arg(format!("if={}", file.path().display())).args(args)).map(|_| ())
}
