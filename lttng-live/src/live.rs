//! Live reading of a session from a relay (`lttng-relayd`), by LTTng's live protocol.
//!
//! *In*: a relay's address and a session's name. *Out*: the events of all streams in order of time,
//! and statistics. [`protocol`] encodes and decodes messages, [`connection`] exchanges them,
//! [`reader`] reads a session's streams, and [`follow`] reconnects to the relay.
//!
//! *Order and delay.* Each stream is known up to a time: the end of its last packet, or, while it
//! is idle, its last beacon. The tracer sends a beacon in each period of the live timer. An event
//! is emitted as soon as every other stream is known beyond its time. The delay is at most one
//! period of the live timer, plus the transfer to the relay, plus one poll interval.
//!
//! *Invariant*: one silent stream does not stop the others. After [`reader::ReaderSettings::wait_max`]
//! the reader no longer waits for it. Its later events are still emitted, and are counted as late
//! if they are out of order.

pub mod connection;
pub mod follow;
pub mod protocol;
pub mod reader;
