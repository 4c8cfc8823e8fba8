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

    /// Returns a client's fatal error. librdkafka reports it once, in the next call or in none, so
    /// it is read here.
    pub(super) fn fatal<C: ClientContext>(settings: &Settings, client: &Client<C>) -> Option<KafkaError> {
        let (code, why) = client.fatal_error()?;
        Some(KafkaError::with_code(settings, "go on with", Some(code), why))
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
                what: "librdkafka does not take these settings".to_owned(),
                why: why.clone(),
                remedy: "what fits together is in its CONFIGURATION.md; files that are named have to be there and be readable"
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
    let remedy =
        format!("the setting {name} is librdkafka's: its names and values are in its CONFIGURATION.md");
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
            "allow it to this user: kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME {what}; \
             docs/kafka.md says what each service needs"
        )
    };
    match code {
        Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
            "check sasl.mechanism, sasl.username and sasl.password".to_owned()
        }
        Some(Code::SSL) => {
            "check security.protocol and ssl.ca.location, and that the certificate is made out for the name in the address; \
             is this the port of the TLS listener?"
                .to_owned()
        }
        Some(Code::Resolve) => "check the name: host and port as the brokers' advertised.listeners have them".to_owned(),
        Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            allow("--operation All --topic blkkin. --resource-pattern-type prefixed")
        }
        Some(Code::GroupAuthorizationFailed) => {
            allow("--operation Read --group blkkin- --resource-pattern-type prefixed")
        }
        Some(Code::MessageSizeTooLarge) => {
            "let the topic take longer records (max.message.bytes), or have shorter ones made: --set message.max.bytes=N, what \
             it takes"
                .to_owned()
        }
        Some(Code::FencedInstanceId) => {
            "another process has come under the same name: give each --instance to one alone".to_owned()
        }
        Some(Code::UnreleasedInstanceId) => {
            "give each --instance to one process alone; one that was killed is missed by the cluster after its session time"
                .to_owned()
        }
        _ => "check the address and that the broker runs; of a listener with TLS or SASL say so by security.protocol"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_holds_what_was_given_as_a_secret() {
        let given = "hunter2";
        for (kind, name) in [
            (RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, "sasl.pasword"),
            (RDKafkaConfRes::RD_KAFKA_CONF_INVALID, "sasl.password"),
            (RDKafkaConfRes::RD_KAFKA_CONF_INVALID, "ssl.key.pem"),
        ] {
            let why = format!("Invalid value \"{given}\" for configuration property \"{name}\"");
            let error = Driver::ClientConfig(kind, why, name.to_owned(), given.to_owned());
            let mut settings = Settings::new("h:1");
            settings.extra.insert(name.to_owned(), given.to_owned());
            let error = KafkaError::of(&settings, "reach", &error);
            let text = format!("{error} {error:?} {settings:?}");
            assert!(!text.contains(given) && text.contains(name), "{text}");
        }
    }
}
