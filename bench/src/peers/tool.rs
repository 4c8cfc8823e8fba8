//! The tools: what each is, how it is started, and what it does not see.

use std::path::{Path, PathBuf};

use crate::disk::Place;

const TRACEFS: &str = "/sys/kernel/tracing";

/// A tracer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Untraced,
    /// `blkkin run`: the report.
    Blkkin,
    /// And every request's spans to a file: as the others, who write every event.
    BlkkinSpans,
    Strace,
    PerfTrace,
    /// A script of ours: the nearest to `strace` that bpftrace has.
    BpftraceCalls,
    /// A script of ours: biosnoop by tracepoints, which every kernel has.
    BpftraceBlocks,
    /// bpftrace's own.
    BiosnoopBt,
    BccBiosnoop,
    BccExt4slower,
    Blktrace,
    /// The same hooks as blktrace's, read as text from ftrace: for where blktrace itself may not run.
    BlkTracer,
}

/// How a tool meets the load.
pub(crate) enum Way {
    /// The load runs alone.
    Alone,
    /// The tool starts the load: its own words, the load's behind them.
    Around(Vec<String>),
    /// The tool is started before and interrupted after.
    Beside { words: Vec<String>, ready: Ready, switches: Vec<Switch> },
}

/// Something in the kernel that is on while the tool runs, and then again as it was. Of several the last is turned back
/// first, before the tool ends.
pub(crate) struct Switch {
    pub(crate) file: PathBuf,
    pub(crate) on: &'static str,
}

/// How one knows that it traces.
pub(crate) enum Ready {
    /// The kernel traces already; the tool only reads.
    AtOnce,
    /// It has written this.
    Says(&'static str),
    /// The kernel says that this device is traced.
    DeviceTraced(String),
}

impl Tool {
    pub(crate) const ALL: [Tool; 12] = [
        Tool::Untraced,
        Tool::Blkkin,
        Tool::BlkkinSpans,
        Tool::Strace,
        Tool::PerfTrace,
        Tool::BpftraceCalls,
        Tool::BpftraceBlocks,
        Tool::BiosnoopBt,
        Tool::BccBiosnoop,
        Tool::BccExt4slower,
        Tool::Blktrace,
        Tool::BlkTracer,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Untraced => "untraced",
            Tool::Blkkin => "blkkin",
            Tool::BlkkinSpans => "blkkin, spans to a file",
            Tool::Strace => "strace -f -T",
            Tool::PerfTrace => "perf trace",
            Tool::BpftraceCalls => "bpftrace, calls",
            Tool::BpftraceBlocks => "bpftrace, requests",
            Tool::BiosnoopBt => "biosnoop.bt",
            Tool::BccBiosnoop => "biosnoop (bcc)",
            Tool::BccExt4slower => "ext4slower (bcc)",
            Tool::Blktrace => "blktrace",
            Tool::BlkTracer => "blk tracer (ftrace)",
        }
    }

    /// The program and what asks it for its version.
    pub(crate) fn version(self) -> Option<(&'static str, &'static str)> {
        match self {
            Tool::Untraced | Tool::Blkkin | Tool::BlkkinSpans | Tool::BlkTracer => None,
            Tool::Strace => Some(("strace", "--version")),
            Tool::PerfTrace => Some(("perf", "--version")),
            Tool::BpftraceCalls | Tool::BpftraceBlocks | Tool::BiosnoopBt => Some(("bpftrace", "--version")),
            Tool::BccBiosnoop | Tool::BccExt4slower => {
                Some(("dpkg-query", "--showformat=bpfcc ${Version}\n"))
            }
            Tool::Blktrace => Some(("blktrace", "-V")),
        }
    }

