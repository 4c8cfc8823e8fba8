//! The way to a server.

use crate::config::ExportConfig;
use crate::delivery::Post;
use crate::destination::Destination;
use crate::exporter::OpenError;
use crate::format::Format;
use crate::grpc::GrpcPost;
use crate::http::HttpPost;

/// A way to post to the server of a destination, and what it is spoken to in. Nothing is connected yet.
pub fn server(
    destination: &Destination,
    config: &ExportConfig,
) -> Result<(Box<dyn Post + Send>, Format), OpenError> {
    match destination {
        Destination::Http(url, format) => {
            Ok((Box::new(HttpPost::new(url.clone(), *format, config)), *format))
        }
        Destination::Grpc(url) => {
            let post = GrpcPost::new(url.clone(), config).map_err(OpenError::Thread)?;
            Ok((Box::new(post), Format::Otlp))
        }
        Destination::File(_) | Destination::Kafka { .. } => {
            Err(OpenError::Elsewhere(destination.to_string()))
        }
    }
}
