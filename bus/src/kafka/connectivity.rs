//! Connectivity check with the reason for a failure.
//!
//! *In*: settings. *Out*: a topic's partition count, or the reason from librdkafka's error
//! callbacks and log lines. Those name an unknown host, an untrusted certificate or a wrong
//! password, where the call itself returns `Broker transport failure` for all of them. *Invariant*:
//! a refusal by the broker (password, certificate) is returned at once. For any other error the
//! call retries until [`FIRST_REPLY_TIMEOUT`], since a broker may be starting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};

use super::settings::{FIRST_REPLY_TIMEOUT, Group};
use super::{KafkaError, Settings};

/// Pause between two checks of the captured log.
const LOG_POLL: Duration = Duration::from_millis(250);
/// Time after which a cluster whose brokers all refuse connections is unreachable.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of a topic lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopicLookup {
    /// Number of partitions.
    Partitions(usize),
    /// The topic does not exist.
    Missing,
    /// The cluster denies access to it.
    Denied,
}

impl Settings {
    /// Fetches the number of a topic's partitions.
    pub fn partitions(&self, topic: &str) -> Result<usize, KafkaError> {
        let brokers = &self.brokers;
        match self.look_up(topic)? {
            TopicLookup::Partitions(partitions) => Ok(partitions),
            TopicLookup::Missing => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!(
                    "it does not exist in the cluster at {brokers}, and the cluster creates no topics automatically"
                ),
                remedy: format!(
                    "create it: kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 12"
                ),
            }),
            TopicLookup::Denied => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!("the cluster at {brokers} does not allow this user to describe it"),
                ..KafkaError::with_code(self, "", Some(Code::TopicAuthorizationFailed), String::new())
            }),
        }
    }

    pub(super) fn look_up(&self, topic: &str) -> Result<TopicLookup, KafkaError> {
        let log = LogCapture::default();
        let mut config = self.client();
        config.set_log_level(RDKafkaLogLevel::Info);
        let client: BaseConsumer<LogCapture> = config
            .create_with_context(log.clone())
            .map_err(|error| KafkaError::of(self, "create a client of", &error))?;
        let start = Instant::now();
        loop {
            let error = match client.fetch_metadata(Some(topic), LOG_POLL) {
                Ok(metadata) => {
                    let found = metadata.topics().first();
                    return Ok(
                        match found.map(|topic| (topic.error().map(Code::from), topic.partitions().len())) {
                            Some((None, partitions)) if partitions > 0 => TopicLookup::Partitions(partitions),
                            Some((Some(Code::TopicAuthorizationFailed), _)) => TopicLookup::Denied,
                            _ => TopicLookup::Missing,
                        },
                    );
                }
                Err(error) => error,
            };
            // librdkafka runs its callbacks inside poll only.
            while client.poll(Duration::ZERO).is_some() {}
            let state = log.lock();
            let timeout = match (state.is_broker_reply(), state.all_down) {
                (true, _) => Duration::ZERO,
                (false, true) => REFUSED_TIMEOUT,
                (false, false) => FIRST_REPLY_TIMEOUT,
            };
            if start.elapsed() >= timeout {
                return Err(state.error(self, &error));
            }
        }
    }

    /// Checks whether librdkafka accepts these settings, without connecting.
    pub fn check(&self) -> Result<(), KafkaError> {
        let fail = |error| KafkaError::of(self, "create a client of", &error);
        let group = Group { name: "blkkin".to_owned(), member: None };
        let consumer: Result<BaseConsumer, _> = self.consumer(&group).create();
        let producer: Result<rdkafka::producer::BaseProducer, _> = self.producer().create();
        consumer.map_err(fail)?;
        producer.map(drop).map_err(fail)
    }
}

/// Captures librdkafka's log lines and error callbacks.
#[derive(Clone, Debug, Default)]
pub(super) struct LogCapture(Arc<Mutex<ConnectionLog>>);

#[derive(Debug, Default)]
struct ConnectionLog {
    /// Latest connection failure.
    failure: Option<(Option<Code>, String)>,
    all_down: bool,
}

