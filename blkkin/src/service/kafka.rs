//! Kafka client settings of a service, from `--brokers` and `--set`.

use blkkin_bus::kafka::{KafkaError, Settings};

use crate::error::{CliError, Status};
use crate::suggest::suggest;

/// Settings of the topics from which stages read. The broker assigns timestamps, so the timeouts of
/// sources and traces depend on no clock of a node or an aggregator.
pub(crate) const TIMED_BY_BROKER: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];

/// Converts an error of a cluster that ends the command.
pub(crate) fn kafka_failed(error: KafkaError) -> CliError {
    CliError { status: Status::Failed, ..CliError::usage(error.what, error.why, error.remedy) }
}

/// Builds the Kafka client settings.
pub(crate) fn settings(brokers: &str, set: &[String]) -> Result<Settings, CliError> {
    let mut settings = Settings::new(brokers);
    for argument in set {
        let Some((name, value)) = argument.split_once('=') else {
            let why = "the form is NAME=VALUE, a property of librdkafka";
            // The value may be a password.
            let name =
                argument.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).next().unwrap_or_default();
            return Err(CliError::usage(format!("bad setting `{name}`"), why, "--set security.protocol=SSL"));
        };
        settings.extra.insert(name.to_owned(), value.to_owned());
    }
    settings.check().map_err(|error| {
        let suggestion =
            settings.extra.keys().find(|name| error.what.contains(&format!(" {name} "))).and_then(|name| {
                let suggestion = suggest(name, COMMON_SETTINGS)?;
                (suggestion != name)
                    .then(|| format!("`{suggestion}` is the nearest common property; {}", error.remedy))
            });
        CliError::usage(error.what, error.why, suggestion.unwrap_or(error.remedy))
    })?;
    Ok(settings)
}

/// Common librdkafka settings, for suggestions.
const COMMON_SETTINGS: [&str; 22] = [
    "broker.address.family",
    "debug",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "message.max.bytes",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.config",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "session.timeout.ms",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.keystore.location",
];
