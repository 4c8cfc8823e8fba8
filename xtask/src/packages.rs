//! Programs of the distribution: what each is for, what it is called where, and installing what is missing.
//!
//! A package counts as present when its program is found, not when a package database says so: a program that was
//! built by hand serves as well. Only apt is driven; elsewhere the missing packages and the command are named.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::Purpose;
use crate::shell;

/// One program that a task calls.
pub(crate) struct Package {
    /// By its name; or, of what is no program, the path of a file that it has.
    program: &'static str,
    purposes: &'static [Purpose],
    reason: &'static str,
    apt: &'static [&'static str],
    dnf: &'static str,
    pacman: &'static str,
    zypper: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        program: "cc",
        purposes: &[Purpose::Build],
        reason: "links every Rust program",
        apt: &["gcc", "libc6-dev"],
        dnf: "gcc",
        pacman: "gcc",
        zypper: "gcc",
    },
    Package {
        program: "g++",
        purposes: &[Purpose::Build],
        reason: "compiles librdkafka, which speaks to Kafka",
        apt: &["g++"],
        dnf: "gcc-c++",
        pacman: "gcc",
        zypper: "gcc-c++",
    },
    Package {
        program: "make",
        purposes: &[Purpose::Build],
        reason: "builds librdkafka",
        apt: &["make"],
        dnf: "make",
        pacman: "make",
        zypper: "make",
    },
    Package {
        program: "pkg-config",
        purposes: &[Purpose::Build],
        reason: "finds OpenSSL for librdkafka",
        apt: &["pkg-config"],
        dnf: "pkgconf-pkg-config",
        pacman: "pkgconf",
        zypper: "pkg-config",
    },
    Package {
        program: "/usr/include/openssl/ssl.h",
        purposes: &[Purpose::Build],
        reason: "what librdkafka needs for TLS and SCRAM",
        apt: &["libssl-dev"],
        dnf: "openssl-devel",
        pacman: "openssl",
        zypper: "libopenssl-devel",
    },
    Package {
        program: "/usr/lib/systemd/systemd",
        purposes: &[Purpose::Tests],
        reason: "runs the services by their units, in a room of its own",
        apt: &["systemd"],
        dnf: "systemd",
        pacman: "systemd",
        zypper: "systemd",
    },
    Package {
        program: "sqlite3",
        purposes: &[Purpose::Demo, Purpose::Cluster, Purpose::Tests],
        reason: "the program that is traced: durable inserts and reads",
        apt: &["sqlite3"],
        dnf: "sqlite",
        pacman: "sqlite",
        zypper: "sqlite3",
    },
    Package {
        program: "mkfs.ext4",
        purposes: &[
            Purpose::Demo,
            Purpose::Cluster,
            Purpose::Tests,
            Purpose::Disks,
            Purpose::Guests,
            Purpose::Daemons,
        ],
        reason: "makes the file system that is traced",
        apt: &["e2fsprogs"],
        dnf: "e2fsprogs",
        pacman: "e2fsprogs",
        zypper: "e2fsprogs",
    },
    Package {
        program: "losetup",
        purposes: &[
            Purpose::Demo,
            Purpose::Cluster,
            Purpose::Tests,
            Purpose::Disks,
            Purpose::Guests,
            Purpose::Daemons,
        ],
        reason: "makes a block device of a file, so that no real disk is touched",
        apt: &["mount"],
        dnf: "util-linux",
        pacman: "util-linux",
        zypper: "util-linux",
    },
    Package {
        program: "mount",
        purposes: &[
            Purpose::Demo,
            Purpose::Cluster,
            Purpose::Tests,
            Purpose::Disks,
            Purpose::Guests,
            Purpose::Daemons,
        ],
        reason: "mounts the file system that is traced",
        apt: &["mount"],
        dnf: "util-linux",
        pacman: "util-linux",
        zypper: "util-linux",
    },
    Package {
        program: "fio",
        purposes: &[Purpose::Tests, Purpose::Disks, Purpose::Guests, Purpose::Daemons],
        reason: "makes a known number of requests and reports its own count and latency",
        apt: &["fio"],
        dnf: "fio",
        pacman: "fio",
        zypper: "fio",
    },
    Package {
        program: "nbdinfo",
        purposes: &[Purpose::Tests],
        reason: "clients of an NBD server that are not ours: nbdinfo, nbdcopy",
        apt: &["libnbd-bin"],
        dnf: "libnbd",
        pacman: "libnbd",
        zypper: "libnbd",
    },
    Package {
        program: "qemu-io",
        purposes: &[Purpose::Tests],
        reason: "clients of an NBD server that are not ours: qemu-img, qemu-io",
        apt: &["qemu-utils"],
        dnf: "qemu-img",
        pacman: "qemu-img",
        zypper: "qemu-tools",
    },
    Package {
        program: "nbdkit",
        purposes: &[Purpose::Peers],
        reason: "an NBD server, measured beside ours",
        apt: &["nbdkit"],
        dnf: "nbdkit",
        pacman: "nbdkit",
        zypper: "nbdkit",
    },
    Package {
        program: "unshare",
        purposes: &[Purpose::Tests],
        reason: "gives a program a root and numbers of processes of its own, as a container has them",
        apt: &["util-linux"],
        dnf: "util-linux",
        pacman: "util-linux",
        zypper: "util-linux",
    },
    Package {
        program: "gcc",
        purposes: &[Purpose::Tests, Purpose::Guests],
        reason: "builds programs whose threads say for which span they work, and programs with probes",
        apt: &["gcc"],
        dnf: "gcc",
        pacman: "gcc",
        zypper: "gcc",
    },
    Package {
        program: "musl-gcc",
        purposes: &[Purpose::Tests],
        reason: "builds such programs with another C library, whose loader puts variables elsewhere",
        apt: &["musl-tools"],
        dnf: "musl-gcc",
        pacman: "musl",
        zypper: "musl-devel",
    },
    Package {
        program: "aarch64-linux-gnu-gcc",
        purposes: &[Purpose::Tests],
        reason: "builds such programs for another machine",
        apt: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        dnf: "gcc-aarch64-linux-gnu",
        pacman: "aarch64-linux-gnu-gcc",
        zypper: "cross-aarch64-gcc13",
    },
    Package {
        program: "qemu-aarch64-static",
        purposes: &[Purpose::Tests],
        reason: "runs them",
        apt: &["qemu-user-static"],
        dnf: "qemu-user-static-aarch64",
        pacman: "qemu-user-static",
        zypper: "qemu-linux-user",
    },
    Package {
        program: "strace",
        purposes: &[Purpose::Tests, Purpose::Peers],
        reason: "counts system calls independently of us",
        apt: &["strace"],
        dnf: "strace",
        pacman: "strace",
        zypper: "strace",
    },
    Package {
        program: "lttng-sessiond",
        purposes: &[Purpose::Tests, Purpose::Daemons],
        reason: "collects what instrumented daemons say",
        apt: &["lttng-tools"],
        dnf: "lttng-tools",
        pacman: "lttng-tools",
        zypper: "lttng-tools",
    },
    Package {
        // A script of the package that has the headers.
        program: "lttng-gen-tp",
        purposes: &[Purpose::Lint, Purpose::Tests, Purpose::Daemons],
        reason: "what daemons are instrumented with: its headers and library",
        apt: &["liblttng-ust-dev"],
        dnf: "lttng-ust-devel",
        pacman: "lttng-ust",
        zypper: "lttng-ust-devel",
    },
    Package {
        program: "babeltrace2",
        purposes: &[Purpose::Tests],
        reason: "reads what LTTng recorded independently of us",
        apt: &["babeltrace2"],
        dnf: "babeltrace2",
        pacman: "babeltrace2",
        zypper: "babeltrace",
    },
    Package {
        program: "readelf",
        purposes: &[Purpose::Tests],
        reason: "says what a program is linked to",
        apt: &["binutils"],
        dnf: "binutils",
        pacman: "binutils",
        zypper: "binutils",
    },
    Package {
        program: "java",
        purposes: &[Purpose::Tests, Purpose::Cluster, Purpose::Screenshots, Purpose::Daemons],
        reason: "runs the real Zipkin server and the real Kafka broker",
        apt: &["default-jre-headless"],
        dnf: "java-latest-openjdk-headless",
        pacman: "jre-openjdk-headless",
        zypper: "java-21-openjdk-headless",
    },
    Package {
        program: "mvn",
        purposes: &[Purpose::Tests, Purpose::Cluster, Purpose::Screenshots, Purpose::Daemons],
        reason: "fetches the Zipkin server, the Kafka broker and jars for a consumer of it",
        apt: &["maven"],
        dnf: "maven",
        pacman: "maven",
        zypper: "maven",
    },
    Package {
        program: "openssl",
        purposes: &[Purpose::Tests],
        reason: "makes the certificates of the Kafka broker's listener with TLS",
        apt: &["openssl"],
        dnf: "openssl",
        pacman: "openssl",
        zypper: "openssl",
    },
    Package {
        program: "protoc",
        purposes: &[Purpose::Tests],
        reason: "reads the published schema for a consumer that is not ours",
        apt: &["protobuf-compiler", "python3", "python3-protobuf"],
        dnf: "protobuf-compiler python3-protobuf",
        pacman: "protobuf python-protobuf",
        zypper: "protobuf-devel python3-protobuf",
    },
    Package {
        program: "chromium",
        purposes: &[Purpose::Screenshots],
        reason: "shows Zipkin's pages",
        apt: &["chromium"],
        dnf: "chromium",
        pacman: "chromium",
        zypper: "chromium",
    },
    Package {
        program: "chromedriver",
        purposes: &[Purpose::Screenshots],
        reason: "drives it",
        apt: &["chromium-driver"],
        dnf: "chromedriver",
        pacman: "chromium",
        zypper: "chromedriver",
    },
    Package {
        program: "pip3",
        purposes: &[Purpose::Tests],
        reason: "fetches the schemas that compose files and Kubernetes' manifests are checked by",
        apt: &["python3-pip"],
        dnf: "python3-pip",
        pacman: "python-pip",
        zypper: "python3-pip",
    },
    Package {
        program: "buildah",
        purposes: &[Purpose::Tests, Purpose::Image],
        reason: "makes the container image",
        apt: &["buildah"],
        dnf: "buildah",
        pacman: "buildah",
        zypper: "buildah",
    },
    Package {
        program: "ip",
        purposes: &[Purpose::Tests],
        reason: "joins the networks of hosts and nodes that tests make, and says what waits in a socket (ss)",
        apt: &["iproute2"],
        dnf: "iproute",
        pacman: "iproute2",
        zypper: "iproute2",
    },
    Package {
        program: "qemu-system-x86_64",
        purposes: &[Purpose::Guests],
        reason: "runs other kernels, emulated, for the tests inside them",
        apt: &["qemu-system-x86"],
        dnf: "qemu-system-x86-core",
        pacman: "qemu-system-x86",
        zypper: "qemu-x86",
    },
    Package {
        program: "busybox",
        purposes: &[Purpose::Guests, Purpose::Tests],
        reason: "the first process inside them, and all that is on a host that is installed on",
        apt: &["busybox-static"],
        dnf: "busybox",
        pacman: "busybox",
        zypper: "busybox",
    },
    Package {
        program: "dmsetup",
        purposes: &[Purpose::Guests],
        reason: "stacks devices inside them",
        apt: &["dmsetup"],
        dnf: "device-mapper",
        pacman: "device-mapper",
        zypper: "device-mapper",
    },
    Package {
        program: "mdadm",
        purposes: &[Purpose::Guests],
        reason: "mirrors devices inside them",
        apt: &["mdadm"],
        dnf: "mdadm",
        pacman: "mdadm",
        zypper: "mdadm",
    },
    Package {
        program: "valgrind",
        purposes: &[Purpose::Count],
        reason: "counts instructions: the only measure that is the same twice",
        apt: &["valgrind", "libc6-dbg"],
        dnf: "valgrind",
        pacman: "valgrind",
        zypper: "valgrind",
    },
    Package {
        program: "perf",
        purposes: &[Purpose::Peers],
        reason: "perf trace: measured beside blkkin",
        apt: &["linux-perf"],
        dnf: "perf",
        pacman: "perf",
        zypper: "perf",
    },
    Package {
        program: "bpftrace",
        purposes: &[Purpose::Peers],
        reason: "measured beside blkkin: biosnoop.bt and scripts of ours",
        apt: &["bpftrace"],
        dnf: "bpftrace",
        pacman: "bpftrace",
        zypper: "bpftrace",
    },
    Package {
        program: "biosnoop-bpfcc",
        purposes: &[Purpose::Peers],
        reason: "measured beside blkkin: biosnoop, ext4slower",
        apt: &["bpfcc-tools"],
        dnf: "bcc-tools",
        pacman: "bcc-tools",
        zypper: "bcc-tools",
    },
    Package {
        program: "blktrace",
        purposes: &[Purpose::Tests, Purpose::Guests, Purpose::Peers],
        reason: "the kernel's own trace of a disk: must say what ours says; measured beside blkkin",
        apt: &["blktrace"],
        dnf: "blktrace",
        pacman: "blktrace",
        zypper: "blktrace",
    },
    Package {
        program: "python3",
        purposes: &[Purpose::Tests, Purpose::Peers],
        reason: "it reads who a process says it is, as another language does; its SQLite makes inserts and times each",
        apt: &["python3"],
        dnf: "python3",
        pacman: "python",
        zypper: "python3",
    },
    Package {
        program: "psql",
        purposes: &[Purpose::Tests, Purpose::Peers],
        reason: "PostgreSQL and pgbench, traced in clusters of our own (Debian's package starts one of its own)",
        apt: &["postgresql"],
        dnf: "postgresql-server postgresql-contrib",
        pacman: "postgresql",
        zypper: "postgresql-server postgresql-contrib",
    },
];

