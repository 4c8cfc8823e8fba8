//! Model of the distributed part: the runner of a stage on a simulated cluster, under all schedules.
//!
//! *In*: a scenario: processes, records, and how many faults may happen. *Out*: no schedule that
//! breaks a rule; or, with a mend taken back, the shortest schedule of the fault that it mends.
//!
//! *Invariant*: the processes run the real code: `runner/`, `record_batcher.rs`, `owned_partition.rs`,
//! `state_ref.rs`, the reading and writing of `state_store.rs`, and a real or a small stage. Each
//! process is a coroutine that stops where its next call has an effect that others see, or depends
//! on them. Only librdkafka and the brokers are modelled (`world.rs` names the source of each rule).
//!
//! *Rejected*: a model next to the code, since nothing shows that the two stay equal; turmoil and
//! madsim, since they draw schedules by chance and librdkafka is no async Rust.

#![allow(clippy::print_stdout, reason = "a search prints its size, and the schedule that it found")]

mod endpoints;
mod first_request;
mod handover;
mod process;
mod scenario;
mod search;
mod world;
