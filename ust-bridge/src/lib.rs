//! Reads LTTng-UST events of instrumented daemons, live or from a folder, and makes facts about their work of them.
//!
//! A packet's bytes come from a relay ([`live`], of a session that [`session`] keeps or the user made) or from a folder
//! ([`stored`]); [`ctf`] knows what they mean, by the trace's own metadata; [`merge`] puts the streams' events in order of
//! time, on the kernel's clock ([`clock`]); [`mapping`] makes [`facts`] of them.
//!
//! [`operations`] makes of facts what daemons did and what each thread works for; [`weave`] ties that to what the
//! kernel saw.
//!
//! Invariant: nothing is assumed about a trace that its metadata does not say, and what was lost is counted at the
//! stream that lost it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod clock;
pub mod ctf;
pub mod facts;
pub mod live;
pub mod mapping;
pub mod merge;
pub mod operations;
pub mod session;
pub mod stored;
pub mod timeline;
pub mod view;
pub mod weave;
