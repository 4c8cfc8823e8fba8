//! Spans for storage daemons, emitted as events of LTTng-UST.
//!
//! *In*: calls that begin, annotate and end spans, and that mark the span of the current thread.
//! *Out*: events of the LTTng-UST provider `blkkin`, and OpenTelemetry's thread context and process
//! context in the memory of the process. blkkin joins the spans with the system calls and block
//! requests that the kernel runs for them.
//!
//! ```
//! use blkkin_ust::{Instrument, Span, SpanKind};
//!
//! // Connect after daemonizing. The daemon also runs without LTTng.
//! if let Err(error) = blkkin_ust::init() {
//!     eprintln!("not traced: {error}");
//! }
//! let span = Span::root(SpanKind::Server, c"READ", c"nbd-server");
//! span.set_number(c"nbd.offset", 4096);
//! {
//!     let _entered = span.enter();
//!     // A pread() here becomes a child of the span.
//! }
//! # async fn read() {}
//! // The future enters the span in each poll, and ends it when it is ready.
//! let request = async { read().await }.instrument(span);
//! # drop(request);
//! ```
//!
//! *Invariant*: no call fails, blocks or changes its result because of tracing. While no session
//! records, a call costs two loads and a comparison.
//!
//! *Rejected*: a link-time dependency on liblttng-ust. A daemon would then not start where the
//! library is missing.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod ids;
mod init;
mod instrument;
#[cfg(any(blkkin_probe, blkkin_slot))]
mod load;
mod probe;
mod process_context;
mod sampling;
mod scoped;
mod sequential;
mod span;
mod span_context;
mod thread_attributes;
mod thread_context;

pub use init::{Connected, InitError, Options, ProviderStats, enabled, init, init_with, publishing, stats};
pub use instrument::{Instrument, Instrumented};
pub use process_context::{ProcessContextError, publish_process, thread_key};
pub use scoped::ScopedSpan;
pub use sequential::SequentialSpans;
pub use span::{Entered, RpcSide, Span, SpanKind};
pub use span_context::SpanContext;
pub use thread_attributes::{ThreadAttributes, ThreadKey};
pub use thread_context::ThreadContextError;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
