//! Spans for storage daemons, as events of LTTng-UST: what the daemon does for a request, in one trace with what the
//! kernel does below it.
//!
//! ```
//! use blkkin_ust::{InSpan, Kind, Span};
//!
//! // After daemonizing. The daemon runs with LTTng or without.
//! if let Err(why) = blkkin_ust::init() {
//!     eprintln!("not traced: {why}");
//! }
//! let span = Span::root(Kind::Server, c"READ", c"nbd-server");
//! span.number(c"nbd.offset", 4096);
//! {
//!     let _working = span.enter();
//!     // pread() here is this span's
//! }
//! # async fn read() {}
//! let request = async { read().await }.in_span(span); // ends the span when it is ready
//! # drop(request);
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod context;
mod here;
mod ids;
mod in_span;
mod init;
#[cfg(any(blkkin_probe, blkkin_slot))]
mod load;
mod probe;
mod process;
mod publish;
mod said;
mod span;
mod together;
mod turns;

pub use context::Context;
pub use here::Here;
pub use in_span::{InSpan, Spanned};
pub use init::{Counts, InitError, Options, Started, counts, enabled, init, init_with, publishing};
pub use process::{NotSaid, publish_process, thread_key};
pub use publish::NotPublished;
pub use said::{Said, ThreadKey};
pub use span::{Entered, Kind, Side, Span};
pub use together::Together;
pub use turns::Turns;

/// The examples of the README are compiled and run too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
