//! Stream of records from a guest to its host, over a virtio-serial port.
//!
//! *In*: in the guest, records (encoded event batches) in order, and bytes that the host sent. In the host,
//! bytes that the guest sent, and acknowledgements of records that are safe. *Out*: bytes for the other end;
//! in the host, the records. [`Sender`] is the guest's end, [`Receiver`] the host's; neither does any I/O.
//! [`frame`] has the format.
//!
//! ```text
//! guest                                                      host
//! Sender ── RECORD n, n+1, … ──────────────────────────────▶ Receiver ── records ▶ Kafka
//!    ▲   ◀── RESUME: send all that is not acknowledged ──────   (it has connected)   │
//!    │   ─── RESUMED: these records follow ─────────────────▶                       │
//!    └────── ACKNOWLEDGED n: records below n are safe ◀──────────────────────────────┘
//!         ◀── PING n ── and ── PONG n: the guest's boot and clock ──▶
//! ```
//!
//! *Invariant*: each record stays in the sender until the host acknowledges it, and the receiver gives out
//! records in the order of their numbers. So a host's end that goes away and comes back loses none. It gives
//! out those twice that it had not acknowledged; batches have sequence numbers, by which readers of the topic
//! drop the second.
//!
//! *Clocks.* The host has the time before a ping and after its answer, and the guest's clock was read between the
//! two: so the difference of the clocks is known to within the time of the ping. An answer has
//! the number of its ping, because it bounds nothing by the times of another.
//!
//! *A port keeps no boundaries.* It has no connections either: the host's end may go away in the middle of a
//! frame, and what the port held is lost. So frames are found by their mark and checksum. The host begins with
//! a request to resume, and takes no record before the answer: those are of a request before it, and the
//! guest sends them again.
//!
//! *The guest can be wrong about the host's end.* Its driver learns by another queue than the data's that a
//! process of the host has connected or left. So the first request may arrive while the port still reads as
//! closed, and the sender forgets it. A guest's agent that was started again never saw one. The host therefore
//! asks again while the guest is silent and nothing of it is in flight.
//!
//! *Hostile input*: a guest is not trusted. A frame longer than [`frame::PAYLOAD_MAX`] is none, bytes that are
//! no frame are skipped and counted, and numbers are compared only. What the receiver holds is bounded by one
//! frame.
//!
//! *Rejected*: a protocol of request and reply for each record (a round trip under emulation takes 1 ms);
//! gRPC or HTTP/2 (a port is no network: a new client begins in the middle of the last one's stream).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod frame;
mod guest_time;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use guest_time::GuestTime;
pub use receiver::{Pong, Received, Receiver, ReceiverStats};
pub use sender::{Sender, SenderStats};
