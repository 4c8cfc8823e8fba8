//! The packages of `cargo xtask dist`: installed, used and removed.
//!
//! *Input*: the Debian package, the rpm package and the archive of the static binary that `cargo xtask test` built. *Independent
//! judges*: dpkg and rpm on an overlay of this machine's root, bash for the completions, systemd-analyze for the units; the
//! files of the overlay's upper layer after a purge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::tools::{capture, static_binary, tool};
use crate::support::{needs, or_skip};

/// Runs the script of the first argument in an overlay of the root: what it writes is in the second, a folder.
const IN_OVERLAY: &str = r#"
set -e
mount -t tmpfs overlay "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=/,upperdir=$2/upper,workdir=$2/work" overlay "$2/root"
mkdir -p "$2/root/tmp/package"
cp "$3" "$2/root/tmp/package/"
for folder in proc sys dev; do mount --rbind /$folder "$2/root/$folder"; done
# As on a machine where systemd does not run: the overlay has no /run.
mount -t tmpfs run "$2/root/run"
chroot "$2/root" sh -ec "$1"
"#;

/// Finds a file that `cargo xtask test` built next to the static binary.
fn built(suffix: &str) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist/test");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.to_string_lossy().ends_with(suffix));
    found.next().ok_or_else(|| format!("no {suffix}: cargo xtask test builds one"))
}

/// Runs a script with the Debian package in /tmp/package, and returns its output.
fn in_overlay(script: &str, package: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tool("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", IN_OVERLAY, "sh", script]);
    let Output { status, stdout, stderr } = command.arg(folder.path()).arg(package).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Returns the part of the output behind this mark, to the next one.
fn part<'a>(output: &'a str, mark: &str) -> &'a str {
    let (_, rest) =
        output.split_once(&format!("== {mark}\n")).unwrap_or_else(|| panic!("no {mark}: {output}"));
    rest.split_once("== ").map_or(rest, |(part, _)| part)
}

/// Returns the paths among these lines.
fn files(lines: &str) -> Vec<&str> {
    lines.lines().filter(|line| line.starts_with('/')).collect()
}

