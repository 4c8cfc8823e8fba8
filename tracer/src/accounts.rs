//! The books: what the kernel side counted beside what the reader decoded.

use aya::maps::{MapData, PerCpuArray};
use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::record as raw;
use blkkin_probe_abi::settings::{PROGRAMS, Program};
use blkkin_wire::batch::{Account, Accounts};
use blkkin_wire::event::{Ending, Kept, LayerEvent};
use blkkin_wire::killed::Tally;

use crate::error::TracerError;

/// What the reader decoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    by_tag: [u64; slot::TAGS],
    incomplete: u64,
    files_truncated: u64,
    /// Entries that were no record.
    pub malformed: u64,
}

impl Recorded {
    /// By kind.
    pub fn tally(&self) -> Tally {
        let accounts = balance(&[0; slot::COUNTERS], self, 0);
        let kinds = [accounts.calls, accounts.bios, accounts.requests, accounts.commits, accounts.names];
        Tally::from_numbers(kinds.map(|kind| kind.recorded))
    }

    /// Counts a record that became the last of `events`.
    pub fn count(&mut self, tag: u8, events: &[LayerEvent]) {
        if let Some(count) = self.by_tag.get_mut(usize::from(tag)) {
            *count += 1;
        }
        match events.last() {
            Some(LayerEvent::Call(call)) => self.incomplete += u64::from(call.ending == Ending::NoExit),
            Some(LayerEvent::File(file)) => self.files_truncated += u64::from(file.kept == Kept::Truncated),
            _ => {}
        }
    }
}

/// The kernel side's counters, summed over programs and CPUs.
pub struct KernelCounters {
    map: PerCpuArray<MapData, [u64; slot::LOCAL_WORDS]>,
}

impl KernelCounters {
    /// Over the programs' per-CPU memory.
    pub fn new(map: PerCpuArray<MapData, [u64; slot::LOCAL_WORDS]>) -> Self {
        KernelCounters { map }
    }

    /// What one program has counted, summed over CPUs.
    pub fn of(&self, program: Program) -> Result<[u64; slot::COUNTERS], TracerError> {
        let mut sums = [0; slot::COUNTERS];
        self.add(program as u32, &mut sums)?;
        Ok(sums)
    }

    /// The sums now.
    pub fn read(&self) -> Result<[u64; slot::COUNTERS], TracerError> {
        let mut sums = [0; slot::COUNTERS];
        for program in 0..PROGRAMS as u32 {
            self.add(program, &mut sums)?;
        }
        Ok(sums)
    }

    fn add(&self, program: u32, sums: &mut [u64; slot::COUNTERS]) -> Result<(), TracerError> {
        let values = self.map.get(&program, 0);
        let values = values.map_err(|error| TracerError::Map { map: "LOCALS", reason: error.to_string() })?;
        for words in values.iter() {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum += word;
            }
        }
        Ok(())
    }
}

/// Puts both together.
pub fn balance(kernel: &[u64; slot::COUNTERS], recorded: &Recorded, recursion_misses: u64) -> Accounts {
    let account = |tags: &[u8]| {
        let sum = |of: &dyn Fn(usize) -> u64| tags.iter().map(|tag| of(usize::from(*tag))).sum();
        Account {
            fired: sum(&|tag| kernel[slot::FIRED + tag]),
            recorded: sum(&|tag| recorded.by_tag[tag]),
            dropped: sum(&|tag| kernel[slot::DROPPED + tag]),
        }
    };
    Accounts {
        calls: account(&[raw::TAG_CALL]),
        bios: account(&[raw::TAG_BIO, raw::TAG_PAIR]),
        requests: account(&[raw::TAG_REQUEST, raw::TAG_PAIR]),
        commits: account(&[raw::TAG_COMMIT]),
        names: account(&[raw::TAG_TASK, raw::TAG_FILE]),
        calls_entered: kernel[slot::CALLS_ENTERED],
        calls_filtered: kernel[slot::CALLS_FILTERED],
        calls_incomplete: recorded.incomplete,
        calls_truncated: kernel[slot::CALLS_TRUNCATED],
        files_truncated: recorded.files_truncated,
        calls_compat: kernel[slot::CALLS_COMPAT],
        bios_queued: kernel[slot::BIOS_QUEUED],
        requests_started: kernel[slot::REQUESTS_STARTED].saturating_sub(kernel[slot::REQUESTS_MERGED]),
        requests_merged: kernel[slot::REQUESTS_MERGED],
        ends_missed: kernel[slot::BIOS_STALE] + kernel[slot::REQUESTS_STALE],
        untracked: kernel[slot::BIOS_UNTRACKED] + kernel[slot::REQUESTS_UNTRACKED],
        tasks_missed: kernel[slot::TASKS_MISSED],
        recursion_misses,
        malformed: recorded.malformed,
        requests_foreign: kernel[slot::REQUESTS_FOREIGN],
        paths_failed: kernel[slot::PATHS_FAILED],
        walk_overflow: kernel[slot::WALK_OVERFLOW],
        flushes_served: kernel[slot::FLUSHES_SERVED],
        flush_overflow: kernel[slot::FLUSH_OVERFLOW],
        contexts_faulted: kernel[slot::CONTEXTS_FAULTED],
        contexts_unread: kernel[slot::CONTEXTS_UNREAD],
        contexts_invalid: kernel[slot::CONTEXTS_INVALID],
        // Who looks at processes counts them (`context/tally.rs`).
        contexts_publishing: 0,
        contexts_denied: 0,
        contexts_no_room: 0,
        resources_publishing: 0,
        resources_malformed: 0,
        resources_unread: 0,
        resources_no_room: 0,
        attributes_cut: kernel[slot::ATTRIBUTES_CUT],
        attributes_unread: kernel[slot::ATTRIBUTES_UNREAD],
    }
}
