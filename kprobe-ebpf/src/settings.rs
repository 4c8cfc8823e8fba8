//! The loader's settings, frozen before verification: a filter that is not set is dead code to the verifier.

use crate::layout::frozen;
use blkkin_probe_abi::settings::{CALL_NUMBERS, CallShape, FILTERS_MAX, HOPS_MAX, Hop, Settings};

/// Set by the loader.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = EMPTY;

/// What to capture of each call, by number; set by the loader.
#[unsafe(no_mangle)]
pub static CALLS: [u32; CALL_NUMBERS] = [0; CALL_NUMBERS];

const EMPTY: Settings = Settings {
    seed: 0,
    slower_than_ns: 0,
    bio_chain_endio: 0,
    follow: 0,
    errors_only: 0,
    block_only: 0,
    path_args: 0,
    file_paths: 0,
    kernel_origin: 0,
    adopt_by_number: 0,
    requests_begin_late: 0,
    pids_len: 0,
    tids_len: 0,
    comms_len: 0,
    cgroups_len: 0,
    devices_len: 0,
    own_pid: 0,
    stacked: 0,
    contexts: 0,
    pids: [0; FILTERS_MAX],
    tids: [0; FILTERS_MAX],
    devices: [0; FILTERS_MAX],
    cgroups: [0; FILTERS_MAX],
    comms: [[0; 2]; FILTERS_MAX],
    hops: [NO_HOP; HOPS_MAX],
};

const NO_HOP: Hop = Hop { end_io: 0, around: 0, first: 0, second: 0, to: 0 };

/// One setting.
macro_rules! setting {
    ($field:ident $([$index:expr])* $(. $member:ident)?) => {
        $crate::layout::frozen(&$crate::settings::SETTINGS.$field $([$index])* $(.$member)?)
    };
}
pub(crate) use setting;

/// What to capture of call `number`; nothing of one outside the table.
#[inline(always)]
pub fn shape(number: u64) -> CallShape {
    if number >= CALL_NUMBERS as u64 {
        return CallShape(0);
    }
    CallShape(frozen(&CALLS[number as usize]))
}
