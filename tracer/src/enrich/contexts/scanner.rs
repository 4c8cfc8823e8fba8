//! Scanner thread: finds the TLS slots of processes and writes them into the kernel side's map.
//!
//! *In*: [`ProcessChange`]s. *Out*: the map of [`TlsSlots`], kept up to date.
//!
//! *Cost*: a process is scanned when it is first observed, when it executes a program, and when it
//! maps an executable file that is not in the negative cache. Once every library of a machine has
//! been scanned, an execve costs one set lookup. After a scan that began later than the execve, it costs one read of
//! /proc/PID/stat too, and another scan if that one found a slot.
//!
//! *Loading libraries*: loaders map a library part by part and may be delayed in between. Until all
//! scanned files are mapped and relocated, the scan is repeated: after 1 ms, then at doubling
//! intervals up to 8 s, for 74 s in total.
//!
//! *Unobserved mappings* (a filter drops mmap): a process is scanned again 1 ms after it was
//! observed or executed a program, then at doubling intervals up to 8 s. So a loaded library is
//! found by the time the process has run twice as long, or 8 s later. A scan without news reads
//! only the list of mappings: 30 to 100 µs.
//!
//! *Process contexts* are looked up by the same scan, and when a process maps a file with their
//! name. If a process has a thread context and no process context, the scan is repeated for 2 s.
//!
//! *Unloaded libraries*: the kernel side evicts the slot at the munmap. The scanner notices within
//! a second and stops counting the process; a second later it scans the process again for another
//! slot.
//!
//! *A late execve*: changes wait in a queue, so a scan may have read the new program before its execve is reported.
//! What it found stays. Without it the calls until the next scan would have no names. A scan that began before the
//! execve and took longer may have read either program: the slot is looked up again, and the process context stays if
//! the same is published now ([`ProcessContextTracker::on_exec`]).
//!
//! *Races*: what is unloaded during a scan may be gone or replaced, so nothing read from it is
//! used. A file enters the negative cache only if all reads succeeded and it was still mapped there
//! afterwards. It leaves the cache if its process turns out to have mapped it during the scan: then
//! another library may have been there in between. A slot is used only if its library was still mapped after the slot was claimed; from
//! then on the kernel side handles the munmap. A forked child inherits its parent's slot on the
//! kernel side.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use blkkin_probe_abi::context::{TLS_SLOTS_MAX, TlsSlot};
use blkkin_wire::clock::MonotonicNs;

use super::config::ContextConfig;
use super::policy::ContextPolicy;
use super::process_contexts::ProcessContextTracker;
use super::scan_stats::ScanStats;
use super::tls_slots::{TlsSlots, kernel_slot};
use crate::clock;
use blkkin_otel_context::MappedFile;
use blkkin_otel_context::NegativeCache;
use blkkin_otel_context::{AddressSpace, ScanError, ScanResult, SlotLookup, address_space};

/// First delay before a process is scanned again; then doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// Scans of a process that has a thread context and no process context: 2 s in all.
const PROCESS_CONTEXT_RETRIES: u32 = 11;
/// Scans of a process that is loading a library: 74 s in all. A lazily relocated TLS descriptor
/// that is first used later is not found.
const LOADING_RETRIES: u32 = 21;
/// Maximum number of doublings: 8 s.
const BACKOFF_DOUBLINGS_MAX: u32 = 13;

/// Interval between checks for slots that the kernel side evicted, if there are any slots: one read
/// of 8 bytes.
const EVICTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Attempt number after an eviction, for a delay of 1 s: the eviction precedes the end of the
/// munmap.
const EVICTED_RETRY: u32 = 10;

/// A change of a process that may require a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessChange {
    /// A thread of the process was observed. If it is the leader, the process may be new.
    Observed { pid: u32, parent: u32, leads: bool },
    /// The process executes another program, from this file.
    Execed { pid: u32, program: Option<MappedFile>, time: MonotonicNs },
    /// The process has mapped this file as executable, in a system call of these times
    /// (CLOCK_MONOTONIC, ns).
    Mapped { pid: u32, file: MappedFile, begin_ns: u64, end_ns: u64 },
    /// The process has mapped memory with the name of process contexts.
    ContextMapped { pid: u32 },
    /// A thread uses an attribute key index that the process context does not name yet.
    UnknownKey { pid: u32 },
    /// The user, the cgroup or the comm of the process has changed.
    CredentialsChanged { pid: u32 },
    /// The process has exited.
    Exited { pid: u32 },
    /// Changes were lost: every process may have changed.
    Rescan,
}

