//! A session as it is traced, from a relay (`lttng-relayd`), by LTTng's live protocol.
//!
//! [`protocol`] knows the messages, [`connection`] speaks them, [`reader`] follows a session's streams and gives their events
//! in order of time, [`follow`] comes back to a relay that went away.
//!
//! Order and delay. Each stream says until when it is known: by a packet's end, or while it is idle by a beacon that its
//! tracer sends each period of the live timer. An event is given as soon as every other stream is known beyond it; so it
//! waits at most one period of the live timer, the way to the relay, and one interval of asking. A stream that says
//! nothing for [`reader::Settings::wait_max`] is waited for no longer; what it brings later and too late for the order is given
//! all the same, and counted as late.

pub mod connection;
pub mod follow;
pub mod protocol;
pub mod reader;