#[test]
fn a_debian_package_is_installed_used_and_purged() {
    needs!("dpkg", "unshare", "chroot", "bash", "systemd-analyze", "gzip");
    let package = or_skip!(built(".deb"));
    let output = in_overlay(
        r##"
echo "== install"; dpkg --install /tmp/package/*.deb
echo "== version"; blkkin --version
echo "== run"; blkkin run --color never -- true 2>&1
echo "== completions"
bash -c '. /usr/share/bash-completion/completions/blkkin
    COMP_WORDS=(blkkin exporter --to) COMP_CWORD=2; _blkkin blkkin --to exporter; echo "${COMPREPLY[@]}"'
echo "== manual"; for page in /usr/share/man/man1/blkkin*.gz; do echo "${page##*/} $(gzip -dc $page | grep -c '^\.TH blkkin')"; done
echo "== units"; systemd-analyze verify --man=no /usr/lib/systemd/system/blkkin-*.service; echo "status $?"
sed 's,/usr/bin/blkkin,/usr/bin/none,' /usr/lib/systemd/system/blkkin-agent.service > /tmp/broken.service
echo "== a broken unit"; ! systemd-analyze verify --man=no /tmp/broken.service 2>&1
echo "== mappings"; ls /usr/share/blkkin/mappings
echo "== files"; find /etc /usr /var -xdev -name '*blkkin*' -cnewer /tmp/package
echo "# changed" >> /etc/blkkin/agent.toml
echo "== again"; dpkg --install /tmp/package/*.deb; tail -n 1 /etc/blkkin/agent.toml
echo "== removed"; dpkg --remove blkkin; ls /etc/blkkin
echo "== purged"; dpkg --purge blkkin; find /etc /usr /var -xdev -name '*blkkin*' -cnewer /tmp/package
"##,
        &package,
    );
    assert_eq!(part(&output, "version"), concat!("blkkin ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(part(&output, "run").contains("system calls"), "{output}");
    let completed = part(&output, "completions");
    assert!(completed.contains("--to"), "{completed}");
    let pages: Vec<_> = part(&output, "manual").lines().collect();
    let commands = [
        "agent",
        "aggregator",
        "completions",
        "ctl",
        "doctor",
        "dump",
        "exporter",
        "help",
        "report",
        "run",
        "top",
        "trace",
    ];
    let expected = commands.map(|command| format!("blkkin-{command}.1.gz 1"));
    assert_eq!(pages, expected.iter().map(String::as_str).chain(["blkkin.1.gz 1"]).collect::<Vec<_>>());
    assert_eq!(part(&output, "units"), "status 0\n", "{output}");
    assert!(part(&output, "a broken unit").contains("/usr/bin/none"), "{output}");
    assert_eq!(part(&output, "mappings"), "blkkin.toml\npostgresql.toml\nzipkin.toml\n");
    assert!(files(part(&output, "files")).len() > 10, "{output}");
    assert!(part(&output, "again").ends_with("# changed\n"), "{output}");
    // dpkg keeps what the administrator may have changed until a purge.
    assert!(part(&output, "removed").ends_with("agent.toml\naggregator.toml\nexporter.toml\n"), "{output}");
    assert_eq!(files(part(&output, "purged")), [""; 0], "{output}");
}

/// The shell that the package requires is Debian's here, of which rpm does not know.
#[test]
fn an_rpm_package_is_installed_verified_and_erased() {
    needs!("rpm", "unshare", "chroot");
    let package = or_skip!(built(".rpm"));
    let output = in_overlay(
        r##"
rpm --initdb
echo "== install"; rpm --force-debian --nodeps --install /tmp/package/*.rpm
echo "== version"; blkkin --version
echo "== verified"; rpm --nodeps --verify blkkin
echo "== listed"; rpm --query --list blkkin
echo "== requires"; rpm --query --requires blkkin
echo "# changed" >> /etc/blkkin/agent.toml
echo "== again"; rpm --force-debian --nodeps --install --replacepkgs /tmp/package/*.rpm; tail -n 1 /etc/blkkin/agent.toml
echo "== broken"; echo >> /usr/bin/blkkin; ! rpm --nodeps --verify blkkin
echo "== erased"; rpm --force-debian --erase blkkin 2>/dev/null
find /etc /usr -xdev -name '*blkkin*' -cnewer /tmp/package; ls /etc/blkkin
"##,
        &package,
    );
    assert_eq!(part(&output, "version"), concat!("blkkin ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(part(&output, "verified"), "", "{output}");
    for file in [
        "/etc/blkkin/agent.toml",
        "/usr/bin/blkkin",
        "/usr/lib/systemd/system/blkkin-agent.service",
        "/usr/share/blkkin/mappings/postgresql.toml",
        "/usr/share/man/man1/blkkin-run.1.gz",
        "/usr/share/zsh/site-functions/_blkkin",
    ] {
        assert!(part(&output, "listed").lines().any(|line| line == file), "{file}: {output}");
    }
    // The folders of others are not the package's.
    assert!(!part(&output, "listed").lines().any(|line| ["/usr", "/usr/bin"].contains(&line)), "{output}");
    let requires = part(&output, "requires").lines();
    assert!(requires.into_iter().all(|line| line.starts_with("rpmlib(") || line == "/bin/sh"), "{output}");
    assert!(part(&output, "again").ends_with("# changed\n"), "{output}");
    assert!(part(&output, "broken").contains("/usr/bin/blkkin"), "{output}");
    assert_eq!(part(&output, "erased"), "/etc/blkkin\nagent.toml.rpmsave\n", "{output}");
}

#[test]
fn an_archive_runs_in_an_empty_root() {
    needs!("tar", "chroot");
    let archive = or_skip!(built(".tar.gz"));
    let folder = tempfile::tempdir().unwrap();
    capture(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder.path())).unwrap();
    let version = capture(tool("chroot").arg(folder.path()).args(["/usr/bin/blkkin", "--version"])).unwrap();
    assert_eq!(version, concat!("blkkin ", env!("CARGO_PKG_VERSION")));
    let owners = capture(Command::new("tar").arg("-tvf").arg(&archive)).unwrap();
    for line in owners.lines() {
        assert!(line.split_whitespace().nth(1) == Some("0/0"), "{line}");
    }
    assert!(owners.contains("usr/lib/systemd/system/blkkin-agent.service"), "{owners}");
}

/// The bill of materials has each crate from which a message of the binary has a source file.
#[test]
fn the_bill_of_materials_has_what_the_binary_contains() {
    let bill = or_skip!(built(".cdx.json"));
    let bill: serde_json::Value = serde_json::from_slice(&fs::read(bill).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    let listed: BTreeSet<String> = components
        .iter()
        .map(|one| {
            format!("{}-{}", one["name"].as_str().unwrap(), one["version"].as_str().unwrap_or_default())
        })
        .collect();
    let binary = fs::read(or_skip!(static_binary())).unwrap();
    let found = crates_in(&String::from_utf8_lossy(&binary));
    assert!(found.len() > 30, "{found:?}");
    let missing: Vec<&String> = found.iter().filter(|one| !listed.contains(*one)).collect();
    assert!(missing.is_empty(), "{missing:?} of {found:?}");
    // What only the tests or the build use is not linked.
    for name in ["proptest-", "clap_derive-", "bindgen-", "cc-1", "pulldown-cmark-"] {
        assert!(!listed.iter().any(|one| one.starts_with(name)), "{name}: {listed:?}");
    }
    assert!(listed.iter().any(|one| one.starts_with("libssl.a-")), "{listed:?}");
    assert!(listed.iter().any(|one| one.starts_with("rust-std-")), "{listed:?}");
    assert!(components.iter().filter(|one| one["hashes"].is_array()).count() > 100);
}

/// Finds the folders `NAME-VERSION` of registries in the texts of a program.
fn crates_in(texts: &str) -> BTreeSet<String> {
    let parts = texts.split("/registry/src/").skip(1);
    let names = parts.filter_map(|part| part.split('/').nth(1).map(str::to_owned));
    names.filter(|name| name.len() < 80 && name.contains('-') && name.is_ascii()).collect()
}
