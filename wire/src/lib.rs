//! Data model and wire format shared by blkkin's services and by readers of its Kafka topics.
//!
//! *What it contains*, in flow order: [`ids`] and [`clock`] define identifiers and times. [`event`]
//! defines the events of one layer ([`event::LayerEvent`], produced by `tracer` and `ust-bridge`).
//! [`async_io`] has the submissions of io_uring and libaio. [`batch`] carries events with their source
//! and loss counters. [`page_fault`] has page faults, and [`page_origin`] the file and the writers of a bio's pages. [`daemon_span`], [`process_context`]
//! and [`thread_attributes`] hold what applications publish: daemon spans, process attributes and
//! thread attributes. [`usdt_event`] has the executions of a program's probes. [`virtual_machine`] names the virtual machine that a process runs, and [`disk_request`] the requests to its disks. [`crash_report`] reports the losses of a crashed tracer. [`span`] is the
//! exported span. [`fragment`] carries spans by trace, and [`remote_link`] links requests between
//! two nodes. [`stage`] is the interface between a stage and what runs it. [`syscalls`] is the
//! system call table that events and reports refer to. [`v1`] encodes topic records; `blkkin.proto`
//! in this crate is their schema, and `examples/` has readers in Python and Java.
//!
//! *Invariant*: no type here depends on how an event was captured (`probe-abi`, `tracer`) or how a
//! span is exported (`zipkin-export`). Each id and each time has its own type, so no function takes
//! two bare `u64`s that a caller could swap.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod async_io;
pub mod batch;
pub mod call_sleeps;
pub mod call_waits;
pub mod cause;
pub mod clock;
pub mod crash_report;
pub mod daemon_span;
pub mod disk_request;
pub mod event;
pub mod fragment;
pub mod head_sampling;
pub mod ids;
pub mod in_flight;
pub mod op;
pub mod page_fault;
pub mod page_origin;
pub mod partition;
pub mod process_context;
pub mod remote_link;
pub mod span;
pub mod stage;
pub mod syscalls;
pub mod task_context;
pub mod thread_attributes;
pub mod usdt_event;
pub mod v1;
pub mod virtual_machine;
