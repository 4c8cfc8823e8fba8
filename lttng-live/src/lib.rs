//! Reads the events of LTTng traces, live from a relay or from a folder.
//!
//! *In*: packets of the Common Trace Format, version 1.8. *Out*: one [`event_view::EventView`] per
//! event, in order of time.
//!
//! In flow order: [`live`] reads the packets of a session from a relay, and [`trace_folder`] reads
//! them from files. [`ctf`] decodes packets by the trace's own metadata. [`clock`] and
//! [`tick_conversion`] convert timestamps to CLOCK_MONOTONIC, the kernel's clock, and [`merge`] puts
//! the events of all streams in order of time.
//!
//! *Invariant*: the decoder assumes nothing about a trace that its metadata does not declare. Each
//! loss is counted at the stream that lost it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod live;
pub mod trace_folder;

pub mod ctf;

pub mod clock;
pub mod tick_conversion;

pub mod merge;

pub mod event_view;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
