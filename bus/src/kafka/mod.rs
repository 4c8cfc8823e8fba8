//! Topics of a Kafka cluster.
//!
//! ```text
//! EventBatch → batcher (by size and age) → encode → EventProducer → blkkin.events
//! blkkin.events → EventConsumer → EventBatch, once each
//! ```
//!
//! *In*: batches of tracers. *Out*: the same events to each consumer group, each once. *Invariant*:
//! every accepted event is delivered or counted as failed. A duplicate is delivered once. Batches
//! missing between two of the same tracer start are counted.
//!
//! # Keys and partitions
//!
//! The key is the *join domain*: the node. All events of a node are in one partition, in order,
//! since a bio is joined to the system call before it. The partitioner is `murmur2_random`, Java's
//! default: librdkafka's own would send a key to another partition than a Java producer does.
//!
//! # Back-pressure
//!
//! The producer's queue has a size limit. When it is full, publishers wait, then the tracer's rings
//! fill up, and the kernel programs drop events and count them. No other stage drops.
//!
//! # Duplicates
//!
//! The producer is idempotent, so a retry adds no record. An agent that replays its spool can still
//! send a batch twice. So each batch carries (node, boot, epoch, sequence), and `dedup.rs` skips
//! what was delivered.
//!
//! *Rejected*: transactions (two more round trips a batch for a guarantee that the sequence gives);
//! auto-commit of offsets (commits received records, not processed ones); one record an event (80 B
//! of overhead for 10 of content).

use std::time::Duration;

mod batcher;
mod codec;
mod commits;
mod compacted;
mod connectivity;
mod consumer;
mod dead_letters;
mod dedup;
mod error;
mod lag;
mod producer;
mod rebalance;
mod seek;
mod settings;
mod single_producer;
pub mod stage;
mod topics;

pub use batcher::{BatchedRecords, BatcherConfig, EventBatcher, Record};
pub use codec::{Codec, Events, Numbers, Spans, Traces};
pub use compacted::{Compacted, CompactedReader};
pub use consumer::{EventConsumer, Received, RecordPosition, TopicConsumer, TraceConsumer};
pub use dead_letters::{DeadLetter, DeadLetters};
pub use dedup::DuplicateState;
pub use error::KafkaError;
pub use lag::{Lag, LagReader, Progress};
pub use producer::{Ack, DeliveryHandle, DeliveryStats, EventProducer, Sent};
pub use seek::SeekResult;
pub use settings::{Group, Settings};
pub use single_producer::{SendError, SingleProducer};

/// Topic of events.
pub const EVENTS: &str = "blkkin.events";
/// Topic of joined spans, by trace.
pub const SPANS: &str = "blkkin.spans";
/// Topic of RPC endpoints, which the link stage matches.
pub const LINKS: &str = "blkkin.links";
/// Topic of sampled traces, ready for export.
pub const TRACES: &str = "blkkin.traces";
/// Dead-letter topic: records that cannot be decoded and spans that were refused, with the reason.
pub const DEAD: &str = "blkkin.dead";
/// Topic of the aggregator stages' states: see [`stage`].
pub const STATE: &str = "blkkin.state";
/// Topic of what agents shall record, by the nodes that it is for: the last record of each key.
pub const CONTROL: &str = "blkkin.control";

/// Time after a fence in which a second one ends the process. The first may be this member's own
/// join request, answered twice by a broker that was killed. A second fence means that another
/// process has the same instance name.
pub const FENCED_TWICE_WITHIN: Duration = Duration::from_secs(60);
