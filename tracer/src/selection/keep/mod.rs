//! Rules by which a storage operation is kept when it ends, though head sampling does not draw it.
//!
//! *In*: rules by operation, and the kernel side's histograms for those that compare operations with each other.
//! *Out*: the words of the kernel side's maps. *Invariant*: an operation has at most one time, one percentile, and one time
//! for each disk, the last of each kind that names it; it is kept if it exceeds one of them. One histogram counts it.

mod percentile;

use std::fmt;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, MapData, MapError, PerCpuArray};
use blkkin_probe_abi::deferred::{
    KEEP_AT_DISKS, KEEP_DISK_LIMITS_MAP, KEEP_DISK_NUMBERS, KEEP_DISKS, KEEP_DISKS_VERSION_SHIFT,
    KEEP_FAILED, KEEP_FLAGS, KEEP_HISTOGRAM_SHIFT, KEEP_HISTOGRAMS, KEEP_LATENCIES_MAP, KEEP_LIBAIO, KEEP_NS,
    KEEP_RULES_MAP, KEEP_SYSCALLS, KEEP_URING, KEEP_WORDS,
};
use blkkin_probe_abi::totals::BUCKETS;
use blkkin_wire::async_io::{self, AsyncDirection, AsyncInterface, AsyncOperation};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::syscalls::{Arch, SyscallClass, SyscallId};

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;
pub use percentile::Percentile;
use percentile::{Histogram, Window};

/// Maximum number of rules that compare operations with each other.
pub const PERCENTILES_MAX: usize = KEEP_HISTOGRAMS;

/// Maximum number of disks in rules.
pub const DISKS_MAX: usize = KEEP_DISKS;

/// Time between two readings of the histograms.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Operations that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptOperations {
    /// Each storage operation.
    All,
    /// Operations that read data, by calls, io_uring or libaio.
    Reads,
    /// Operations that write data.
    Writes,
    /// Operations that wait until data are on the device.
    Syncs,
    /// The one with this name: of a system call, or like `io_uring read`.
    Named(Box<str>),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepRule {
    /// Keeps operations that take at least this time.
    SlowerThan(KeptOperations, DurationNs),
    /// Keeps operations that take at least this time and have I/O at this disk.
    SlowerThanAt(KeptOperations, DeviceId, DurationNs),
    /// Keeps operations that take longer than this part of those that ended in the last minute.
    SlowerThanMost(KeptOperations, Percentile),
    /// Keeps operations that fail.
    Failed,
}

impl KeptOperations {
    /// Returns the operations with this name: `read`, `write` and `sync` are groups. None if there is none.
    pub fn named(name: &str) -> Option<KeptOperations> {
        match name {
            "read" => Some(KeptOperations::Reads),
            "write" => Some(KeptOperations::Writes),
            "sync" => Some(KeptOperations::Syncs),
            _ => {
                let is_known = SyscallId::by_name(name).is_some() || async_io::is_operation(name);
                is_known.then(|| KeptOperations::Named(name.into()))
            }
        }
    }

    /// Returns the name of a rule about them, with the limit's text behind it.
    fn rule<'a>(&'a self, limit: &'a dyn fmt::Display) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| match self {
            KeptOperations::All => write!(f, "{limit}"),
            KeptOperations::Reads => write!(f, "read>{limit}"),
            KeptOperations::Writes => write!(f, "write>{limit}"),
            KeptOperations::Syncs => write!(f, "sync>{limit}"),
            KeptOperations::Named(name) => write!(f, "{name}>{limit}"),
        })
    }

    fn has_call(&self, call: SyscallId) -> bool {
        let class = call.spec().class;
        match self {
            KeptOperations::All => true,
            KeptOperations::Reads => class == SyscallClass::Read,
            KeptOperations::Writes => class == SyscallClass::Write,
            KeptOperations::Syncs => class == SyscallClass::Sync,
            KeptOperations::Named(name) => **name == *call.name(),
        }
    }

    fn has_async(&self, operation: &AsyncOperation) -> bool {
        match self {
            KeptOperations::All => true,
            KeptOperations::Reads => operation.direction == Some(AsyncDirection::Read),
            KeptOperations::Writes => operation.direction == Some(AsyncDirection::Write),
            KeptOperations::Syncs => operation.is_sync(),
            KeptOperations::Named(name) => **name == *operation.name,
        }
    }
}

