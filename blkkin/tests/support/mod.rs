//! Shared support of the system tests: private disks, gated processes, recordings of the tracer,
//! and independent counts of the kernel and of other tools.
//!
//! A test that cannot run on a machine prints `skipped: REASON` and returns.

pub(crate) mod agent_recording;
pub(crate) mod aio;
pub(crate) mod blktrace;
pub(crate) mod container;
pub(crate) mod context;
pub(crate) mod dependencies;
pub(crate) mod direct;
pub(crate) mod disk;
pub(crate) mod fio;
pub(crate) mod ftrace;
pub(crate) mod gated_process;
pub(crate) mod guest;
pub(crate) mod guide;
pub(crate) mod hidden_tasks;
pub(crate) mod hosts;
pub(crate) mod live;
pub(crate) mod lttng_namespace;
pub(crate) mod mapping;
pub(crate) mod memory_limit;
pub(crate) mod metrics;
pub(crate) mod missed_ends;
pub(crate) mod monotonic;
pub(crate) mod moving_tree;
pub(crate) mod nbd;
pub(crate) mod nbd_fleet;
pub(crate) mod network_link;
pub(crate) mod overlay;
pub(crate) mod planted;
pub(crate) mod postgres;
pub(crate) mod prometheus;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod served_disk;
pub(crate) mod service;
pub(crate) mod sg;
pub(crate) mod single_process;
pub(crate) mod skewed_records;
pub(crate) mod stage_summary;
pub(crate) mod stored_state;
pub(crate) mod synthetic_batches;
pub(crate) mod systemd;
pub(crate) mod task_storage;
pub(crate) mod terminal;
pub(crate) mod tmpfs;
pub(crate) mod tools;
pub(crate) mod traces;
pub(crate) mod ublk;
pub(crate) mod uring;
pub(crate) mod uring_rename;
pub(crate) mod vm;
pub(crate) mod vm_settings;
#[path = "../../../zipkin-export/tests/support/server.rs"]
pub(crate) mod zipkin;

// `zipkin` uses the module next to it, as in the tests of zipkin-export.
use crate::broker::child;

/// Ends the test as skipped, with the reason.
macro_rules! skip {
    ($($reason:tt)*) => {{
        println!("skipped: {}", format_args!($($reason)*));
        return;
    }};
}
pub(crate) use skip;

/// Skips the test unless it runs as root and these programs are installed.
macro_rules! needs {
    ($($program:literal),*) => {
        if !crate::common::is_root() {
            crate::support::skip!("loading eBPF programs requires root");
        }
        $(if !crate::support::tools::is_installed($program) {
            crate::support::skip!("{} is not installed", $program);
        })*
    };
}
pub(crate) use needs;

/// Skips the test unless it runs inside a guest; its expectations hold for the guest's kernel.
macro_rules! needs_guest {
    () => {
        if !$crate::support::tools::is_guest() {
            crate::support::skip!("runs inside a guest: cargo xtask vm");
        }
    };
}
pub(crate) use needs_guest;

/// Evaluates to the value of `Ok`, or skips the test with the reason of `Err`.
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => crate::support::skip!("{reason}"),
        }
    };
}
pub(crate) use or_skip;
