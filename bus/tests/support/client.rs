//! Kafka clients without blkkin's code.

use blkkin_bus::kafka::Settings;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

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
