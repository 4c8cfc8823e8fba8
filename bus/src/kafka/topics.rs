//! Topic creation, where the cluster allows it.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::connectivity::TopicLookup;
use super::settings::FIRST_ANSWER;
use super::{KafkaError, Settings};

/// Record limit of every created topic: Kafka's own default, set so that a cluster with a lower
/// default does not reject full records.
const RECORD_BYTES_MAX: (&str, &str) = ("max.message.bytes", "1048588");

/// Value for the cluster's default replication (CreateTopicsRequest.json, replicationFactor).
const DEFAULT_REPLICATION: i32 = -1;
/// Longer than a busy broker takes to publish a new topic.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);
const VISIBLE_POLL: Duration = Duration::from_millis(50);

impl Settings {
    /// Creates a topic unless it exists. Returns the error of the creation if the topic is missing
    /// afterwards.
    pub fn ensure_topic(
        &self,
        topic: &str,
        partitions: u32,
        of_topic: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        match self.look_up(topic)? {
            TopicLookup::Partitions(_) => Ok(()),
            TopicLookup::Missing | TopicLookup::Denied => {
                self.create_topic_with(topic, partitions, None, of_topic)?;
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
    /// after a change. Without `copies` the cluster's default replication applies.
    pub fn create_topic(&self, topic: &str, partitions: u32, copies: Option<u32>) -> Result<(), KafkaError> {
        self.create_topic_with(topic, partitions, copies, &[])
    }

    /// Creates a topic with settings of its own.
    fn create_topic_with(
        &self,
        topic: &str,
        partitions: u32,
        copies: Option<u32>,
        of_topic: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        let admin: AdminClient<DefaultClientContext> =
            self.client().create().map_err(|error| KafkaError::of(self, "set up", &error))?;
        let copies = copies.map_or(DEFAULT_REPLICATION, |copies| copies as i32);
        let mut wanted = NewTopic::new(topic, partitions as i32, TopicReplication::Fixed(copies));
        let said = of_topic.iter().any(|(name, _)| *name == RECORD_BYTES_MAX.0);
        for (name, value) in of_topic.iter().chain((!said).then_some(&RECORD_BYTES_MAX)) {
            wanted = wanted.set(name, value);
        }
        let options = AdminOptions::new().request_timeout(Some(FIRST_ANSWER));
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| KafkaError {
            what: "cannot wait for an answer".to_owned(),
            why: error.to_string(),
            remedy: "look at the limits of this process: ulimit -a".to_owned(),
        })?;
        let answered = runtime.block_on(admin.create_topics([&wanted], &options));
        let answers = answered.map_err(|error| KafkaError::of(self, "reach", &error))?;
        match answers.into_iter().next() {
            Some(Err((_, code))) if code != Code::TopicAlreadyExists => {
                Err(self.creation_error(topic, partitions, code))
            }
            _ => Ok(()),
        }
    }

    fn creation_error(&self, topic: &str, partitions: u32, code: Code) -> KafkaError {
        let brokers = &self.brokers;
        let making = format!(
            "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions {partitions}"
        );
        let remedy = match code {
            Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
                let allow = KafkaError::with_code(self, "", Some(code), String::new()).remedy;
                format!("have it made by who may ({making}), and {allow}")
            }
            _ => format!("have it made by who may: {making}"),
        };
        let why = format!("the cluster at {brokers} says: {code}");
        KafkaError { what: format!("the topic {topic} cannot be made"), why, remedy }
    }
}