/// Calls `set` with the index of the word of each operation on this architecture.
fn for_each_word(operations: &KeptOperations, arch: Arch, mut set: impl FnMut(usize)) {
    for call in SyscallId::all().filter(|call| operations.has_call(*call)) {
        if let Some(number) = call.spec().number(arch) {
            set(KEEP_SYSCALLS as usize + usize::from(number));
        }
    }
    for (interface, first) in [(AsyncInterface::IoUring, KEEP_URING), (AsyncInterface::Libaio, KEEP_LIBAIO)] {
        for (opcode, operation) in async_io::operations(interface) {
            if operations.has_async(operation) {
                set(first as usize + usize::from(opcode));
            }
        }
    }
}

/// Returns the words of the map on this architecture. `compared` is the histogram of a rule that compares operations, with
/// the time from which they are slow.
fn words(
    rules: &[KeepRule],
    arch: Arch,
    compared: impl Fn(&KeepRule) -> Option<(u64, u64)>,
) -> [u64; KEEP_WORDS] {
    let (mut times, mut comparisons) = ([KEEP_NS; KEEP_WORDS], [(0, KEEP_NS); KEEP_WORDS]);
    for rule in rules {
        match rule {
            KeepRule::SlowerThan(operations, time) => {
                for_each_word(operations, arch, |at| times[at] = time.0.min(KEEP_NS));
            }
            KeepRule::SlowerThanMost(operations, _) => {
                let Some(compared) = compared(rule) else { continue };
                for_each_word(operations, arch, |at| comparisons[at] = compared);
                // Calls that wait for completions take as long as their program has nothing to do.
                if *operations == KeptOperations::All {
                    let waiting = SyscallId::all().filter(|call| call.spec().class == SyscallClass::Async);
                    for number in waiting.filter_map(|call| call.spec().number(arch)) {
                        comparisons[KEEP_SYSCALLS as usize + usize::from(number)] = (0, KEEP_NS);
                    }
                }
            }
            KeepRule::SlowerThanAt(..) | KeepRule::Failed => {}
        }
    }
    let word = |at: usize| comparisons[at].0 << KEEP_HISTOGRAM_SHIFT | times[at].min(comparisons[at].1);
    let mut words = std::array::from_fn(word);
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    words[KEEP_FLAGS as usize] = flag(rules.contains(&KeepRule::Failed), KEEP_FAILED)
        | flag(rules.iter().any(|rule| rule.disk().is_some()), KEEP_AT_DISKS);
    words
}

/// Times by disk, at the index of an operation's word; 0 for none.
type DiskLimits = [[u64; KEEP_DISKS]; KEEP_WORDS];

/// Returns the times of single disks, which have these places.
fn disk_limits(rules: &[KeepRule], disks: &[Option<DeviceId>; KEEP_DISKS], arch: Arch) -> Box<DiskLimits> {
    let mut limits = Box::new([[0; KEEP_DISKS]; KEEP_WORDS]);
    for rule in rules {
        let KeepRule::SlowerThanAt(operations, disk, time) = rule else { continue };
        let Some(place) = disks.iter().position(|placed| *placed == Some(*disk)) else { continue };
        for_each_word(operations, arch, |at| limits[at][place] = time.0.max(1));
    }
    let numbers = disks.map(|disk| disk.map_or(0, |disk| u64::from(disk.to_kernel())));
    limits[KEEP_DISK_NUMBERS as usize] = numbers;
    limits
}

/// Gives each disk of the rules a place. One that had a place before keeps it.
fn place_disks(disks: &mut [Option<DeviceId>; KEEP_DISKS], rules: &[KeepRule]) {
    let of_rules = || rules.iter().filter_map(KeepRule::disk);
    for place in disks.iter_mut() {
        place.take_if(|disk| !of_rules().any(|of_rule| of_rule == *disk));
    }
    for disk in of_rules() {
        if !disks.contains(&Some(disk))
            && let Some(free) = disks.iter_mut().find(|place| place.is_none())
        {
            *free = Some(disk);
        }
    }
}

impl KeepRule {
    /// Returns the disk of a rule about one.
    pub fn disk(&self) -> Option<DeviceId> {
        match self {
            KeepRule::SlowerThanAt(_, disk, _) => Some(*disk),
            KeepRule::SlowerThan(..) | KeepRule::SlowerThanMost(..) | KeepRule::Failed => None,
        }
    }
}

