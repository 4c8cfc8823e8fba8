//! What is remembered of the traces that passed: counts, histograms, and the few slowest whole.
//!
//! *In*: traces, one by one. *Out*: numbers for the view and for JSON.
//!
//! *Invariant*: memory does not grow with the number of traces. Each table has a named maximum, and what comes
//! after it is summed in a row called "others", never dropped.
//!
//! *What is counted where.* A call's time is split by the aggregator's account; the table of layers adds up those
//! splits, so its shares make 100 % and mean what a user waited for. Requests are counted once, in their own
//! trace: a commit shown below an fsync is a trace of its own and brings its bios and requests itself.
//! Calls on what is no storage (pipes, sockets, `/proc`, plain memory) are counted apart: a read that waits for a
//! person to type would otherwise be the slowest storage request there is, and drown the shares of all others.

pub mod calls;
pub mod devices;
pub mod files;
pub mod kernel;
pub mod latency;
pub mod layers;
pub mod operations;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod seen;
pub mod slowest;
pub mod totals;
