//! What went wrong with a cluster, for a person: what failed, why, what to do.
//!
//! *In*: librdkafka's errors. *Out*: [`KafkaError`]. *Invariant*: no value of a setting stands in it. A password that was
//! given under a name that does not exist is a password still.

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError as Driver, RDKafkaErrorCode as Code};
use rdkafka::types::RDKafkaConfRes;

use super::Settings;

/// What went wrong with a cluster, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct KafkaError {
    /// What could not be done.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

impl KafkaError {
    /// What reading met, if it does not pass: librdkafka goes on by itself after nearly everything, as a broker that is away
    /// comes back.
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

    /// What has put a client out of use. librdkafka says it once, by whatever is asked next, or by nothing: so it is looked for.
    pub(super) fn fatal<C: ClientContext>(settings: &Settings, client: &Client<C>) -> Option<KafkaError> {
        let (code, why) = client.fatal_error()?;
        Some(KafkaError::coded(settings, "go on with", Some(code), why))
    }

    /// What a client met that has given up for good where it has: what it says afterwards of each record is only that.
    pub(super) fn met<C: ClientContext>(
        settings: &Settings,
        verb: &str,
        error: &Driver,
        client: &Client<C>,
    ) -> KafkaError {
        match client.fatal_error() {
            Some((code, why)) => KafkaError::coded(settings, verb, Some(code), why),
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
            error => KafkaError::coded(settings, verb, error.rdkafka_error_code(), error.to_string()),
        }
    }

    pub(super) fn coded(settings: &Settings, verb: &str, code: Option<Code>, why: String) -> KafkaError {
        let brokers = &settings.brokers;
        let what = format!("cannot {verb} the Kafka cluster at {brokers}");
        KafkaError { what, why, remedy: remedy(brokers, code) }
    }
}

fn config(kind: RDKafkaConfRes, why: &str, name: &str, value: &str) -> KafkaError {
    let remedy =
        format!("the setting {name} is librdkafka's: its names and values are in its CONFIGURATION.md");
    let what = format!("the setting {name} cannot be used");
    // Its words for a value that it does not take have the value in them.
    let unknown = kind == RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    let why = match (unknown, is_secret(name) && !value.is_empty()) {
        (true, _) => "no setting of this name exists".to_owned(),
        (false, true) => why.replace(value, "…"),
        (false, false) => why.to_owned(),
    };
    KafkaError { what, why, remedy }
}

/// Whether a setting of this name is not to be said.
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
            let told = KafkaError::of(&settings, "reach", &error);
            let said = format!("{told} {told:?} {settings:?}");
            assert!(!said.contains(given) && said.contains(name), "{said}");
        }
    }
}