/// Returns the number of a rule's histogram, and the time from which its operations are slow.
fn compared(rule: &KeepRule, windows: &[Option<Window>]) -> Option<(u64, u64)> {
    let of_rule = |window: &Option<Window>| window.as_ref().is_some_and(|window| window.is_of(rule));
    let histogram = windows.iter().position(of_rule)?;
    let slow = windows[histogram].as_ref()?.slow().map_or(KEEP_NS, |slow| slow.0);
    Some((histogram as u64 + 1, slow.min(KEEP_NS)))
}

/// The kernel side's rules, which may change while the programs run.
pub(crate) struct KeepRules {
    map: Array<MapData, u64>,
    latencies: PerCpuArray<MapData, Histogram>,
    rules: Vec<KeepRule>,
    /// Windows of the rules that compare operations, each at the place of its histogram.
    windows: [Option<Window>; PERCENTILES_MAX],
    /// Words of the map.
    written: Box<[u64; KEEP_WORDS]>,
    disk_limits: Array<MapData, [u64; KEEP_DISKS]>,
    /// Disks of the rules, each at its place in the limits.
    disks: [Option<DeviceId>; KEEP_DISKS],
    /// Elements of the map of limits.
    written_limits: Box<DiskLimits>,
    /// Number of changes of the disks and their limits.
    disks_version: u64,
    read_at: Option<Instant>,
}

impl KeepRules {
    /// Takes the maps of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<KeepRules, TracerError> {
        let mut take = |name| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let [rules, latencies, disk_limits] =
            [take(KEEP_RULES_MAP)?, take(KEEP_LATENCIES_MAP)?, take(KEEP_DISK_LIMITS_MAP)?];
        Ok(KeepRules {
            map: Array::try_from(rules).map_err(failed(KEEP_RULES_MAP))?,
            latencies: PerCpuArray::try_from(latencies).map_err(failed(KEEP_LATENCIES_MAP))?,
            rules: Vec::new(),
            windows: [const { None }; PERCENTILES_MAX],
            written: Box::new([0; KEEP_WORDS]),
            disk_limits: Array::try_from(disk_limits).map_err(failed(KEEP_DISK_LIMITS_MAP))?,
            disks: [None; KEEP_DISKS],
            written_limits: Box::new([[0; KEEP_DISKS]; KEEP_WORDS]),
            disks_version: 0,
            read_at: None,
        })
    }

    /// Sets the rules, one operation after the other. A rule that was there before keeps its last minute. Of rules that
    /// compare operations, at most [`PERCENTILES_MAX`] have an effect, and of disks [`DISKS_MAX`].
    pub(crate) fn set(&mut self, rules: &[KeepRule]) -> Result<(), TracerError> {
        for window in &mut self.windows {
            window.take_if(|window| !rules.iter().any(|rule| window.is_of(rule)));
        }
        self.write_disk_limits(rules)?;
        // No operation of an earlier rule counts in a histogram when a window of a new one begins.
        self.write(rules)?;
        for rule in rules {
            let KeepRule::SlowerThanMost(operations, percentile) = rule else { continue };
            if self.windows.iter().flatten().any(|window| window.is_of(rule)) {
                continue;
            }
            let Some(free) = self.windows.iter().position(Option::is_none) else { break };
            let before = self.histogram(free)?;
            self.windows[free] = Some(Window::new(operations, *percentile, &before));
        }
        self.write(rules)?;
        self.rules = rules.to_vec();
        Ok(())
    }

    /// Compares the operations of the last minute with each other again, once a second.
    pub(crate) fn update(&mut self, now: Instant) -> Result<(), TracerError> {
        let is_due = self.read_at.is_none_or(|at| now.duration_since(at) >= READ_EVERY);
        if !is_due || self.windows.iter().all(Option::is_none) {
            return Ok(());
        }
        self.read_at = Some(now);
        for place in 0..PERCENTILES_MAX {
            if self.windows[place].is_some() {
                let counts = self.histogram(place)?;
                self.windows[place].iter_mut().for_each(|window| window.advance(now, &counts));
            }
        }
        let rules = std::mem::take(&mut self.rules);
        let written = self.write(&rules);
        self.rules = rules;
        written
    }

    /// Returns the rules that compare operations, each with the time from which an operation counts as slow now; none
    /// if none does.
    pub(crate) fn limits(&self) -> Vec<(String, Option<DurationNs>)> {
        let limits = self.windows.iter().flatten().map(|window| (window.rule(), window.slow()));
        limits.collect()
    }

    /// Writes the words that have changed.
    fn write(&mut self, rules: &[KeepRule]) -> Result<(), TracerError> {
        let mut words = words(rules, Arch::HOST, |rule| compared(rule, &self.windows));
        words[KEEP_FLAGS as usize] |= self.disks_version << KEEP_DISKS_VERSION_SHIFT;
        (0..).zip(words).try_for_each(|(index, word)| self.write_word(index, word))
    }

    /// Writes the limits of single disks. Meanwhile, and for operations that began before, no disk has limits.
    fn write_disk_limits(&mut self, rules: &[KeepRule]) -> Result<(), TracerError> {
        place_disks(&mut self.disks, rules);
        let limits = disk_limits(rules, &self.disks, Arch::HOST);
        if limits == self.written_limits {
            return Ok(());
        }
        self.disks_version += 1;
        let flags = self.written[KEEP_FLAGS as usize] & KEEP_FAILED;
        self.write_word(KEEP_FLAGS, flags | self.disks_version << KEEP_DISKS_VERSION_SHIFT)?;
        for (index, element) in limits.iter().enumerate() {
            if self.written_limits[index] != *element {
                let set = self.disk_limits.set(index as u32, element, 0);
                set.map_err(failed(KEEP_DISK_LIMITS_MAP))?;
                self.written_limits[index] = *element;
            }
        }
        Ok(())
    }

    fn write_word(&mut self, index: u32, word: u64) -> Result<(), TracerError> {
        if self.written[index as usize] != word {
            self.map.set(index, word, 0).map_err(failed(KEEP_RULES_MAP))?;
            self.written[index as usize] = word;
        }
        Ok(())
    }

    /// Returns what a histogram has counted on all CPUs.
    fn histogram(&self, place: usize) -> Result<Histogram, TracerError> {
        let of_cpus = self.latencies.get(&(place as u32), 0).map_err(failed(KEEP_LATENCIES_MAP))?;
        let mut sum = [0; BUCKETS];
        for counts in of_cpus.iter() {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(sum)
    }
}

