//! Topic creation, where the cluster allows it.
//!
//! *In*: a topic's name, partition count and settings. *Out*: the topic, visible to clients, or the
//! error with the command that creates it. *Invariant*: an existing topic is not changed.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::connectivity::TopicLookup;
use super::settings::FIRST_REPLY_TIMEOUT;
use super::{KafkaError, Settings};

/// Record limit of every created topic: Kafka's own default, set so that a cluster with a lower
/// default does not reject full records.
const RECORD_BYTES_MAX: (&str, &str) = ("max.message.bytes", "1048588");

/// Value for the cluster's default replication (CreateTopicsRequest.json, replicationFactor).
const DEFAULT_REPLICATION: i32 = -1;
/// Time after which a new topic must be visible. A busy broker needs less.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const VISIBLE_POLL: Duration = Duration::from_millis(50);

impl Settings {
    /// Creates a topic unless it exists. Returns the error of the creation if the topic is missing
    /// afterwards.
    pub fn ensure_topic(
        &self,
        topic: &str,
        partitions: u32,
        topic_config: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        match self.look_up(topic)? {
            TopicLookup::Partitions(_) => Ok(()),
            TopicLookup::Missing | TopicLookup::Denied => {
                self.create_topic_with(topic, partitions, None, topic_config)?;
                self.wait_for(topic)
            }
        }
    }

    /// Waits until brokers report a new topic: the controller confirms its creation earlier.
    fn wait_for(&self, topic: &str) -> Result<(), KafkaError> {
        let deadline = Instant::now() + VISIBLE_WITHIN;
        loop {
            match self.partitions(topic) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(VISIBLE_POLL),
            }
        }
    }

    /// Creates a topic unless it exists. The partition count is final: keys map to other partitions
    /// after a change. Without `replicas` the cluster's default replication applies.
    pub fn create_topic(
        &self,
        topic: &str,
        partitions: u32,
        replicas: Option<u32>,
    ) -> Result<(), KafkaError> {
        self.create_topic_with(topic, partitions, replicas, &[])
    }

    /// Creates a topic with additional settings.
    fn create_topic_with(
        &self,
        topic: &str,
        partitions: u32,
        replicas: Option<u32>,
        topic_config: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        let admin: AdminClient<DefaultClientContext> =
            self.client().create().map_err(|error| KafkaError::of(self, "create a client of", &error))?;
        let replicas = replicas.map_or(DEFAULT_REPLICATION, |replicas| replicas as i32);
        let mut new_topic = NewTopic::new(topic, partitions as i32, TopicReplication::Fixed(replicas));
        let has_limit = topic_config.iter().any(|(name, _)| *name == RECORD_BYTES_MAX.0);
        for (name, value) in topic_config.iter().chain((!has_limit).then_some(&RECORD_BYTES_MAX)) {
            new_topic = new_topic.set(name, value);
        }
        let options = AdminOptions::new().request_timeout(Some(FIRST_REPLY_TIMEOUT));
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| KafkaError {
            what: "cannot create a runtime for the request".to_owned(),
            why: error.to_string(),
            remedy: "check the limits of this process: ulimit -a".to_owned(),
        })?;
        let reply = runtime.block_on(admin.create_topics([&new_topic], &options));
        let results = reply.map_err(|error| KafkaError::of(self, "reach", &error))?;
        match results.into_iter().next() {
            Some(Err((_, code))) if code != Code::TopicAlreadyExists => {
                Err(self.creation_error(topic, partitions, topic_config, code))
            }
            _ => Ok(()),
        }
    }

    fn creation_error(
        &self,
        topic: &str,
        partitions: u32,
        topic_config: &[(&str, &str)],
        code: Code,
    ) -> KafkaError {
        let brokers = &self.brokers;
        let config: String =
            topic_config.iter().map(|(name, value)| format!(" --config {name}={value}")).collect();
        let command = format!(
            "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions {partitions}{config}"
        );
        let remedy = match code {
            Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
                let grant = KafkaError::with_code(self, "", Some(code), String::new()).remedy;
                format!("create it as an authorized user ({command}), and {grant}")
            }
            _ => format!("create it as an authorized user: {command}"),
        };
        let why = format!("the cluster at {brokers} replied: {code}");
        KafkaError { what: format!("the topic {topic} cannot be created"), why, remedy }
    }
}