    /// What a user of it does not learn.
    pub(crate) fn does_not_see(self) -> &'static str {
        match self {
            Tool::Untraced => "",
            Tool::Blkkin | Tool::BlkkinSpans => {
                "user-space threads' own context; what the device does inside"
            }
            Tool::Strace | Tool::PerfTrace | Tool::BpftraceCalls => {
                "anything below the system call: no bio, no request, no flush, no journal commit; io_uring's requests; \
                 which part of a call was the disk"
            }
            Tool::BpftraceBlocks | Tool::BiosnoopBt | Tool::BccBiosnoop => {
                "the call, the file and, for write-back and journal, the program that it was for; how requests and calls \
                 belong together; where in the stack the time went"
            }
            Tool::BccExt4slower => {
                "anything but four ext4 functions; bios, requests, other file systems, devices"
            }
            Tool::Blktrace | Tool::BlkTracer => {
                "the call and the file; for write-back and journal the program; other devices than the one it was given"
            }
        }
    }

    /// How it is started; what it writes goes to `output`, which is a folder for it alone.
    pub(crate) fn way(self, blkkin: &Path, place: &Place, comm: &str, output: &Path) -> Way {
        let path = |name: &str| output.join(name).display().to_string();
        let report = format!("--json={}", path("report.json"));
        let blkkin = blkkin.display().to_string();
        let around = |words: &[&str]| Way::Around(words.iter().map(|&word| word.to_owned()).collect());
        let beside = |words: &[&str], ready| Way::Beside {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            ready,
            switches: Vec::new(),
        };
        let script = |text: &str| script(text, comm, place);
        match self {
            Tool::Untraced => Way::Alone,
            Tool::Blkkin => around(&[&blkkin, "run", &report, "--"]),
            Tool::BlkkinSpans => {
                let to = format!("--to=zipkin={}", path("spans.json"));
                around(&[&blkkin, "run", &report, &to, "--"])
            }
            Tool::Strace => around(&["strace", "-f", "-q", "-ttt", "-T", "-o", &path("events")]),
            Tool::PerfTrace => around(&["perf", "trace", "-o", &path("events"), "--"]),
            Tool::BpftraceCalls => beside(
                &["bpftrace", "-o", &path("events"), "-e", &script(include_str!("../../scripts/calls.bt"))],
                Ready::Says("READY"),
            ),
            Tool::BpftraceBlocks => beside(
                &["bpftrace", "-o", &path("events"), "-e", &script(include_str!("../../scripts/blocks.bt"))],
                Ready::Says("READY"),
            ),
            // They write to standard output, line by line, which goes to `events`.
            Tool::BiosnoopBt => beside(&["bpftrace", "/usr/sbin/biosnoop.bt"], Ready::Says("TIME")),
            Tool::BccBiosnoop => beside(&["biosnoop-bpfcc"], Ready::Says("TIME")),
            Tool::BccExt4slower => beside(&["ext4slower-bpfcc", "0"], Ready::Says("TIME")),
            Tool::Blktrace => beside(
                &["blktrace", "-d", &place.device, "-D", &output.display().to_string(), "-o", "trace"],
                Ready::DeviceTraced(place.device.clone()),
            ),
            Tool::BlkTracer => Way::Beside {
                words: vec!["cat".to_owned(), format!("{TRACEFS}/trace_pipe")],
                ready: Ready::AtOnce,
                switches: vec![
                    Switch { file: format!("{TRACEFS}/tracing_on").into(), on: "1" },
                    Switch { file: format!("{TRACEFS}/current_tracer").into(), on: "blk" },
                    Switch { file: sysfs(&place.device).join("trace/enable"), on: "1" },
                ],
            },
        }
    }
}

/// bpftrace writes its output when it has some KiB of it, so "it traces" must be as long to be seen.
fn script(text: &str, comm: &str, place: &Place) -> String {
    text.replace("$COMM", comm)
        .replace("$DEVICE", &place.number.to_string())
        .replace("$READY", &format!("READY{}", ".".repeat(500)))
}

/// A block device's own folder.
pub(crate) fn sysfs(device: &str) -> PathBuf {
    Path::new("/sys/block").join(device.trim_start_matches("/dev/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_ask_for_the_program_and_the_device() {
        let place = Place { name: "p", target: "/t".into(), device: "/dev/loop0".into(), number: 7340032 };
        for tool in [Tool::BpftraceCalls, Tool::BpftraceBlocks] {
            let Way::Beside { words, .. } = tool.way(Path::new("b"), &place, "fio", Path::new("/o")) else {
                unreachable!("bpftrace runs beside the load");
            };
            let script = words.last().unwrap();
            assert!(script.contains("\"fio\"") || script.contains("7340032"), "{script}");
            assert!(!script.contains("$COMM") && !script.contains("$DEVICE"), "{script}");
        }
    }

    #[test]
    fn every_peer_says_what_it_does_not_see() {
        assert!(Tool::ALL[1..].iter().all(|tool| !tool.does_not_see().is_empty()));
    }
}
