//! Tools: name, command line, and what each does not see.

use std::path::{Path, PathBuf};

use crate::disk::DiskTarget;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Tracer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Untraced,
    /// Tracer `blkkin run` with its report.
    Blkkin,
    /// Tracer `blkkin run` that also writes the spans of every request to a file, because the
    /// others write every event.
    BlkkinSpans,
    Strace,
    PerfTrace,
    /// Script in bench/: the bpftrace equivalent of strace.
    BpftraceCalls,
    /// Script in bench/: biosnoop with tracepoints, which every kernel has.
    BpftraceBlocks,
    /// Script of bpftrace.
    BiosnoopBt,
    BccBiosnoop,
    BccExt4slower,
    Blktrace,
    /// Tracer `blkkin run` with head sampling, only in `crate::sampling`.
    BlkkinSampled,
    /// The same, with rules for slow and failed operations, only in `crate::sampling`.
    BlkkinKept,
    /// Tracer `blkkin top`, only in `crate::top`.
    BlkkinTop,
    /// Script in bench/: biolatency with tracepoints, only in `crate::top`.
    BpftraceHistogram,
    /// The hooks of blktrace, read as text from ftrace, for machines where blktrace fails.
    BlkTracer,
}

/// Way to start a tool with the load.
pub(crate) enum Launch {
    /// Load without a tool.
    LoadOnly,
    /// Tool that starts the load: its arguments, followed by the load's.
    Wrapping(Vec<String>),
    /// Tool that is started before the load and interrupted after it.
    Alongside { arguments: Vec<String>, ready: Ready, switches: Vec<Switch> },
}

/// Kernel setting that is enabled while the tool runs, and restored after it. Of several, the last
/// is restored first, before the tool ends.
pub(crate) struct Switch {
    pub(crate) file: PathBuf,
    pub(crate) on: &'static str,
}