/// Process that was scanned, or that the policy does not allow.
#[derive(Clone, Copy)]
struct ScannedProcess {
    space: AddressSpace,
    slot: Option<TlsSlot>,
    /// Begin of its last scan, or of the check of the policy.
    scanned: MonotonicNs,
}

/// State of the scanner.
pub(crate) struct Scanner {
    slots: TlsSlots,
    process_contexts: ProcessContextTracker,
    policy: ContextPolicy,
    /// Scanned processes, and the slots of those that publish.
    known: HashMap<u32, ScannedProcess>,
    /// Begin of the present scan, or of the check of the policy.
    scan_began: MonotonicNs,
    negative_cache: NegativeCache,
    /// Processes that could not be scanned, each counted once.
    denied: HashSet<u32>,
    stats: Arc<ScanStats>,
    /// Scheduled scans, with the attempt number.
    retries: BTreeMap<(Instant, u32), u32>,
    retry_at: HashMap<u32, Instant>,
    /// True if mappings are unobserved, so that scans repeat.
    periodic_rescan: bool,
    changed: bool,
    /// Evictions handled so far, and the time of the next check.
    evictions: u64,
    evictions_due: Instant,
}

impl Scanner {
    /// Creates a scanner without any known process.
    pub(crate) fn new(
        slots: TlsSlots,
        process_contexts: ProcessContextTracker,
        ContextConfig { policy, periodic_rescan, .. }: ContextConfig,
        stats: Arc<ScanStats>,
    ) -> Scanner {
        Scanner {
            slots,
            process_contexts,
            policy,
            known: HashMap::new(),
            scan_began: MonotonicNs(0),
            negative_cache: NegativeCache::new(),
            denied: HashSet::new(),
            stats,
            retries: BTreeMap::new(),
            retry_at: HashMap::new(),
            periodic_rescan,
            changed: false,
            evictions: 0,
            evictions_due: Instant::now(),
        }
    }