/// The packages that `purposes` need and whose program is not found here.
pub(crate) fn missing(purposes: &[Purpose]) -> Vec<&'static Package> {
    let wanted =
        PACKAGES.iter().filter(|package| package.purposes.iter().any(|purpose| purposes.contains(purpose)));
    wanted.filter(|package| !package.is_there()).collect()
}

impl Package {
    fn is_there(&self) -> bool {
        match self.program.starts_with('/') {
            true => Path::new(self.program).is_file(),
            false => shell::which(self.program).is_some(),
        }
    }

    /// `fio: makes a known number of requests …`, for the plan.
    pub(crate) fn plan_line(&self) -> String {
        format!("{} (package {}): {}", self.program, Manager::of_this_machine().names(self), self.reason)
    }
}

/// Installs `packages` by apt; on a machine without apt the error names them and the command that installs them.
pub(crate) fn install(packages: &[&Package]) -> Result<()> {
    if shell::which("apt-get").is_none() {
        bail!("only apt is driven by this task: {}", Manager::of_this_machine().remedy(packages));
    }
    let names: BTreeSet<&str> = packages.iter().flat_map(|package| package.apt).copied().collect();
    apt_with_fresh_lists(|| {
        let mut command = apt_get()?;
        command.args(["install", "--no-install-recommends"]).args(&names);
        shell::run(&mut command)
    })
    .with_context(|| format!("cannot install {}", names.into_iter().collect::<Vec<_>>().join(" ")))
}

