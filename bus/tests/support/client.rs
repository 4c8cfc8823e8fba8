//! Kafka clients without blkkin's code.

use std::time::Duration;

use blkkin_bus::kafka::Settings;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the configuration of a client of this group.
pub(crate) fn client(settings: &Settings, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers).set("group.id", group);
    config
}

/// Joins a group, and reads a topic from its first record on.
pub(crate) fn subscribe(settings: &Settings, group: &str, topic: &str) -> BaseConsumer {
    let mut config = client(settings, group);
    let consumer: BaseConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    consumer
}

/// Returns the number of records that a topic has now.
pub(crate) fn record_count(settings: &Settings, topic: &str) -> u64 {
    let consumer: BaseConsumer = client(settings, "test-count").create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), LIMIT).unwrap();
    let partitions = metadata.topics()[0].partitions().iter();
    let records = partitions.map(|partition| {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), LIMIT).unwrap();
        u64::try_from(high - low).unwrap()
    });
    records.sum()
}
