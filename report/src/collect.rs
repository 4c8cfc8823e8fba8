//! Aggregated state of all traces: counts, histograms, and full copies of the few slowest.
//!
//! *In*: traces, one by one. *Out*: numbers for the view and for JSON.
//!
//! *Invariant*: memory does not grow with the number of traces. Each table has a named maximum;
//! entries beyond it are summed in a row called "others", never dropped.
//!
//! *Where each number is counted.* The aggregator breaks down a call's time by layer. The table of
//! layers adds up these breakdowns, so its shares total 100 % of the time that programs waited.
//! A request is counted once, in its own trace: a commit that is shown below an fsync is a trace of
//! its own with its own bios and requests. Calls on pipes, sockets, `/proc` and plain memory are no
//! storage and are counted separately. Otherwise a read that waits for keyboard input would be the
//! slowest storage operation and would dominate every share.

pub mod calls;
pub mod cause;
pub(crate) mod classified;
pub mod coverage;
pub mod daemon_spans;
pub mod devices;
pub mod files;
pub(crate) mod guests;
pub mod kernel;
pub mod latency;
pub mod layers;
pub mod queue_waits;
pub mod sleeps;
pub mod slowest;
pub mod totals;
pub mod waits;
pub mod written_by;
