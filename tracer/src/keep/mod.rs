//! Rules by which a storage operation is kept when it ends, though head sampling does not draw it.
//!
//! *In*: rules by operation, and the kernel side's histograms for those that compare operations with each other.
//! *Out*: the words of the kernel side's map. *Invariant*: of the rules that name an operation, the last one counts, and
//! its histogram alone counts the operation.

mod percentile;

use std::fmt;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, MapData, MapError, PerCpuArray};
use blkkin_probe_abi::deferred::{
    KEEP_FAILED, KEEP_HISTOGRAM_SHIFT, KEEP_HISTOGRAMS, KEEP_LATENCIES_MAP, KEEP_LIBAIO, KEEP_NS,
    KEEP_RULES_MAP, KEEP_SYSCALLS, KEEP_URING, KEEP_WORDS,
};
use blkkin_probe_abi::totals::BUCKETS;
use blkkin_wire::async_io::{self, AsyncDirection, AsyncInterface, AsyncOperation};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::syscalls::{Arch, SyscallClass, SyscallId};

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;
pub use percentile::Percentile;
use percentile::{Histogram, Window};

/// Maximum number of rules that compare operations with each other.
pub const PERCENTILES_MAX: usize = KEEP_HISTOGRAMS;

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

/// Returns the words of the map on this architecture. `limit` is the word of the operations of a rule.
fn words(rules: &[KeepRule], arch: Arch, limit: impl Fn(&KeepRule) -> Option<u64>) -> [u64; KEEP_WORDS] {
    let mut words = [KEEP_NS; KEEP_WORDS];
    words[KEEP_FAILED as usize] = u64::from(rules.contains(&KeepRule::Failed));
    for rule in rules {
        let (KeepRule::SlowerThan(operations, _) | KeepRule::SlowerThanMost(operations, _)) = rule else {
            continue;
        };
        let Some(limit) = limit(rule) else { continue };
        // Calls that wait for completions take as long as their program has nothing to do.
        let waits = |call: &SyscallId| {
            matches!(rule, KeepRule::SlowerThanMost(KeptOperations::All, _))
                && call.spec().class == SyscallClass::Async
        };
        for call in SyscallId::all().filter(|call| operations.has_call(*call) && !waits(call)) {
            if let Some(number) = call.spec().number(arch) {
                words[KEEP_SYSCALLS as usize + usize::from(number)] = limit;
            }
        }
        for (interface, first) in
            [(AsyncInterface::IoUring, KEEP_URING), (AsyncInterface::Libaio, KEEP_LIBAIO)]
        {
            for (opcode, operation) in async_io::operations(interface) {
                if operations.has_async(operation) {
                    words[first as usize + usize::from(opcode)] = limit;
                }
            }
        }
    }
    words
}

/// Returns the word of the operations of a rule, with the windows of those that compare operations.
fn limit(rule: &KeepRule, windows: &[Option<Window>]) -> Option<u64> {
    match rule {
        KeepRule::SlowerThan(_, time) => Some(time.0.min(KEEP_NS)),
        KeepRule::SlowerThanMost(..) => {
            let of_rule = |window: &Option<Window>| window.as_ref().is_some_and(|window| window.is_of(rule));
            let histogram = windows.iter().position(of_rule)?;
            let slow = windows[histogram].as_ref()?.slow().map_or(KEEP_NS, |slow| slow.0);
            Some((histogram as u64 + 1) << KEEP_HISTOGRAM_SHIFT | slow.min(KEEP_NS))
        }
        KeepRule::Failed => None,
    }
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
    read_at: Option<Instant>,
}

impl KeepRules {
    /// Takes the maps of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<KeepRules, TracerError> {
        let mut take = |name| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let [rules, latencies] = [take(KEEP_RULES_MAP)?, take(KEEP_LATENCIES_MAP)?];
        Ok(KeepRules {
            map: Array::try_from(rules).map_err(failed(KEEP_RULES_MAP))?,
            latencies: PerCpuArray::try_from(latencies).map_err(failed(KEEP_LATENCIES_MAP))?,
            rules: Vec::new(),
            windows: [const { None }; PERCENTILES_MAX],
            written: Box::new([0; KEEP_WORDS]),
            read_at: None,
        })
    }

    /// Sets the rules, one operation after the other. A rule that was there before keeps its last minute. Of rules that
    /// compare operations, at most [`PERCENTILES_MAX`] have an effect.
    pub(crate) fn set(&mut self, rules: &[KeepRule]) -> Result<(), TracerError> {
        for window in &mut self.windows {
            window.take_if(|window| !rules.iter().any(|rule| window.is_of(rule)));
        }
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
        let words = words(rules, Arch::HOST, |rule| limit(rule, &self.windows));
        for (index, word) in words.into_iter().enumerate() {
            if self.written[index] != word {
                self.map.set(index as u32, word, 0).map_err(failed(KEEP_RULES_MAP))?;
                self.written[index] = word;
            }
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
        super::words(rules, arch, |rule| limit(rule, &[]))
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
        assert_eq!(words[KEEP_FAILED as usize], 0);
    }

    #[test]
    fn groups_are_operations_of_all_interfaces() {
        let words = words(&[rule("sync", 5), KeepRule::Failed], Arch::X86_64);
        let fsync = SyscallId::by_name("fsync").unwrap().spec().number(Arch::X86_64).unwrap();
        assert_eq!(words[KEEP_SYSCALLS as usize + usize::from(fsync)], 5);
        assert_eq!((words[KEEP_URING as usize + 3], words[KEEP_LIBAIO as usize + 2]), (5, 5));
        assert_eq!((words[KEEP_URING as usize + 22], words[KEEP_FAILED as usize]), (KEEP_NS, 1));
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
        let rules = [most("sync"), most("write"), rule("fdatasync", 7), most("openat")];
        let words = super::words(&rules, Arch::X86_64, |rule| limit(rule, &windows));
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        // Nothing has been counted, so nothing is slow. The last rule has no window.
        let of = |histogram: u64| histogram << KEEP_HISTOGRAM_SHIFT | KEEP_NS;
        assert_eq!(["pwrite64", "fsync", "fdatasync", "openat"].map(call), [of(1), of(2), 7, KEEP_NS]);
        assert_eq!(words[KEEP_URING as usize + 3], of(2));
        let all = KeepRule::SlowerThanMost(KeptOperations::All, Percentile::parse("99").unwrap());
        let words = super::words(&[rule("io_submit", 5), all], Arch::X86_64, |rule| match rule {
            KeepRule::SlowerThan(_, time) => Some(time.0),
            _ => Some(1),
        });
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        assert_eq!(["fsync", "io_submit", "io_getevents"].map(call), [1, 5, KEEP_NS]);
        let never = KeepRule::SlowerThan(KeptOperations::All, DurationNs(u64::MAX));
        assert_eq!(limit(&never, &[]), Some(KEEP_NS));
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
