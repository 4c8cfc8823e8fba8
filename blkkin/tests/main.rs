//! The tests that need the binary: a real kernel, disks, programs, brokers and servers.
//!
//! One test program, because each would link most of the workspace. `cargo xtask test` runs each module as a
//! program of its own, with one test at a time, in the order of its tiers (`xtask/src/test/programs.rs`).
//!
//! Each test module begins with its inputs and the independent count that it is compared with.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod agent;
mod aggregator;
mod application_spans;
mod async_io;
mod attach;
mod blktrace;
#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod broker_full;
mod budget;
mod cleanup;
mod cli;
mod cluster;
#[path = "../../zipkin-export/tests/support/collector.rs"]
mod collector;
mod common;
mod configs;
mod conservation;
mod containers;
mod context;
mod context_trust;
mod ctl;
mod ctl_fleet;
mod daemons;
mod destinations;
mod device;
mod documentation;
mod explained;
mod exporter;
mod exporting;
mod faults;
mod file_names;
mod file_positions;
mod filters;
mod fio;
mod flight_recorder;
mod guest_devices;
mod guest_faults;
mod guest_flush;
mod guest_in_flight;
mod guest_kinds;
mod guest_lockdown;
mod guest_modules;
mod guest_nbd;
mod guest_passthrough;
mod guest_scsi;
mod guest_stacked;
mod guest_thin;
mod guest_too_old;
mod guest_ublk;
mod guest_zones;
mod head_sampling;
mod image;
mod in_flight;
mod install;
mod kafka_or_direct;
mod keep;
mod kernels;
mod links;
mod log_format;
mod loop_files;
mod lttng_users;
mod manifests;
mod monitoring;
mod moved_files;
mod names;
mod nbd_clients;
mod nbd_connections;
mod no_btf;
mod outputs;
mod overlay;
mod package;
mod page_cache;
mod page_faults;
mod paths;
mod postgres;
mod privileges;
mod process_contexts;
mod progress;
mod publishing;
mod remote_links;
mod replay;
mod request_totals;
mod rocksdb;
mod secrets;
mod secured;
mod service;
mod signals;
mod sleeps;
mod soak;
mod soaking;
mod spool;
mod spooling;
mod sqlite;
mod stacked;
mod support;
mod systemd;
mod task_memory;
mod thread_contexts;
mod top;
mod traced_tasks;
mod tracers;
mod two_nodes;
mod upgrade;
mod usdt;
mod virtual_machines;
mod vm_disks;
mod vm_guest;
mod vm_nbd;
mod vm_report;
mod waits;
mod writeback;
mod written_by;
mod xfs_log;
mod zipkin;

// `collector` uses the module next to it, as in the tests of zipkin-export.
use broker::child;
