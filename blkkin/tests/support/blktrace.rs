//! The kernel's own trace of one disk, of the same run: blktrace's, or where a kernel lets nobody read that, ftrace's of the same
//! hooks.
//!
//! *In*: a disk, and what is done to it meanwhile. *Out*: how often each action happened, and how long each request was
//! with the device. *Invariant*: complete or refused: both say themselves what their buffers dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use blkkin_wire::ids::DeviceId;

use super::ftrace::Ftrace;
use super::tools::{capture, tool};

/// Buffers of each CPU: 16 MiB, 48 B an action or more; a run here has some ten thousand.
const BUFFERS: [&str; 4] = ["-b", "2048", "-n", "8"];
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// Action, operation, sector, sectors, seconds, nanoseconds.
const FORMAT: &str = "%a %d %S %n %T %t\\n";

/// The events of ftrace, by the letters of blktrace.
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
/// KiB of each CPU: 16 MiB, some 100 B an event.
const FTRACE_KIB: &str = "16384";

/// Who watches.
pub(crate) enum Witness {
    Blktrace(Blktrace),
    Ftrace(Ftrace),
}

impl Witness {
    /// Begins, and returns when the kernel writes; or why nobody can watch here.
    pub(crate) fn start(node: &Path, device: DeviceId, folder: &Path) -> Result<Witness, String> {
        let refused = match Blktrace::start(node, folder) {
            Ok(trace) => return Ok(Witness::Blktrace(trace)),
            Err(refused) => refused,
        };
        let witness =
            Witness::by_ftrace(device, folder).map_err(|error| format!("{refused}; and ftrace: {error}"))?;
        static SAID: Once = Once::new();
        SAID.call_once(|| println!("{}: ftrace is asked", refused.lines().next().unwrap_or_default()));
        Ok(witness)
    }

    /// The same by ftrace, where blktrace may be had too.
    pub(crate) fn by_ftrace(device: DeviceId, folder: &Path) -> Result<Witness, String> {
        let trace = Ftrace::make(folder, FTRACE_KIB)?;
        trace.set("trace_clock", "mono")?;
        for (event, _) in EVENTS {
            // As the kernel encodes it (MKDEV, include/linux/kdev_t.h).
            let number = device.major << 20 | device.minor;
            trace.set(&format!("events/block/{event}/filter"), &format!("dev == {number}"))?;
            trace.set(&format!("events/block/{event}/enable"), "1")?;
        }
        Ok(Witness::Ftrace(trace))
    }

    /// Ends, and reads what was written.
    pub(crate) fn finish(self) -> Actions {
        match self {
            Witness::Blktrace(trace) => trace.finish(),
            Witness::Ftrace(trace) => Actions::read(trace.finish().lines().filter_map(event)),
        }
    }
}

/// `fio-123 [000] d..1. 123.456789: block_rq_issue: 7,0 R 4096 () 2048 + 8 none,0,0 [fio]`
fn event(line: &str) -> Option<Action> {
    let (front, back) = line.split_once(": block_")?;
    let (name, words) = back.split_once(": ")?;
    let (_, letter) = EVENTS.iter().find(|(event, _)| event.strip_prefix("block_") == Some(name))?;
    let (seconds, micros) = front.rsplit(' ').next()?.split_once('.')?;
    let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000;
    let words: Vec<&str> = words.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "+").and_then(|plus| {
        Some((words.get(plus.checked_sub(1)?)?.parse().ok()?, words.get(plus + 1)?.parse().ok()?))
    });
    Some(Action { letter: *letter, place: place.unwrap_or_default(), time })
}

/// One line of a trace.
struct Action {
    letter: char,
    /// Sector and sectors.
    place: (u64, u64),
    time: u64,
}

/// A run of blktrace that goes on.
pub(crate) struct Blktrace {
    child: Child,
    folder: PathBuf,
}