    /// Runs until all senders are gone.
    pub(crate) fn run(mut self, changes: &Receiver<ProcessChange>) {
        loop {
            let evictions = (self.stats.publishing.load(Relaxed) > 0).then_some(self.evictions_due);
            let retry = self.retries.keys().next().map(|(due, _)| *due);
            let due = [retry, self.process_contexts.next(), evictions].into_iter().flatten().min();
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            let first = match wait {
                None => changes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => changes.recv_timeout(wait),
            };
            match first {
                Ok(change) => {
                    self.handle(change);
                    changes.try_iter().for_each(|change| self.handle(change));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.run_retries(Instant::now());
            self.process_contexts.poll(Instant::now());
            self.check_evictions(Instant::now());
            if std::mem::take(&mut self.changed) {
                self.slots.publish_version();
            }
        }
    }

    fn handle(&mut self, change: ProcessChange) {
        self.negative_cache.expire();
        match change {
            ProcessChange::Observed { pid, parent, leads } => {
                // The pid may have been reused.
                let is_known = if leads { self.is_up_to_date(pid) } else { self.known.contains_key(&pid) };
                if !is_known && !self.inherit_from_parent(pid, parent) {
                    self.scan(pid, 0);
                }
            }
            ProcessChange::Execed { pid, program, time } => {
                let is_read = self.was_scanned_since(pid, time);
                let has_slot = is_read && self.known.get(&pid).is_some_and(|known| known.slot.is_some());
                if !is_read {
                    self.process_contexts.on_exec(pid);
                    self.forget_scan(pid);
                }
                // The kernel side may have removed a slot since its scan.
                // If the program's file publishes nothing, its libraries are reported as they are
                // mapped, if mappings are observed.
                if has_slot
                    || self.periodic_rescan
                    || !program.is_some_and(|program| self.negative_cache.contains(program))
                {
                    self.scan_with(pid, 0, program);
                }
            }
            ProcessChange::Mapped { pid, file, begin_ns, end_ns } => {
                self.negative_cache.on_mapped(pid, file, begin_ns, end_ns);
                if !self.negative_cache.contains(file) {
                    self.scan_with(pid, 0, Some(file));
                }
            }
            ProcessChange::ContextMapped { pid } => self.scan(pid, 0),
            ProcessChange::UnknownKey { pid } => self.process_contexts.reread(pid),
            ProcessChange::CredentialsChanged { pid } => {
                let has_slot = self.known.get(&pid).is_some_and(|known| known.slot.is_some());
                if !(has_slot && self.policy.allows(pid)) {
                    self.scan(pid, 0);
                }
            }
            ProcessChange::Exited { pid } => {
                self.denied.remove(&pid);
                self.clear(pid);
            }
            ProcessChange::Rescan => {
                let there = live_pids();
                let known = self.known.keys().copied().chain(self.slots.pids());
                let gone: Vec<u32> = known.filter(|pid| !there.contains(pid)).collect();
                gone.into_iter().for_each(|pid| self.remove(pid));
                self.known.retain(|_, known| known.slot.is_some());
                there.into_iter().for_each(|pid| self.scan(pid, 0));
            }
        }
    }

    /// Returns whether the last scan of this process read the address space that it still has.
    fn is_up_to_date(&self, pid: u32) -> bool {
        self.known.get(&pid).is_some_and(|known| address_space(pid) == Some(known.space))
    }

    /// Returns whether a scan of this process began after that time, and read the address space that it still has.
    /// Two programs may have equal ones (`setarch --addr-no-randomize`).
    fn was_scanned_since(&self, pid: u32, time: MonotonicNs) -> bool {
        self.known.get(&pid).is_some_and(|known| known.scanned > time) && self.is_up_to_date(pid)
    }

    /// Takes over the parent's slot for a forked process, which has a copy of its memory. Only
    /// slots in the program itself, which is never unmapped.
    fn inherit_from_parent(&mut self, pid: u32, parent: u32) -> bool {
        let Some(ScannedProcess { space, slot: Some(slot), .. }) = self.known.get(&parent).copied() else {
            return false;
        };
        self.scan_began = clock::now();
        // The policy is checked per process: the child may have another user.
        if slot.anchor != 0 || address_space(pid) != Some(space) || !self.policy.allows(pid) {
            return false;
        }
        // The parent's process context is not the child's: OTEP 4719 excludes it from forks.
        self.process_contexts.remove(pid);
        self.keep_slot(pid, space, slot)
    }

    fn scan(&mut self, pid: u32, attempt: u32) {
        self.scan_with(pid, attempt, None);
    }

    /// Scans a process, which has mapped this file by a system call.
    fn scan_with(&mut self, pid: u32, attempt: u32, mapped: Option<MappedFile>) {
        if pid == std::process::id() {
            return;
        }
        self.scan_began = clock::now();
        if !self.policy.allows(pid) {
            return self.revoke(pid);
        }
        match blkkin_otel_context::scan(pid, &mut self.negative_cache) {
            Ok(ScanResult { address_space: space, slot, process_contexts, loaded }) => {
                mapped.into_iter().for_each(|file| self.negative_cache.add_alias(file, &loaded));
                let has_slot = matches!(slot, SlotLookup::At(slot) if self.keep_slot(pid, space, kernel_slot(space, slot)));
                if !has_slot {
                    self.set_slot(pid, space, None);
                    if matches!(slot, SlotLookup::At(_)) {
                        return self.schedule_retry(pid, attempt);
                    }
                }
                self.process_contexts.on_scan(pid, space, &process_contexts);
                let attempts_max = match slot {
                    SlotLookup::Loading => LOADING_RETRIES,
                    // Anonymous memory that is named later is not observed.
                    SlotLookup::At(_) if process_contexts.is_empty() => PROCESS_CONTEXT_RETRIES,
                    _ => 0,
                };
                if self.periodic_rescan || attempt < attempts_max {
                    self.schedule_retry(pid, attempt);
                }
            }
            Err(ScanError::Denied) => self.record_denied(pid),
            Err(ScanError::Gone) => self.clear(pid),
        }
    }

    /// Stores a slot. A slot in a library is claimed first, and the process is scanned again. From
    /// the claim on, the kernel side evicts it if the library is unmapped. If the library was
    /// unmapped before, the second scan finds nothing, or another library in its place. Returns
    /// false if the slot is gone. A full map is counted.
    fn keep_slot(&mut self, pid: u32, space: AddressSpace, slot: TlsSlot) -> bool {
        // Its own or inherited slot, which the kernel side already tracks.
        if self.slots.get(pid) == Some(slot) {
            self.record(pid, space, Some(slot));
            return true;
        }
        if slot.anchor == 0 {
            self.set_slot(pid, space, Some(slot));
            return true;
        }
        if !self.slots.claim(pid, slot) {
            self.stats.no_room.fetch_add(1, Relaxed);
            self.record(pid, space, None);
            return true;
        }
        let again = blkkin_otel_context::scan(pid, &mut self.negative_cache);
        let is_same = |again: ScanResult| {
            again.address_space == space
                && matches!(again.slot, SlotLookup::At(same) if kernel_slot(space, same) == slot)
        };
        let stays = again.is_ok_and(is_same) && self.slots.commit(pid, slot);
        if stays {
            self.changed = true;
            self.record(pid, space, Some(slot));
        }
        stays
    }

    fn schedule_retry(&mut self, pid: u32, attempt: u32) {
        let due = Instant::now() + RETRY_MIN * 2u32.pow(attempt.min(BACKOFF_DOUBLINGS_MAX));
        if let Some(before) = self.retry_at.insert(pid, due) {
            self.retries.remove(&(before, pid));
        }
        self.retries.insert((due, pid), attempt + 1);
    }

    /// Forgets a process that cannot be scanned, and counts it once.
    fn record_denied(&mut self, pid: u32) {
        self.remove(pid);
        if self.denied.len() >= TLS_SLOTS_MAX as usize {
            self.denied.clear();
        }
        if self.denied.insert(pid) {
            self.stats.denied.fetch_add(1, Relaxed);
        }
    }

    /// Removes the slot of a process that the policy does not allow, or no longer.
    fn revoke(&mut self, pid: u32) {
        let Some(space) = address_space(pid) else { return self.remove(pid) };
        self.process_contexts.remove(pid);
        self.set_slot(pid, space, None);
    }

    fn run_retries(&mut self, now: Instant) {
        while let Some(entry) = self.retries.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, pid), times) = entry.remove_entry();
            self.retry_at.remove(&pid);
            self.scan(pid, times);
        }
    }

    /// Stops counting the processes whose slots the kernel side evicted.
    fn check_evictions(&mut self, now: Instant) {
        if now < self.evictions_due {
            return;
        }
        self.evictions_due = now + EVICTION_CHECK_INTERVAL;
        let evictions = self.slots.evictions();
        if std::mem::replace(&mut self.evictions, evictions) == evictions {
            return;
        }
        let lost =
            self.known.iter_mut().filter(|(pid, known)| known.slot.is_some() && !self.slots.contains(**pid));
        let lost: Vec<u32> = lost.filter_map(|(pid, known)| known.slot.take().map(|_| *pid)).collect();
        for pid in lost {
            self.count_publisher(true, false);
            self.schedule_retry(pid, EVICTED_RETRY);
        }
    }

    /// Stores a slot, or removes it: the process may have inherited one.
    fn set_slot(&mut self, pid: u32, space: AddressSpace, slot: Option<TlsSlot>) {
        let Some(slot) = slot else {
            // No further scan is needed: a library unmapped from here on has no slot.
            self.changed |= self.slots.remove(pid);
            self.record(pid, space, None);
            return;
        };
        let room = self.slots.insert(pid, slot);
        self.changed |= room;
        self.stats.no_room.fetch_add(u64::from(!room), Relaxed);
        self.record(pid, space, room.then_some(slot));
    }

    /// Records whether a process has a slot.
    fn record(&mut self, pid: u32, space: AddressSpace, slot: Option<TlsSlot>) {
        if self.known.len() >= TLS_SLOTS_MAX as usize {
            self.known.retain(|_, known| known.slot.is_some());
        }
        let known = ScannedProcess { space, slot, scanned: self.scan_began };
        let had = self.known.insert(pid, known).is_some_and(|known| known.slot.is_some());
        self.count_publisher(had, slot.is_some());
    }

    /// Updates the count of publishing processes.
    fn count_publisher(&self, had: bool, has: bool) {
        match (had, has) {
            (false, true) => self.stats.publishing.fetch_add(1, Relaxed),
            (true, false) => self.stats.publishing.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    /// Forgets a process and removes its slot.
    fn remove(&mut self, pid: u32) {
        self.clear(pid);
        self.changed |= self.slots.remove(pid);
    }

    /// Forgets a process, but for its slot: the kernel side removes it with the last thread.
    fn clear(&mut self, pid: u32) {
        self.process_contexts.remove(pid);
        self.forget_scan(pid);
    }

    /// Forgets what was scanned of a process, but for its slot: the kernel side removes it at execve.
    fn forget_scan(&mut self, pid: u32) {
        if let Some(due) = self.retry_at.remove(&pid) {
            self.retries.remove(&(due, pid));
        }
        let known = self.known.remove(&pid);
        self.count_publisher(known.is_some_and(|known| known.slot.is_some()), false);
    }
}

/// Pids of all processes.
fn live_pids() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