fn failed(map: &'static str) -> impl Fn(MapError) -> TracerError {
    move |error| TracerError::Map { map, reason: error_chain(&error) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn rule(name: &str, ns: u64) -> KeepRule {
        KeepRule::SlowerThan(KeptOperations::named(name).unwrap(), DurationNs(ns))
    }

    fn words(rules: &[KeepRule], arch: Arch) -> [u64; KEEP_WORDS] {
        super::words(rules, arch, |rule| compared(rule, &[]))
    }

    #[test]
    fn the_last_rule_about_an_operation_counts() {
        let all = KeepRule::SlowerThan(KeptOperations::All, DurationNs(1));
        let words =
            words(&[all, rule("read", 2), rule("pread64", 3), rule("io_uring fsync", 4)], Arch::X86_64);
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        assert_eq!(["write", "read", "readv", "pread64", "fsync"].map(call), [1, 2, 2, 3, 1]);
        let uring = |opcode: usize| words[KEEP_URING as usize + opcode];
        assert_eq!([1, 3, 22, 23].map(uring), [2, 4, 2, 1]);
        assert_eq!(words[KEEP_LIBAIO as usize], 2);
        // What is not traced has no rule.
        assert_eq!(uring(27), KEEP_NS);
        assert_eq!(words[KEEP_FLAGS as usize], 0);
    }

    #[test]
    fn groups_are_operations_of_all_interfaces() {
        let words = words(&[rule("sync", 5), KeepRule::Failed], Arch::X86_64);
        let fsync = SyscallId::by_name("fsync").unwrap().spec().number(Arch::X86_64).unwrap();
        assert_eq!(words[KEEP_SYSCALLS as usize + usize::from(fsync)], 5);
        assert_eq!((words[KEEP_URING as usize + 3], words[KEEP_LIBAIO as usize + 2]), (5, 5));
        assert_eq!((words[KEEP_URING as usize + 22], words[KEEP_FLAGS as usize]), (KEEP_NS, KEEP_FAILED));
        assert_eq!(KeptOperations::named("connect"), None);
    }

    #[test]
    fn a_rule_that_compares_names_its_histogram() {
        let most = |name: &str| {
            KeepRule::SlowerThanMost(KeptOperations::named(name).unwrap(), Percentile::parse("99.9").unwrap())
        };
        let windows = [most("write"), most("sync")].map(|rule| match rule {
            KeepRule::SlowerThanMost(operations, percentile) => {
                Some(Window::new(&operations, percentile, &[0; BUCKETS]))
            }
            _ => None,
        });
        // An operation may have a time as well.
        let rules = [rule("fdatasync", 7), most("sync"), most("write"), rule("write", 9), most("openat")];
        let words = super::words(&rules, Arch::X86_64, |rule| compared(rule, &windows));
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        // Nothing has been counted, so nothing is slow. The last rule has no window.
        let of = |histogram: u64| histogram << KEEP_HISTOGRAM_SHIFT | KEEP_NS;
        let with_time = |histogram: u64, time: u64| histogram << KEEP_HISTOGRAM_SHIFT | time;
        let expected = [with_time(1, 9), of(2), with_time(2, 7), KEEP_NS];
        assert_eq!(["pwrite64", "fsync", "fdatasync", "openat"].map(call), expected);
        assert_eq!(words[KEEP_URING as usize + 3], of(2));
        let all = KeepRule::SlowerThanMost(KeptOperations::All, Percentile::parse("99").unwrap());
        let words = super::words(&[rule("io_submit", 5), all], Arch::X86_64, |_| Some((3, 1)));
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        let expected = [with_time(3, 1), 5, KEEP_NS];
        assert_eq!(["fsync", "io_submit", "io_getevents"].map(call), expected);
        let never = KeepRule::SlowerThan(KeptOperations::All, DurationNs(u64::MAX));
        assert_eq!(super::words(&[never], Arch::X86_64, |_| None)[0], KEEP_NS);
    }

    #[test]
    fn a_disk_has_times_of_its_own_at_its_place() {
        let [first, second] = [0, 1].map(|minor| DeviceId { major: 8, minor });
        let at = |name: &str, disk, ns| {
            KeepRule::SlowerThanAt(KeptOperations::named(name).unwrap(), disk, DurationNs(ns))
        };
        let all = KeepRule::SlowerThanAt(KeptOperations::All, second, DurationNs(9));
        let rules = [at("read", first, 2), all, at("fsync", second, 0), rule("read", 5)];
        let mut disks = [None; KEEP_DISKS];
        place_disks(&mut disks, &rules);
        assert_eq!(disks, [Some(first), Some(second), None, None]);
        let limits = disk_limits(&rules, &disks, Arch::X86_64);
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            limits[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        assert_eq!(["pread64", "write", "fsync"].map(call), [[2, 9, 0, 0], [0, 9, 0, 0], [0, 1, 0, 0]]);
        assert_eq!(limits[KEEP_URING as usize + 22], [2, 9, 0, 0]);
        let numbers = [first, second].map(|disk| u64::from(disk.to_kernel()));
        assert_eq!(limits[KEEP_DISK_NUMBERS as usize], [numbers[0], numbers[1], 0, 0]);
        // Times of all disks are elsewhere.
        let words = words(&rules, Arch::X86_64);
        assert_eq!((words[KEEP_URING as usize + 22], words[KEEP_FLAGS as usize]), (5, KEEP_AT_DISKS));
    }

    #[test]
    fn a_disk_keeps_its_place_as_long_as_a_rule_names_it() {
        let disk = |minor| DeviceId { major: 8, minor };
        let rules = |minors: &[u32]| -> Vec<KeepRule> {
            let rule = |minor: &u32| KeepRule::SlowerThanAt(KeptOperations::All, disk(*minor), DurationNs(1));
            minors.iter().map(rule).collect()
        };
        let mut disks = [None; KEEP_DISKS];
        let mut placed = |minors: &[u32]| {
            place_disks(&mut disks, &rules(minors));
            disks.map(|disk| disk.map(|disk| disk.minor))
        };
        assert_eq!(placed(&[1, 2, 1, 3]), [Some(1), Some(2), Some(3), None]);
        assert_eq!(placed(&[4, 3, 2]), [Some(4), Some(2), Some(3), None]);
        assert_eq!(placed(&[3, 9, 8, 7, 6]), [Some(9), Some(8), Some(3), Some(7)]);
        assert_eq!(placed(&[]), [None; KEEP_DISKS]);
    }

    #[test]
    fn rules_have_the_form_in_which_they_are_given() {
        let window =
            |operations| Window::new(&operations, Percentile::parse("99.90").unwrap(), &[0; BUCKETS]).rule();
        assert_eq!(window(KeptOperations::All), "p99.9");
        for name in ["read", "write", "sync", "fsync", "io_uring read"] {
            assert_eq!(window(KeptOperations::named(name).unwrap()), format!("{name}>p99.9"));
        }
    }
}
