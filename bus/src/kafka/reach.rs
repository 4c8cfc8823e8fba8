//! Whether a cluster can be reached, and if not, why.
//!
//! *In*: settings. *Out*: what the cluster says of a topic, or the reason in librdkafka's own words: it tells by errors and log
//! lines beside the call whether a name does not exist, a certificate is not trusted or a password is wrong, where the call
//! itself says `Broker transport failure` to all of them. *Invariant*: an answer that the broker gave (a refusal of a password,
//! of a certificate) is told at once; for anything else it is asked until [`FIRST_ANSWER`] is over, since a broker may be coming up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};

use super::settings::{FIRST_ANSWER, Group};
use super::{KafkaError, Settings};

/// Between two looks at what was said beside.
const LOOK: Duration = Duration::from_millis(250);
/// A cluster of which every broker refuses connections for so long is away.
const REFUSED: Duration = Duration::from_secs(3);

/// What the cluster says of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// So many partitions.
    Partitions(usize),
    /// There is none.
    Missing,
    /// It does not tell us.
    Denied,
}

impl Settings {
    /// Asks the cluster for a topic's partitions: how many there are.
    pub fn partitions(&self, topic: &str) -> Result<usize, KafkaError> {
        let brokers = &self.brokers;
        match self.look_up(topic)? {
            Found::Partitions(partitions) => Ok(partitions),
            Found::Missing => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!("the cluster at {brokers} has none, and makes none by itself"),
                remedy: format!(
                    "create it: kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 12"
                ),
            }),
            Found::Denied => Err(KafkaError {
                what: format!("the topic {topic} cannot be used"),
                why: format!("the cluster at {brokers} does not let this user look at it"),
                ..KafkaError::coded(self, "", Some(Code::TopicAuthorizationFailed), String::new())
            }),
        }
    }

    pub(super) fn look_up(&self, topic: &str) -> Result<Found, KafkaError> {
        let said = Said::default();
        let mut config = self.client();
        config.set_log_level(RDKafkaLogLevel::Info);
        let asking: BaseConsumer<Said> = config
            .create_with_context(said.clone())
            .map_err(|error| KafkaError::of(self, "set up", &error))?;
        let begun = Instant::now();
        loop {
            let error = match asking.fetch_metadata(Some(topic), LOOK) {
                Ok(metadata) => {
                    let found = metadata.topics().first();
                    return Ok(
                        match found.map(|topic| (topic.error().map(Code::from), topic.partitions().len())) {
                            Some((None, partitions)) if partitions > 0 => Found::Partitions(partitions),
                            Some((Some(Code::TopicAuthorizationFailed), _)) => Found::Denied,
                            _ => Found::Missing,
                        },
                    );
                }
                Err(error) => error,
            };
            // What it says beside is heard only by who listens.
            while asking.poll(Duration::ZERO).is_some() {}
            let told = said.lock();
            let patience = match (told.is_answer(), told.all_down) {
                (true, _) => Duration::ZERO,
                (false, true) => REFUSED,
                (false, false) => FIRST_ANSWER,
            };
            if begun.elapsed() >= patience {
                return Err(told.error(self, &error));
            }
        }
    }

    /// Whether librdkafka takes these settings, each and together. Nothing is connected by that.
    pub fn check(&self) -> Result<(), KafkaError> {
        let fail = |error| KafkaError::of(self, "set up", &error);
        let group = Group { name: "blkkin".to_owned(), member: None };
        let consumer: Result<BaseConsumer, _> = self.consumer(&group).create();
        let producer: Result<rdkafka::producer::BaseProducer, _> = self.producer().create();
        consumer.map_err(fail)?;
        producer.map(drop).map_err(fail)
    }
}

/// What librdkafka says beside its answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Said(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    /// The latest failure of a connection.
    failure: Option<(Option<Code>, String)>,
    all_down: bool,
}

impl Said {
    /// The latest failure, unless all is well since.
    pub(super) fn failure(&self, settings: &Settings) -> Option<KafkaError> {
        self.lock().failure(settings)
    }

    /// The other side has done what it was asked.
    pub(super) fn is_well(&self) {
        self.lock().failure = None;
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Said {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, line: &str) {
        // Also what it does not call an error: a connection that the other side closed.
        if facility == "FAIL" {
            let mut told = self.lock();
            let why = plain(line);
            if told.failure.as_ref().is_none_or(|(_, known)| *known != why) {
                told.failure = Some((None, why));
            }
        }
    }

    fn error(&self, error: Driver, reason: &str) {
        let mut told = self.lock();
        match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => told.all_down = true,
            code => told.failure = Some((code, plain(reason))),
        }
    }
}

impl ConsumerContext for Said {}

impl Told {
    /// Whether the other side has spoken: to ask again gives the same.
    fn is_answer(&self) -> bool {
        let code = self.failure.as_ref().and_then(|(code, _)| *code);
        matches!(code, Some(Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL))
    }

    fn error(&self, settings: &Settings, error: &Driver) -> KafkaError {
        self.failure(settings).unwrap_or_else(|| {
            let why = format!("no answer within {} s ({error})", FIRST_ANSWER.as_secs());
            KafkaError::coded(settings, "reach", None, why)
        })
    }

    fn failure(&self, settings: &Settings) -> Option<KafkaError> {
        let (code, why) = self.failure.as_ref()?;
        // A listener without TLS hangs up in the middle of the handshake, or answers with what is none: the same mistake.
        if why.contains("SSL connection closed") {
            return Some(KafkaError::coded(settings, "reach", Some(Code::SSL), why.clone()));
        }
        // A listener with TLS or SASL hangs up on who does not speak it, at the first word.
        let hung_up = ["Disconnected", "Broken pipe", "reset by peer"].iter().any(|word| why.contains(word));
        let hint = if hung_up && !why.contains("listener?") {
            ": does this listener speak TLS or SASL, and security.protocol say so?"
        } else {
            ""
        };
        Some(KafkaError::coded(settings, "reach", *code, format!("{why}{hint}")))
    }
}

/// `[thrd:ssl://h:1/bootstrap]: ssl://h:1/bootstrap: WHY (after 3ms in state CONNECT)`: the why, which is the same each time.
fn plain(line: &str) -> String {
    let line =
        line.strip_prefix("[thrd:").and_then(|rest| rest.split_once("]: ")).map_or(line, |(_, rest)| rest);
    let line = line.rsplit_once(" (after ").map_or(line, |(why, _)| why);
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_same_each_time() {
        let why = "ssl://h:1/bootstrap: SSL handshake failed: no (and why)";
        let said = format!(
            "[thrd:ssl://h:1/bootstrap]: {why} (after 3ms in state CONNECT, 2 identical error(s) suppressed)"
        );
        assert_eq!(plain(&said), why);
        assert_eq!(plain(why), why);
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused_with_their_names() {
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
