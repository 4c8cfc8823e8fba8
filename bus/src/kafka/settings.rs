//! Connection settings of a cluster, and the defaults of producers and consumers.
//!
//! *In*: the address, and the user's settings. *Out*: configurations of librdkafka. *Invariant*: a
//! setting of the user overrides every default, and no value of such a setting is printed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;

/// Timeout of the first reply, long enough to detect an unreachable address.
pub(super) const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a record's framing.
const FRAME: usize = 1024;

/// Number of produce requests in flight per broker, which must be 1: with more, records can be
/// lost. If the cluster refuses the first request of a producer (its partition has no leader yet,
/// as while its topic is being created) and accepts the next one meanwhile, the cluster has no
/// state of this producer and accepts any sequence (`ProducerAppendInfo.checkSequence`, Kafka 4.2).
/// librdkafka then treats the earlier request as delivered too (`rd_kafka_dr_implicit_ack`,
/// rdkafka_request.c, 2.12). With one request in flight, up to 1 MB of records collects for the
/// next one: 10 MB/s at a round trip of 0.1 s, 1 GB/s at 1 ms.
const IN_FLIGHT: &str = "max.in.flight.requests.per.connection";

/// Connection settings of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `HOST:PORT`, several separated by commas.
    pub brokers: String,
    /// Further settings of librdkafka, such as TLS and SASL. They override the defaults of this
    /// module.
    pub extra: BTreeMap<String, String>,
    /// Largest record before compression; the broker's default for a batch.
    pub record_bytes_max: usize,
    /// Bytes that the producer queues while the cluster accepts none.
    pub queue_bytes_max: usize,
}

impl Settings {
    /// Creates settings with defaults for all but the address.
    pub fn new(brokers: impl Into<String>) -> Settings {
        Settings {
            brokers: brokers.into(),
            extra: BTreeMap::new(),
            // The broker's default is 1,048,588 (kafka.server.KafkaConfig, message.max.bytes).
            record_bytes_max: 1_000_000,
            queue_bytes_max: 64 << 20,
        }
    }

    /// Returns the largest record: `message.max.bytes` can lower it.
    pub fn record_bytes(&self) -> usize {
        let limit = self.extra.get("message.max.bytes").and_then(|bytes| bytes.parse::<usize>().ok());
        let limit = limit.map_or(self.record_bytes_max, |bytes| bytes.saturating_sub(FRAME).max(1));
        limit.min(self.record_bytes_max)
    }

    /// Returns whether groups use the protocol of KIP-848: the cluster then decides assignment and
    /// session timeout.
    pub(super) fn uses_kip_848(&self) -> bool {
        self.extra.get("group.protocol").is_some_and(|protocol| protocol.eq_ignore_ascii_case("consumer"))
    }

    /// Returns settings for both producers and consumers.
    pub(super) fn client(&self) -> ClientConfig {
        self.with_overrides(ClientConfig::new())
    }

    /// Returns settings of a producer.
    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set(IN_FLIGHT, "1")
            .set("compression.type", "zstd")
            .set("compression.level", "1")
            .set("partitioner", "murmur2_random")
            // The records are batches already.
            .set("linger.ms", "0")
            // Never expire while this process lives: an expired record is lost.
            .set("message.timeout.ms", "0")
            .set("message.max.bytes", (self.record_bytes_max + FRAME).to_string())
            .set("queue.buffering.max.kbytes", (self.queue_bytes_max >> 10).max(1).to_string());
        self.with_overrides(config)
    }

    /// Returns settings of a member of `group`.
    pub(super) fn consumer(&self, group: &Group) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("group.id", &group.name)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest");
        if !self.uses_kip_848() {
            // A killed member is evicted after 6 s instead of 45.
            config.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "1000");
        }
        if let Some(member) = &group.member {
            config.set("group.instance.id", member);
        }
        self.with_overrides(config)
    }

    /// Adds the shared settings, then the user's. Not through a map of one in the other: a
    /// `ClientConfig` redacts its passwords when read.
    fn with_overrides(&self, mut config: ClientConfig) -> ClientConfig {
        config.set("bootstrap.servers", &self.brokers).set("client.id", "blkkin");
        // A restarted broker is noticed within a second, not ten.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &self.extra {
            config.set(name, value);
        }
        config
    }
}

/// Omits the values: some are passwords.
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

/// Consumer group and this member's instance name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Group name: members with the same name share the partitions.
    pub name: String,
    /// Instance name that outlives the process: its partitions stay assigned while it restarts.
    pub member: Option<String>,
}
