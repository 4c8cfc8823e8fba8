//! Where the cluster is, and how one is let in.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};

/// How long the first answer may take: an address that nobody answers at is known by then.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// How to reach a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Asks the cluster for a topic's partitions: how many there are.
    pub fn partitions(&self, topic: &str) -> Result<usize, KafkaError> {
        let asking: BaseConsumer =
            self.client().create().map_err(|error| KafkaError::of(self, "set up", &error))?;
        let asked = asking.fetch_metadata(Some(topic), FIRST_ANSWER);
        let metadata = asked.map_err(|error| KafkaError::of(self, "reach", &error))?;
        let found = metadata.topics().first();
        match found.map(|topic| (topic.error(), topic.partitions().len())) {
            Some((None, partitions)) if partitions > 0 => Ok(partitions),
            _ => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!("the cluster at {} has none, and makes none by itself", self.brokers),
                remedy: format!(
                    "create it: kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions 12",
                    self.brokers
                ),
            }),
        }
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
            .set("compression.type", "zstd")
            .set("compression.level", "1")
            .set("partitioner", "murmur2_random")
            // Batches are gathered before they come here.
            .set("linger.ms", "0")
            // Never given up while this process lives: what is given up is lost.
            .set("message.timeout.ms", "0")
            .set("message.max.bytes", (self.record_bytes_max + 1024).to_string())
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
            .set("auto.offset.reset", "earliest")
            // A member that was killed is missed after 6 s instead of 45.
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "1000");
        if let Some(member) = &group.member {
            config.set("group.instance.id", member);
        }
        self.over(config)
    }

    /// Ours, then what both ends say, then the user's.
    fn over(&self, mut config: ClientConfig) -> ClientConfig {
        config.set("bootstrap.servers", &self.brokers).set("client.id", "blkkin");
        // A broker that comes back is noticed within a second, not ten.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        // Not by way of a map of one configuration in the other: what is read of one has its passwords taken out.
        for (name, value) in &self.extra {
            config.set(name, value);
        }
        config
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

/// What went wrong with a cluster, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct KafkaError {
    /// What could not be done.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

impl KafkaError {
    /// What reading met, if it does not pass: librdkafka goes on by itself after nearly everything, as a broker that is away
    /// comes back.
    pub(super) fn lasting(settings: &Settings, error: &Driver) -> Option<KafkaError> {
        match error.rdkafka_error_code()? {
            Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::SSL
            | Code::Fatal
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed => Some(KafkaError::of(settings, "read from", error)),
            _ => None,
        }
    }

    pub(super) fn of(settings: &Settings, verb: &str, error: &Driver) -> KafkaError {
        let what = format!("cannot {verb} the Kafka cluster at {}", settings.brokers);
        let remedy = match (error.rdkafka_error_code(), error) {
            (_, Driver::ClientConfig(_, _, name, _)) => format!(
                "the setting {name} is librdkafka's: its names and values are in its CONFIGURATION.md"
            ),
            (Some(Code::Authentication | Code::SaslAuthenticationFailed), _) => {
                "check sasl.mechanism, sasl.username and sasl.password".to_owned()
            }
            (Some(Code::SSL), _) => {
                "check security.protocol and ssl.ca.location; is this the port of the TLS listener?".to_owned()
            }
            _ => "check the address and that the broker runs; of a listener with TLS or SASL say so by security.protocol"
                .to_owned(),
        };
        KafkaError { what, why: error.to_string(), remedy }
    }
}
