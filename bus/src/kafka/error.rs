//! Errors of a cluster for a person: what failed, why, what to do.
//!
//! *In*: librdkafka's errors. *Out*: [`KafkaError`]. *Invariant*: no error contains a setting's
//! value. A password under a misspelled setting name is still a password.

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::types::RDKafkaConfRes;

use super::Settings;

/// Error of a cluster, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct KafkaError {
    /// Failed action.
    pub what: String,
    /// Reason.
    pub why: String,
    /// Remedy.
    pub remedy: String,
}

impl KafkaError {
    /// Returns a consumer's error if it is permanent: librdkafka recovers from nearly all others,
    /// such as an unreachable broker.
    pub(super) fn permanent(settings: &Settings, error: &Driver) -> Option<KafkaError> {
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

    /// Returns a client's fatal error. librdkafka reports it once, in the next call or in none, so
    /// it is read here.
    pub(super) fn fatal<C: ClientContext>(settings: &Settings, client: &Client<C>) -> Option<KafkaError> {
        let (code, why) = client.fatal_error()?;
        Some(KafkaError::with_code(settings, "continue with", Some(code), why))
    }

    /// Returns a client's fatal error if it has one, else `error`: after a fatal error librdkafka
    /// reports only that for each record.
    pub(super) fn of_client<C: ClientContext>(
        settings: &Settings,
        verb: &str,
        error: &Driver,
        client: &Client<C>,
    ) -> KafkaError {
        match client.fatal_error() {
            Some((code, why)) => KafkaError::with_code(settings, verb, Some(code), why),
            None => KafkaError::of(settings, verb, error),
        }
    }

    pub(super) fn of(settings: &Settings, verb: &str, error: &Driver) -> KafkaError {
        match error {
            Driver::ClientConfig(kind, why, name, value) => config(*kind, why, name, value),
            Driver::ClientCreation(why) => KafkaError {
                what: "librdkafka rejects these settings".to_owned(),
                why: why.clone(),
                remedy: "see librdkafka's CONFIGURATION.md for valid combinations; \
                         every file that a setting names must exist and be readable"
                    .to_owned(),
            },
            error => KafkaError::with_code(settings, verb, error.rdkafka_error_code(), error.to_string()),
        }
    }

    pub(super) fn with_code(settings: &Settings, verb: &str, code: Option<Code>, why: String) -> KafkaError {
        let brokers = &settings.brokers;
        let what = format!("cannot {verb} the Kafka cluster at {brokers}");
        KafkaError { what, why, remedy: remedy(brokers, code) }
    }
}

fn config(kind: RDKafkaConfRes, why: &str, name: &str, value: &str) -> KafkaError {
    let remedy = format!("check {name} against the settings in librdkafka's CONFIGURATION.md");
    let what = format!("the setting {name} cannot be used");
    // librdkafka's message for an invalid value contains the value.
    let unknown = kind == RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    let why = match (unknown, is_secret(name) && !value.is_empty()) {
        (true, _) => "no setting of this name exists".to_owned(),
        (false, true) => why.replace(value, "…"),
        (false, false) => why.to_owned(),
    };
    KafkaError { what, why, remedy }
}

/// Returns whether a setting of this name may hold a secret.
fn is_secret(name: &str) -> bool {
    ["password", "secret", "key", "pem", "jaas", "oauthbearer"].iter().any(|word| name.contains(word))
}

fn remedy(brokers: &str, code: Option<Code>) -> String {
    let allow = |what: &str| {
        format!(
            "grant this right to the user: kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME {what}; \
             docs/kafka.md lists the rights of each service"
        )
    };
    match code {
        Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
            "check sasl.mechanism, sasl.username and sasl.password".to_owned()
        }
        Some(Code::SSL) => {
            "check security.protocol and ssl.ca.location, and that the certificate is valid for the name in the address; \
             is this the port of the TLS listener?"
                .to_owned()
        }
        Some(Code::Resolve) => "check the name: use host and port as in the brokers' advertised.listeners".to_owned(),
        Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            allow("--operation All --topic blkkin. --resource-pattern-type prefixed")
        }
        Some(Code::GroupAuthorizationFailed) => {
            allow("--operation Read --group blkkin- --resource-pattern-type prefixed")
        }
        Some(Code::MessageSizeTooLarge) => {
            "raise the topic's max.message.bytes, or lower the record size to that limit N: --set message.max.bytes=N"
                .to_owned()
        }
        Some(Code::FencedInstanceId) => {
            "another process joined with this instance name: use each --instance name for one process only".to_owned()
        }
        Some(Code::UnreleasedInstanceId) => {
            "use each --instance name for one process only; the cluster removes a killed process after its session timeout"
                .to_owned()
        }
        _ => "check the address and that the broker runs; for a listener with TLS or SASL set security.protocol"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_contains_a_secret() {
        let secret = "hunter2";
        for (kind, name) in [
            (RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, "sasl.pasword"),
            (RDKafkaConfRes::RD_KAFKA_CONF_INVALID, "sasl.password"),
            (RDKafkaConfRes::RD_KAFKA_CONF_INVALID, "ssl.key.pem"),
        ] {
            let why = format!("Invalid value \"{secret}\" for configuration property \"{name}\"");
            let error = Driver::ClientConfig(kind, why, name.to_owned(), secret.to_owned());
            let mut settings = Settings::new("h:1");
            settings.extra.insert(name.to_owned(), secret.to_owned());
            let error = KafkaError::of(&settings, "reach", &error);
            let text = format!("{error} {error:?} {settings:?}");
            assert!(!text.contains(secret) && text.contains(name), "{text}");
        }
    }
}
