//! Errors in the text of a destination.

/// Error in a destination. Each text contains a remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// No value.
    #[error("zipkin= needs a URL or a file: zipkin=http://localhost:9411 or zipkin=trace.json")]
    Empty,
    /// Unsupported URL scheme.
    #[error("zipkin= does not support {0}: write http://, https:// or a file's path")]
    Scheme(String),
    /// Host and port without a scheme.
    #[error("zipkin={0} is neither a URL nor clearly a file: write http://{0} or ./{0}")]
    NoScheme(String),
    /// Directory.
    #[error("zipkin={0} is a directory: name a file in it, such as {0}trace.json")]
    Directory(String),
    /// Invalid OTLP URL.
    #[error(
        "otlp={0} is not a URL: write otlp=http://HOST:4318, https://, otlp=grpc://HOST:4317 or grpcs://"
    )]
    Otlp(String),
    /// No brokers.
    #[error(
        "zipkin-kafka={0} names no brokers: write zipkin-kafka=HOST:9092, several with commas between, and /TOPIC if it is not zipkin"
    )]
    Brokers(String),
    /// Unknown Zipkin format.
    #[error("unknown format {0}: write format=proto3 or format=json")]
    Format(String),
    /// Invalid URL.
    #[error("{url} is not a URL: {why}")]
    Url {
        /// Given value.
        url: String,
        /// Reason.
        why: String,
    },
}