impl LogCapture {
    /// Returns the latest failure since the last success.
    pub(super) fn failure(&self, settings: &Settings) -> Option<KafkaError> {
        self.lock().failure(settings)
    }

    /// Clears the failure after a success.
    pub(super) fn clear(&self) {
        self.lock().failure = None;
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionLog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for LogCapture {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, line: &str) {
        // Includes failures that are no errors to librdkafka, such as a connection closed by the
        // peer.
        if facility == "FAIL" {
            let mut state = self.lock();
            let why = reason(line);
            if state.failure.as_ref().is_none_or(|(_, known)| *known != why) {
                state.failure = Some((None, why));
            }
        }
    }

    fn error(&self, error: Driver, line: &str) {
        let mut state = self.lock();
        match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => state.all_down = true,
            code => state.failure = Some((code, reason(line))),
        }
    }
}

impl ConsumerContext for LogCapture {}

impl ConnectionLog {
    /// Returns whether the broker itself refused, so that a retry gives the same result.
    fn is_broker_reply(&self) -> bool {
        let code = self.failure.as_ref().and_then(|(code, _)| *code);
        matches!(code, Some(Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL))
    }

    fn error(&self, settings: &Settings, error: &Driver) -> KafkaError {
        self.failure(settings).unwrap_or_else(|| {
            let why = format!("no answer within {} s ({error})", FIRST_REPLY_TIMEOUT.as_secs());
            KafkaError::with_code(settings, "reach", None, why)
        })
    }

    fn failure(&self, settings: &Settings) -> Option<KafkaError> {
        let (code, why) = self.failure.as_ref()?;
        // A listener without TLS closes the connection during the handshake, or replies with bytes
        // that are no handshake. Both have the same cause.
        if why.contains("SSL connection closed") {
            return Some(KafkaError::with_code(settings, "reach", Some(Code::SSL), why.clone()));
        }
        // A listener with TLS or SASL closes a plain connection at the first bytes.
        let closed = ["Disconnected", "Broken pipe", "reset by peer"].iter().any(|word| why.contains(word));
        let hint = if closed && !why.contains("listener?") {
            ": does this listener require TLS or SASL, and is security.protocol set for it?"
        } else {
            ""
        };
        Some(KafkaError::with_code(settings, "reach", *code, format!("{why}{hint}")))
    }
}

/// Returns the reason WHY of a log line, without the parts that differ between attempts:
/// `[thrd:ssl://h:1/bootstrap]: ssl://h:1/bootstrap: WHY (after 3ms in state CONNECT)`.
fn reason(line: &str) -> String {
    let line =
        line.strip_prefix("[thrd:").and_then(|rest| rest.split_once("]: ")).map_or(line, |(_, rest)| rest);
    let line = line.rsplit_once(" (after ").map_or(line, |(why, _)| why);
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_does_not_differ_between_attempts() {
        let why = "ssl://h:1/bootstrap: SSL handshake failed: no (and why)";
        let log = format!(
            "[thrd:ssl://h:1/bootstrap]: {why} (after 3ms in state CONNECT, 2 identical error(s) suppressed)"
        );
        assert_eq!(reason(&log), why);
        assert_eq!(reason(why), why);
    }

    #[test]
    fn settings_that_exclude_each_other_are_refused_by_name() {
        let mut settings = Settings::new("127.0.0.1:1");
        settings.extra.insert("group.protocol".to_owned(), "consumer".to_owned());
        assert_eq!(settings.check(), Ok(()));
        settings.extra.insert("session.timeout.ms".to_owned(), "7000".to_owned());
        let refused = settings.check().unwrap_err();
        assert!(refused.why.contains("session.timeout.ms"), "{refused:?}");
        let mut settings = Settings::new("127.0.0.1:1");
        settings.extra.insert("ssl.ca.location".to_owned(), "/no/such/file".to_owned());
        settings.extra.insert("security.protocol".to_owned(), "SSL".to_owned());
        let refused = settings.check().unwrap_err();
        assert!(refused.why.contains("ssl.ca.location"), "{refused:?}");
    }
}
