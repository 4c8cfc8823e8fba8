//! The kernel's own trace of one disk during the same run: by blktrace, or by ftrace of the same
//! hooks where a kernel refuses reads of blktrace's buffers.
//!
//! *In*: a disk, and the I/O of a test. *Out*: the number of times that each action happened, and
//! the time that each request was at the device. *Invariant*: complete or refused, since both tools
//! report what their buffers dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use blkkin_wire::ids::DeviceId;

use super::ftrace::Ftrace;
use super::tools::{capture, tool};

/// blktrace buffers of each CPU: 16 MiB, at least 48 B an action; a run here has some ten thousand.
const BUFFERS: [&str; 4] = ["-b", "2048", "-n", "8"];
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// blkparse format: action, operation, sector, sectors, seconds, nanoseconds.
const FORMAT: &str = "%a %d %S %n %T %t\\n";

/// ftrace events and the corresponding letters of blktrace.
const EVENTS: &[(&str, char)] = &[
    ("block_bio_queue", 'Q'),
    ("block_getrq", 'G'),
    ("block_bio_backmerge", 'M'),
    ("block_bio_frontmerge", 'F'),
    ("block_rq_merge", 'M'),
    ("block_split", 'X'),
    ("block_rq_insert", 'I'),
    ("block_rq_issue", 'D'),
    ("block_rq_complete", 'C'),
    ("block_rq_requeue", 'R'),
    ("block_bio_remap", 'A'),
];
/// ftrace buffer of each CPU in KiB: 16 MiB, about 100 B an event.
const FTRACE_KIB: &str = "16384";

/// A running block trace.
pub(crate) enum BlockTrace {
    Blktrace(Blktrace),
    Ftrace(Ftrace),
}

impl BlockTrace {
    /// Starts a trace of a disk and its partitions, whose numbers are `devices`. Returns when the
    /// kernel records, or why it cannot.
    pub(crate) fn start(node: &Path, devices: &[DeviceId], folder: &Path) -> Result<BlockTrace, String> {
        let refused = match Blktrace::start(node, folder) {
            Ok(trace) => return Ok(BlockTrace::Blktrace(trace)),
            Err(refused) => refused,
        };
        let trace = BlockTrace::by_ftrace(devices, folder)
            .map_err(|error| format!("{refused}; and ftrace: {error}"))?;
        static FALLBACK_NOTE: Once = Once::new();
        FALLBACK_NOTE
            .call_once(|| println!("{}: ftrace is used", refused.lines().next().unwrap_or_default()));
        Ok(trace)
    }

    /// Starts a trace by ftrace, also where blktrace is available.
    pub(crate) fn by_ftrace(devices: &[DeviceId], folder: &Path) -> Result<BlockTrace, String> {
        let trace = Ftrace::create(folder, FTRACE_KIB)?;
        trace.set("trace_clock", "mono")?;
        // Device numbers in the kernel's encoding (MKDEV, include/linux/kdev_t.h).
        let number = |device: &DeviceId| format!("dev == {}", device.major << 20 | device.minor);
        let filter = devices.iter().map(number).collect::<Vec<_>>().join(" || ");
        for (event, _) in EVENTS {
            trace.set(&format!("events/block/{event}/filter"), &filter)?;
            trace.set(&format!("events/block/{event}/enable"), "1")?;
        }
        Ok(BlockTrace::Ftrace(trace))
    }

    /// Stops, and reads the recorded actions.
    pub(crate) fn finish(self) -> Actions {
        match self {
            BlockTrace::Blktrace(trace) => trace.finish(),
            BlockTrace::Ftrace(trace) => Actions::read(trace.finish().lines().filter_map(event)),
        }
    }
}

/// Parses a line of ftrace: `fio-123 [000] d..1. 123.456789: block_rq_issue: 7,0 R 4096 () 2048 + 8
/// none,0,0 [fio]`.
fn event(line: &str) -> Option<Action> {
    let (front, back) = line.split_once(": block_")?;
    let (name, fields) = back.split_once(": ")?;
    let (_, letter) = EVENTS.iter().find(|(event, _)| event.strip_prefix("block_") == Some(name))?;
    let (seconds, micros) = front.rsplit(' ').next()?.split_once('.')?;
    let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let range = fields.iter().position(|word| *word == "+").and_then(|plus| {
        Some((fields.get(plus.checked_sub(1)?)?.parse().ok()?, fields.get(plus + 1)?.parse().ok()?))
    });
    Some(Action { letter: *letter, range: range.unwrap_or_default(), time })
}

/// A line of a trace.
struct Action {
    letter: char,
    /// Sector and number of sectors.
    range: (u64, u64),
    time: u64,
}

/// A running blktrace.
pub(crate) struct Blktrace {
    child: Child,
    folder: PathBuf,
}

