//! Making topics, where the cluster lets us.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::settings::FIRST_ANSWER;
use super::{KafkaError, Settings};

/// As the protocol has it (CreateTopicsRequest.json, replicationFactor).
const DEFAULT_COPIES: i32 = -1;
/// Longer than a busy broker takes for it.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
const SHOWN_EVERY: Duration = Duration::from_millis(50);

impl Settings {
    /// Makes a topic, unless there is one: it may be that we may not make it, and that it is there. What hindered the making,
    /// if there is none.
    pub fn have_topic(
        &self,
        topic: &str,
        partitions: u32,
        of_topic: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        let made = self.create_topic_with(topic, partitions, None, of_topic);
        match made {
            Ok(()) => self.wait_for(topic),
            Err(refused) => self.partitions(topic).map(drop).map_err(|_| refused),
        }
    }

    /// A cluster says that a topic is made before its brokers say that there is one: whoever looks in between sees none.
    fn wait_for(&self, topic: &str) -> Result<(), KafkaError> {
        let deadline = Instant::now() + SHOWN_WITHIN;
        loop {
            match self.partitions(topic) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(SHOWN_EVERY),
            }
        }
    }

    /// Makes a topic, unless there is one of that name. How many partitions a topic has is decided once: keys lie elsewhere
    /// after it is changed. Without a number of copies the cluster's own default.
    pub fn create_topic(&self, topic: &str, partitions: u32, copies: Option<u32>) -> Result<(), KafkaError> {
        self.create_topic_with(topic, partitions, copies, &[])
    }

    /// The same, with settings of the topic's own.
    fn create_topic_with(
        &self,
        topic: &str,
        partitions: u32,
        copies: Option<u32>,
        of_topic: &[(&str, &str)],
    ) -> Result<(), KafkaError> {
        let admin: AdminClient<DefaultClientContext> =
            self.client().create().map_err(|error| KafkaError::of(self, "set up", &error))?;
        let copies = copies.map_or(DEFAULT_COPIES, |copies| copies as i32);
        let mut wanted = NewTopic::new(topic, partitions as i32, TopicReplication::Fixed(copies));
        for (name, value) in of_topic {
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
            Some(Err((_, code))) if code != Code::TopicAlreadyExists => Err(KafkaError {
                what: format!("the topic {topic} cannot be made"),
                why: format!("the cluster at {} says: {code}", self.brokers),
                remedy: format!(
                    "have it made by who may: kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions {partitions}",
                    self.brokers
                ),
            }),
            _ => Ok(()),
        }
    }
}
