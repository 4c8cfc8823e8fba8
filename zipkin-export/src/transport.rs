//! Choice of transport and format for a destination.

use crate::config::ExportConfig;
use crate::delivery::Transport;
use crate::destination::Destination;
use crate::grpc::GrpcTransport;
use crate::http::HttpTransport;
use crate::open_error::OpenError;
use blkkin_span_encoding::Format;

/// Returns a transport to the server of a destination, not yet connected, and its format.
pub fn transport(
    destination: &Destination,
    config: &ExportConfig,
) -> Result<(Box<dyn Transport + Send>, Format), OpenError> {
    match destination {
        Destination::Http(url, format) => {
            Ok((Box::new(HttpTransport::new(url.clone(), *format, config)?), *format))
        }
        Destination::Grpc(url) => Ok((Box::new(GrpcTransport::new(url.clone(), config)?), Format::Otlp)),
        Destination::File(_) | Destination::Kafka { .. } => {
            Err(OpenError::Unsupported(destination.to_string()))
        }
    }
}
