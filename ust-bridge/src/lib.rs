//! Reads LTTng-UST events of instrumented daemons, live or from a folder, and makes facts about their work of them.
//!
//! A packet's bytes come from a relay ([`live`], of a session that [`session`] keeps or the user made) or from a folder
//! ([`stored`]); [`ctf`] knows what they mean, by the trace's own metadata; [`merge`] puts the streams' events in order of
//! time, on the kernel's clock ([`clock`]); [`mapping`] makes [`facts`] of them.
//!
//! Invariant: nothing is assumed about a trace that its metadata does not say, and what was lost is counted at the
//! stream that lost it.

pub mod clock;
pub mod ctf;
pub mod facts;
pub mod live;
pub mod mapping;
pub mod merge;
pub mod session;
pub mod stored;
pub mod timeline;
pub mod view;
