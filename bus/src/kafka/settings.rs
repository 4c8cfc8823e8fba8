//! Where the cluster is, and how one is let in.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;

/// How long the first answer may take: an address that nobody answers at is known by then.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// What a record's frame takes beside it.
const FRAME: usize = 1024;

/// Requests on their way to a broker. With more than one, records are lost: where the first request of a producer is refused (the
/// partition has no leader yet, as while its topic is made) and the next is taken meanwhile, the cluster knows nothing of this
/// producer and so asks for nothing before it (`ProducerAppendInfo.checkSequence`, Kafka 4.2: without a state any sequence is
/// taken), and librdkafka takes the earlier one for delivered with it (`rd_kafka_dr_implicit_ack`, rdkafka_request.c, 2.12). With
/// one on its way, up to a MB of records gather behind it: 10 MB/s at a round trip of 0.1 s, 1 GB/s at 1 ms.
const IN_FLIGHT: &str = "max.in.flight.requests.per.connection";

/// How to reach a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `HOST:PORT`, several with commas between.
    pub brokers: String,
    /// librdkafka's own settings, TLS and SASL among them: they are passed on as they are, and win over ours.
    pub extra: BTreeMap<String, String>,
    /// Largest record, before compression: the broker's `message.max.bytes`, less a little for the record's frame.
    pub record_bytes_max: usize,
    /// What the producer holds at the most while the cluster does not take it.
    pub queue_bytes_max: usize,
}

impl Settings {
    /// With defaults for all but the address.
    pub fn new(brokers: impl Into<String>) -> Settings {
        Settings {
            brokers: brokers.into(),
            extra: BTreeMap::new(),
            // The broker's default is 1,048,588 (kafka.server.KafkaConfig, message.max.bytes).
            record_bytes_max: 1_000_000,
            queue_bytes_max: 64 << 20,
        }
    }

    /// The largest record here: the user's `message.max.bytes` makes it shorter.
    pub fn record_bytes(&self) -> usize {
        let said = self.extra.get("message.max.bytes").and_then(|bytes| bytes.parse::<usize>().ok());
        let said = said.map_or(self.record_bytes_max, |bytes| bytes.saturating_sub(FRAME).max(1));
        said.min(self.record_bytes_max)
    }

    /// Whether groups follow the protocol of KIP-848: then the cluster says who has which partition and for how long a member
    /// may be silent, and members may not.
    pub(super) fn cluster_assigns(&self) -> bool {
        self.extra.get("group.protocol").is_some_and(|protocol| protocol.eq_ignore_ascii_case("consumer"))
    }

    /// What both ends say.
    pub(super) fn client(&self) -> ClientConfig {
        self.over(ClientConfig::new())
    }

    /// What a producer says.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set(IN_FLIGHT, "1")
            .set("compression.type", "zstd")
            .set("compression.level", "1")
            .set("partitioner", "murmur2_random")
            // Batches are gathered before they come here.
            .set("linger.ms", "0")
            // Never given up while this process lives: what is given up is lost.
            .set("message.timeout.ms", "0")
            .set("message.max.bytes", (self.record_bytes_max + FRAME).to_string())
            .set("queue.buffering.max.kbytes", (self.queue_bytes_max >> 10).max(1).to_string());
        self.over(config)
    }

    /// What a member of `group` says.
    pub(super) fn consumer(&self, group: &Group) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("group.id", &group.name)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest");
        if !self.cluster_assigns() {
            // A member that was killed is missed after 6 s instead of 45.
            config.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "1000");
        }
        if let Some(member) = &group.member {
            config.set("group.instance.id", member);
        }
        self.over(config)
    }

    /// Ours, then what both ends say, then the user's. Not by way of a map of one in the other: what is read of a `ClientConfig`
    /// has its passwords taken out.
    fn over(&self, mut config: ClientConfig) -> ClientConfig {
        config.set("bootstrap.servers", &self.brokers).set("client.id", "blkkin");
        // A broker that comes back is noticed within a second, not ten.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &self.extra {
            config.set(name, value);
        }
        config
    }
}

/// Without the values of settings: there are passwords among them.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { brokers, extra, record_bytes_max, queue_bytes_max } = self;
        f.debug_struct("Settings")
            .field("brokers", brokers)
            .field("extra", &extra.keys().collect::<Vec<_>>())
            .field("record_bytes_max", record_bytes_max)
            .field("queue_bytes_max", queue_bytes_max)
            .finish()
    }
}

/// A consumer group, and who one is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name: members of one name share the partitions.
    pub name: String,
    /// A name of this member's own that outlives it: its partitions wait for it while it restarts.
    pub member: Option<String>,
}