/// Condition for a tool to be ready.
pub(crate) enum Ready {
    /// The kernel traces already; the tool only reads.
    AtOnce,
    /// The tool has printed this.
    Prints(&'static str),
    /// The kernel reports that this device is traced.
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
            Tool::BlkkinSampled => "blkkin --sample 1/1024",
            Tool::BlkkinKept => "the same --keep 10ms,failed",
            Tool::BlkkinTop => "blkkin top",
            Tool::BpftraceHistogram => "bpftrace, histogram",
            Tool::BlkTracer => "blk tracer (ftrace)",
        }
    }

    /// Returns the program and the option that prints its version.
    pub(crate) fn version(self) -> Option<(&'static str, &'static str)> {
        match self {
            Tool::Untraced | Tool::Blkkin | Tool::BlkkinSpans | Tool::BlkTracer => None,
            Tool::BlkkinSampled | Tool::BlkkinKept | Tool::BlkkinTop => None,
            Tool::Strace => Some(("strace", "--version")),
            Tool::PerfTrace => Some(("perf", "--version")),
            Tool::BpftraceCalls | Tool::BpftraceBlocks | Tool::BpftraceHistogram | Tool::BiosnoopBt => {
                Some(("bpftrace", "--version"))
            }
            Tool::BccBiosnoop | Tool::BccExt4slower => {
                Some(("dpkg-query", "--showformat=bpfcc ${Version}\n"))
            }
            Tool::Blktrace => Some(("blktrace", "-V")),
        }
    }

    /// Returns what a user of the tool does not see.
    pub(crate) fn blind_spots(self) -> &'static str {
        match self {
            Tool::Untraced => "",
            Tool::BlkkinTop => "single requests; anything above the request",
            Tool::BpftraceHistogram => {
                "single requests; anything above the request; the program and the operation"
            }
            Tool::Blkkin | Tool::BlkkinSpans => "what the device does inside",
            Tool::BlkkinSampled => "what the device does inside; 1,023 of 1,024 operations",
            Tool::BlkkinKept => {
                "what the device does inside; 1,023 of 1,024 operations that are not slow and do not fail"
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

    /// Returns the command line of the tool. Its output goes to `output`, a separate folder.
    pub(crate) fn launch(self, blkkin: &Path, place: &DiskTarget, comm: &str, output: &Path) -> Launch {
        let path = |name: &str| output.join(name).display().to_string();
        let report = format!("--json={}", path("report.json"));
        let blkkin = blkkin.display().to_string();
        let wrapping =
            |arguments: &[&str]| Launch::Wrapping(arguments.iter().map(|&word| word.to_owned()).collect());
        let alongside = |arguments: &[&str], ready| Launch::Alongside {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            ready,
            switches: Vec::new(),
        };
        let script = |text: &str| script(text, comm, place);
        match self {
            Tool::Untraced => Launch::LoadOnly,
            Tool::Blkkin => wrapping(&[&blkkin, "run", &report, "--"]),
            Tool::BlkkinSpans => {
                let to = format!("--to=zipkin={}", path("spans.json"));
                wrapping(&[&blkkin, "run", &report, &to, "--"])
            }
            Tool::BlkkinSampled => wrapping(&[&blkkin, "run", &report, "--sample=1/1024", "--"]),
            Tool::BlkkinKept => {
                wrapping(&[&blkkin, "run", &report, "--sample=1/1024", "--keep=10ms,failed", "--"])
            }
            Tool::Strace => wrapping(&["strace", "-f", "-q", "-ttt", "-T", "-o", &path("events")]),
            Tool::PerfTrace => wrapping(&["perf", "trace", "-o", &path("events"), "--"]),
            Tool::BpftraceCalls => alongside(
                &["bpftrace", "-o", &path("events"), "-e", &script(include_str!("../../scripts/calls.bt"))],
                Ready::Prints("READY"),
            ),
            Tool::BpftraceBlocks => alongside(
                &["bpftrace", "-o", &path("events"), "-e", &script(include_str!("../../scripts/blocks.bt"))],
                Ready::Prints("READY"),
            ),
            Tool::BlkkinTop => alongside(
                &[&blkkin, "top", "--json", "--interval", "200ms", "--device", &place.device],
                Ready::Prints("seconds"),
            ),
            Tool::BpftraceHistogram => alongside(
                &["bpftrace", "-e", &script(include_str!("../../scripts/histogram.bt"))],
                Ready::Prints("READY"),
            ),
            // These tools write line by line to standard output, which goes to `events`.
            Tool::BiosnoopBt => alongside(&["bpftrace", "/usr/sbin/biosnoop.bt"], Ready::Prints("TIME")),
            Tool::BccBiosnoop => alongside(&["biosnoop-bpfcc"], Ready::Prints("TIME")),
            Tool::BccExt4slower => alongside(&["ext4slower-bpfcc", "0"], Ready::Prints("TIME")),
            Tool::Blktrace => alongside(
                &["blktrace", "-d", &place.device, "-D", &output.display().to_string(), "-o", "trace"],
                Ready::DeviceTraced(place.device.clone()),
            ),
            Tool::BlkTracer => Launch::Alongside {
                arguments: vec!["cat".to_owned(), format!("{TRACEFS}/trace_pipe")],
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

/// Fills in a script. bpftrace writes its output in blocks of some KiB, so the ready mark must be
/// as long.
fn script(text: &str, comm: &str, place: &DiskTarget) -> String {
    text.replace("$COMM", comm)
        .replace("$DEVICE", &place.number.to_string())
        .replace("$READY", &format!("READY{}", ".".repeat(500)))
}

/// Returns the sysfs folder of a block device.
pub(crate) fn sysfs(device: &str) -> PathBuf {
    Path::new("/sys/block").join(device.trim_start_matches("/dev/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_contain_program_and_device() {
        let place =
            DiskTarget { name: "p", target: "/t".into(), device: "/dev/loop0".into(), number: 7340032 };
        for tool in [Tool::BpftraceCalls, Tool::BpftraceBlocks] {
            let Launch::Alongside { arguments, .. } =
                tool.launch(Path::new("b"), &place, "fio", Path::new("/o"))
            else {
                unreachable!("bpftrace runs beside the load");
            };
            let script = arguments.last().unwrap();
            assert!(script.contains("\"fio\"") || script.contains("7340032"), "{script}");
            assert!(!script.contains("$COMM") && !script.contains("$DEVICE"), "{script}");
        }
    }

    #[test]
    fn every_tool_lists_its_blind_spots() {
        assert!(Tool::ALL[1..].iter().all(|tool| !tool.blind_spots().is_empty()));
    }
}