/// Actions of a run.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    /// Counts by letter (blkparse(1)): Q a bio was queued, G a request was allocated, M and F a bio
    /// was merged at the back or front, X split, I inserted, D issued, C completed, R requeued, A
    /// remapped.
    pub(crate) counts: BTreeMap<char, u64>,
    /// Times from issue to completion by (sector, sectors), in the order of the issues.
    pub(crate) device_ns: HashMap<(u64, u64), VecDeque<u64>>,
    /// Times from insertion to issue, of requests into which nothing was merged in between.
    pub(crate) scheduler_ns: HashMap<(u64, u64), VecDeque<u64>>,
    /// Number of issues by (sector, sectors).
    pub(crate) issues: HashMap<(u64, u64), u64>,
    /// Requests that the driver requeued, with the times, in that order.
    pub(crate) requeues: Vec<((u64, u64), u64)>,
}

impl Blktrace {
    fn start(node: &Path, folder: &Path) -> Result<Blktrace, String> {
        let kernel_fs = folder.join("debugfs");
        fs::create_dir_all(&kernel_fs).map_err(|error| error.to_string())?;
        capture(tool("mount").args(["-t", "debugfs", "nodev"]).arg(&kernel_fs))
            .map_err(|error| format!("no debugfs: {error}"))?;
        let mut command = tool("blktrace");
        command.args(BUFFERS).arg("-d").arg(node).arg("-r").arg(&kernel_fs).arg("-D").arg(folder);
        command.args(["-o", "trace"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("blktrace: {error}"))?;
        let mut trace = Blktrace { child, folder: folder.to_owned() };
        let name = node.file_name().unwrap_or_default();
        let buffer = kernel_fs.join("block").join(name).join("trace0");
        let deadline = Instant::now() + STARTS_WITHIN;
        while !buffer.exists() {
            if trace.child.try_wait().is_ok_and(|ended| ended.is_some()) || Instant::now() > deadline {
                return Err(format!("blktrace does not start: {}", trace.end()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // A kernel may let blktrace start and yet refuse reads of its buffers.
        match fs::File::open(&buffer) {
            Ok(_) => Ok(trace),
            Err(error) => Err(format!("blktrace's buffers cannot be read on this kernel: {error}")),
        }
    }

    fn finish(mut self) -> Actions {
        // SAFETY: the process id is of a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
        let output = self.end();
        assert!(!output.contains("dropped events") || output.contains(" 0 dropped"), "{output}");
        let mut parse = tool("blkparse");
        parse.args(["-q", "-i", "trace", "-f", FORMAT, "-D"]).arg(&self.folder);
        Actions::read(capture(&mut parse).unwrap().lines().filter_map(parse_line))
    }

    /// Waits for the exit and returns the output.
    fn end(&mut self) -> String {
        use std::io::Read;
        let mut output = String::new();
        let _ = self.child.wait();
        if let Some(mut stdout) = self.child.stdout.take() {
            let _ = stdout.read_to_string(&mut output);
        }
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_string(&mut output);
        }
        output
    }
}

impl Drop for Blktrace {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            // SAFETY: the process id is of a child that has not been waited for.
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
            let _ = self.child.wait();
        }
        let _ = capture(tool("umount").arg(self.folder.join("debugfs")));
    }
}

/// Parses a line of blkparse in the format above: `D R 2048 8 0 123456789`.
fn parse_line(line: &str) -> Option<Action> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [action, _, sector, sectors, seconds, nanoseconds] = fields[..] else { return None };
    let letter = action.chars().next().filter(|_| action.len() == 1)?;
    let number = |word: &str| word.parse::<u64>().unwrap();
    let time = number(seconds) * 1_000_000_000 + number(nanoseconds);
    Some(Action { letter, range: (number(sector), number(sectors)), time })
}

impl Actions {
    fn read(lines: impl Iterator<Item = Action>) -> Actions {
        let mut actions = Actions::default();
        let mut issued: HashMap<(u64, u64), VecDeque<u64>> = HashMap::new();
        let mut inserted: HashMap<(u64, u64), VecDeque<u64>> = HashMap::new();
        for Action { letter, range, time } in lines {
            *actions.counts.entry(letter).or_default() += 1;
            match letter {
                'R' => actions.requeues.push((range, time)),
                'I' => inserted.entry(range).or_default().push_back(time),
                'D' => {
                    *actions.issues.entry(range).or_default() += 1;
                    if let Some(start) = inserted.get_mut(&range).and_then(VecDeque::pop_front) {
                        actions.scheduler_ns.entry(range).or_default().push_back(time - start);
                    }
                    issued.entry(range).or_default().push_back(time);
                }
                'C' => {
                    let start = issued.get_mut(&range).and_then(VecDeque::pop_front);
                    let duration = time - start.unwrap_or_else(|| panic!("never issued: {range:?}"));
                    actions.device_ns.entry(range).or_default().push_back(duration);
                }
                _ => {}
            }
        }
        actions
    }

    /// Returns how many times an action happened.
    pub(crate) fn count(&self, letter: char) -> u64 {
        self.counts.get(&letter).copied().unwrap_or(0)
    }
}
