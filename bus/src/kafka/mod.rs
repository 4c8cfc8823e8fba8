//! Topics of a Kafka cluster.
//!
//! ```text
//! EventBatch → gather (by size and age) → encode → EventProducer → blkkin.events → EventConsumer → EventBatch, once each
//! ```
//!
//! *In*: batches of tracers. *Out*: the same events to whoever reads the topic, each once. *Invariant*: what was accepted is
//! delivered, or counted as not delivered; what is delivered twice is given out once; what is missing between two batches of
//! one start of a tracer is counted.
//!
//! # Keys and partitions
//!
//! The key is the *join domain*: the node. All that one node says lies in one partition, in its order, since a bio may only be
//! looked for where its call went. The partitioner is `murmur2_random`, Java's: librdkafka's own would send the same key
//! elsewhere than a Java producer does.
//!
//! # Who waits
//!
//! The producer's queue is bounded. When it is full the one who publishes waits, then the tracer's ring, and there, at the
//! kernel's edge, events are dropped and counted. Nothing else drops.
//!
//! # Twice
//!
//! The producer is idempotent, so a retry is not a second record. But a batch can be *sent* twice, by an agent that replays what
//! it had spooled; so each carries (node, boot, epoch, sequence), and `seen.rs` gives out what it has not given out.
//!
//! *Rejected*: transactions (two more round trips a batch, for a guarantee that the sequence gives), auto-commit of offsets
//! (commits what was received, not what was done with it), one record an event (80 B of overhead for 10 of content).

use std::time::Duration;

mod codec;
mod consumer;
mod create;
mod dead;
mod error;
mod gather;
mod lag;
mod membership;
mod producer;
mod reach;
mod rewind;
mod seen;
mod settings;
mod single;
pub mod stage;

pub use codec::{Codec, Events, Numbers, Spans, Traces};
pub use consumer::{EventConsumer, Place, Received, TopicConsumer, TraceConsumer};
pub use dead::{DeadLetters, Letter};
pub use error::KafkaError;
pub use gather::{GatherConfig, Gathered, Gatherer, Record};
pub use lag::{Ends, Lag, Progress};
pub use producer::{Answer, Deliveries, EventProducer, Sent, Ticket};
pub use rewind::Rewound;
pub use seen::Standing;
pub use settings::{Group, Settings};
pub use single::{NotSent, SingleProducer};

/// The topic of events.
pub const EVENTS: &str = "blkkin.events";
/// The topic of spans as they were joined, by trace.
pub const SPANS: &str = "blkkin.spans";
/// The topic of ends of requests between nodes.
pub const LINKS: &str = "blkkin.links";
/// The topic of traces that are kept, ready to be shown.
pub const TRACES: &str = "blkkin.traces";
/// The topic of what could not be read or was refused, with why.
pub const DEAD: &str = "blkkin.dead";
/// The topic of what the aggregator's stages keep of their state: see [`stage`].
pub const STATE: &str = "blkkin.state";

/// A member of a group that is shown out by its own name comes back once in so long: it may have been its own request, which a broker
/// that was killed has answered twice. Whoever is shown out again sooner has a name that another process has, too, and ends.
pub const FENCED_AGAIN: Duration = Duration::from_secs(60);