/// What it says of a run.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    /// By letter (blkparse(1)): Q a bio was queued, G a request was allocated, M and F a bio was merged at the back or front,
    /// X split, I inserted, D issued, C completed, R requeued, A remapped.
    pub(crate) counts: BTreeMap<char, u64>,
    /// From issue to completion by (sector, sectors), in the order of the issues.
    pub(crate) device_ns: HashMap<(u64, u64), VecDeque<u64>>,
    /// The same from insertion to issue, of those to which nothing was merged in between.
    pub(crate) scheduler_ns: HashMap<(u64, u64), VecDeque<u64>>,
    /// How often each was issued.
    pub(crate) issues: HashMap<(u64, u64), u64>,
    /// What was put back by the driver, and when, in that order.
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
        let at_work = kernel_fs.join("block").join(name).join("trace0");
        let deadline = Instant::now() + STARTS_WITHIN;
        while !at_work.exists() {
            if trace.child.try_wait().is_ok_and(|ended| ended.is_some()) || Instant::now() > deadline {
                return Err(format!("blktrace does not start: {}", trace.end()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // A kernel may let blktrace begin and nobody read what it says.
        match fs::File::open(&at_work) {
            Ok(_) => Ok(trace),
            Err(error) => Err(format!("blktrace is not to be read here: {error}")),
        }
    }

    fn finish(mut self) -> Actions {
        // SAFETY: the number is of a child that nobody has waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
        let said = self.end();
        assert!(!said.contains("dropped events") || said.contains(" 0 dropped"), "{said}");
        let mut parse = tool("blkparse");
        parse.args(["-q", "-i", "trace", "-f", FORMAT, "-D"]).arg(&self.folder);
        Actions::read(capture(&mut parse).unwrap().lines().filter_map(parsed))
    }

    /// Waits for its end: what it said.
    fn end(&mut self) -> String {
        use std::io::Read;
        let mut said = String::new();
        let _ = self.child.wait();
        if let Some(mut output) = self.child.stdout.take() {
            let _ = output.read_to_string(&mut said);
        }
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        said
    }
}

impl Drop for Blktrace {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            // SAFETY: the number is of a child that nobody has waited for.
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
            let _ = self.child.wait();
        }
        let _ = capture(tool("umount").arg(self.folder.join("debugfs")));
    }
}

/// `D R 2048 8 0 123456789`, as blkparse was told to write it.
fn parsed(line: &str) -> Option<Action> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [action, _, sector, sectors, seconds, nanoseconds] = words[..] else { return None };
    let letter = action.chars().next().filter(|_| action.len() == 1)?;
    let number = |word: &str| word.parse::<u64>().unwrap();
    let time = number(seconds) * 1_000_000_000 + number(nanoseconds);
    Some(Action { letter, place: (number(sector), number(sectors)), time })
}

impl Actions {
    fn read(lines: impl Iterator<Item = Action>) -> Actions {
        let mut actions = Actions::default();
        let mut issued: HashMap<(u64, u64), VecDeque<u64>> = HashMap::new();
        let mut inserted: HashMap<(u64, u64), VecDeque<u64>> = HashMap::new();
        for Action { letter, place, time } in lines {
            *actions.counts.entry(letter).or_default() += 1;
            match letter {
                'R' => actions.requeues.push((place, time)),
                'I' => inserted.entry(place).or_default().push_back(time),
                'D' => {
                    *actions.issues.entry(place).or_default() += 1;
                    if let Some(since) = inserted.get_mut(&place).and_then(VecDeque::pop_front) {
                        actions.scheduler_ns.entry(place).or_default().push_back(time - since);
                    }
                    issued.entry(place).or_default().push_back(time);
                }
                'C' => {
                    let since = issued.get_mut(&place).and_then(VecDeque::pop_front);
                    let took = time - since.unwrap_or_else(|| panic!("never issued: {place:?}"));
                    actions.device_ns.entry(place).or_default().push_back(took);
                }
                _ => {}
            }
        }
        actions
    }

    /// How often this was done.
    pub(crate) fn count(&self, letter: char) -> u64 {
        self.counts.get(&letter).copied().unwrap_or(0)
    }
}