/// Runs `step`; when it fails, the package lists may be missing or too old, so they are fetched and it runs again.
/// That is the only reason to fetch lists: their age alone says nothing.
pub(crate) fn apt_with_fresh_lists<T>(step: impl Fn() -> Result<T>) -> Result<T> {
    step().or_else(|first| {
        println!("  fetching apt's package lists, because: {first:#}");
        shell::run(apt_get()?.arg("update"))
            .context("cannot fetch apt's package lists: is there a network?")?;
        step()
    })
}

fn apt_get() -> Result<Command> {
    let mut command = shell::privileged("env", "apt-get, to install the packages named above")?;
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "-o", "Dpkg::Use-Pty=0"]);
    Ok(command)
}

/// The package managers whose commands we can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manager {
    Apt,
    Dnf,
    Pacman,
    Zypper,
    Unknown,
}

impl Manager {
    pub(crate) fn of_this_machine() -> Self {
        if shell::which("apt-get").is_some() {
            return Self::Apt;
        }
        Self::of_os_release(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// By the distribution's own family names: `ID`, then `ID_LIKE`.
    fn of_os_release(text: &str) -> Self {
        let words = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default()
                .replace('"', "")
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let families = [words("ID"), words("ID_LIKE")].concat();
        let known = families.iter().find_map(|family| match family.as_str() {
            "debian" | "ubuntu" => Some(Self::Apt),
            "fedora" | "rhel" | "centos" => Some(Self::Dnf),
            "arch" | "manjaro" => Some(Self::Pacman),
            "suse" | "opensuse" | "opensuse-tumbleweed" | "opensuse-leap" | "sles" => Some(Self::Zypper),
            _ => None,
        });
        known.unwrap_or(Self::Unknown)
    }

    fn names(self, package: &Package) -> String {
        match self {
            Self::Apt => package.apt.join(" "),
            Self::Dnf => package.dnf.to_owned(),
            Self::Pacman => package.pacman.to_owned(),
            Self::Zypper => package.zypper.to_owned(),
            Self::Unknown => package.program.to_owned(),
        }
    }

    fn remedy(self, packages: &[&Package]) -> String {
        let names: BTreeSet<String> = packages.iter().map(|package| self.names(package)).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(" ");
        match self {
            Self::Apt => format!("run: sudo apt-get install {names}"),
            Self::Dnf => format!("run: sudo dnf install {names}"),
            Self::Pacman => format!("run: sudo pacman -S {names}"),
            Self::Zypper => format!("run: sudo zypper install {names}"),
            Self::Unknown => format!("install the programs {names} by this system's package manager"),
        }
    }

    /// How rustc's own library source is got here, where neither rustup nor apt gave it.
    pub(crate) fn rust_source_remedy(self) -> &'static str {
        match self {
            Self::Apt => "install rustup (https://rustup.rs), then: rustup component add rust-src",
            Self::Dnf => "sudo dnf install rustup && rustup-init, then: rustup component add rust-src",
            Self::Pacman => "sudo pacman -S rustup, then: rustup component add rust-src",
            Self::Zypper => "sudo zypper install rustup, then: rustup component add rust-src",
            Self::Unknown => "install rustup (https://rustup.rs), then: rustup component add rust-src",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_known_by_id_or_by_family() {
        let cases = [
            ("ID=fedora\n", Manager::Dnf),
            ("NAME=\"Rocky\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Manager::Dnf),
            ("ID=arch\n", Manager::Pacman),
            ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", Manager::Zypper),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Manager::Apt),
            ("ID=void\n", Manager::Unknown),
            ("", Manager::Unknown),
        ];
        for (text, manager) in cases {
            assert_eq!(Manager::of_os_release(text), manager, "{text}");
        }
    }

    #[test]
    fn the_remedy_names_each_package_once() {
        let both: Vec<&Package> =
            PACKAGES.iter().filter(|package| ["losetup", "mount"].contains(&package.program)).collect();
        assert_eq!(Manager::Dnf.remedy(&both), "run: sudo dnf install util-linux");
    }

    #[test]
    fn every_package_has_a_purpose_and_a_reason() {
        for package in PACKAGES {
            assert!(
                !package.purposes.is_empty() && !package.reason.is_empty() && !package.apt.is_empty(),
                "{}",
                package.program
            );
        }
    }
}
