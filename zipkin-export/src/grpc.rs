//! Transport to an OTLP receiver by gRPC: one unary call per request (grpc/doc/PROTOCOL-HTTP2.md).
//!
//! *In*: encoded requests. *Out*: calls, and the meaning of their status. *Invariant*: only status
//! 0 means accepted. `grpcs://` uses TLS, `grpc://` does not.
//!
//! | status | meaning (opentelemetry-proto, docs/specification.md, OTLP/gRPC response) |
//! |---|---|
//! | 0 OK | accepted, possibly in part |
//! | 1, 4, 8, 10, 11, 14, 15, no connection, no response | not processed: retried |
//! | 5, 7, 12, 16 | not an endpoint for spans |
//! | 2, 13 | failed on the request: retried, then halved if it accepts others |
//! | any other | invalid content: halved |
//!
//! A response without a status gets the one of its HTTP status
//! (grpc/doc/http-grpc-status-mapping.md).
//!
//! tonic provides HTTP/2, TLS and compression. [`EncodedCodec`] replaces its generated messages,
//! because a request is encoded already.
//!
//! *Rejected*: h2 alone. It saves the 14 crates that tonic adds, but TLS, compression and the
//! status mapping would be code of this crate.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use ureq::http::uri::PathAndQuery;

use crate::config::ExportConfig;
use crate::delivery::{FailureReason, ServerReply, Transport, Unreachable};
use crate::open_error::OpenError;
use crate::otlp_config::{Compression, OtlpConfig, redact, remedy};
use crate::tls::root_cause;
use crate::url::ServerUrl;
use blkkin_span_encoding::otlp;

/// Default port of receivers (IANA, service otlp).
const PORT_DEFAULT: u16 = 4317;

/// gRPC client of an OTLP receiver.
pub struct GrpcTransport {
    url: ServerUrl,
    endpoint: Endpoint,
    method: PathAndQuery,
    options: OtlpConfig,
    post_timeout: Duration,
    runtime: Runtime,
    /// Client with a connection, once there is one. The connection is driven only during a call.
    client: Option<Grpc<Channel>>,
}

/// Failure before a status arrived.
enum CallError {
    Timeout,
    /// No connection, or a broken one, with the cause.
    Connection(String),
}

impl GrpcTransport {
    /// Creates a transport without connecting.
    pub fn new(url: ServerUrl, config: &ExportConfig) -> Result<GrpcTransport, OpenError> {
        let error = |error: &dyn Error| OpenError::Client { server: url.to_string(), why: root_cause(error) };
        let endpoint = endpoint(&url, config, &error)?;
        let method = url.uri().path().parse().map_err(|e| error(&e))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(OpenError::Thread)?;
        let (options, post_timeout) = (config.otlp.clone(), config.post_timeout);
        Ok(GrpcTransport { url, endpoint, method, options, post_timeout, runtime, client: None })
    }

    /// Calls the method. Returns the client for the next call, and the response or its status.
    async fn call(
        &self,
        client: Option<Grpc<Channel>>,
        message: &[u8],
    ) -> Result<(Grpc<Channel>, Result<Bytes, Status>), CallError> {
        let mut client = match client {
            Some(client) => client,
            None => self.client(self.endpoint.connect().await.map_err(|e| connection_error(&e))?),
        };
        client.ready().await.map_err(|e| connection_error(&e))?;
        let mut request = Request::new(Bytes::copy_from_slice(message));
        *request.metadata_mut() = MetadataMap::from_headers(self.options.headers.clone());
        match read_response(&mut client, request, self.method.clone()).await {
            // A status with a source is from the connection, not from the server.
            Err(status) if status.source().is_some() => Err(connection_error(&status)),
            response => Ok((client, response)),
        }
    }

    fn client(&self, channel: Channel) -> Grpc<Channel> {
        let client = Grpc::new(channel).accept_compressed(CompressionEncoding::Gzip);
        match self.options.compression {
            Compression::None => client,
            Compression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
        }
    }

    fn classify(&self, response: Result<Bytes, Status>) -> Result<ServerReply, Unreachable> {
        let status = match response {
            Ok(message) => {
                let refused = otlp::rejected_spans(&message);
                return Ok(refused.map_or(ServerReply::Accepted, |(spans, why)| {
                    ServerReply::PartlyAccepted(spans, redact(&why, &self.options.headers))
                }));
            }
            Err(status) => status,
        };
        let code = i32::from(status.code());
        let message = redact(status.message(), &self.options.headers);
        let text = format!("{} responded with status {code}: {message}", self.url);
        match code {
            8 | 14 => Err(Unreachable { reason: FailureReason::Busy, why: text }),
            1 | 4 | 10 | 11 | 15 => Err(Unreachable { reason: FailureReason::ServerError, why: text }),
            5 | 7 | 12 | 16 => {
                Ok(ServerReply::Denied(format!("{text} (is this the address of an OTLP receiver?)")))
            }
            // UNKNOWN and INTERNAL: failures of the server.
            2 | 13 => Ok(ServerReply::ServerError(text)),
            _ => Ok(ServerReply::Refused(text)),
        }
    }
}

impl Transport for GrpcTransport {
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable> {
        let client = self.client.take();
        // The timeout needs the runtime's clock.
        let call = async { timeout(self.post_timeout, self.call(client, request)).await };
        let error = match self.runtime.block_on(call).unwrap_or(Err(CallError::Timeout)) {
            Ok((client, response)) => {
                self.client = Some(client);
                return self.classify(response);
            }
            // The next call connects again: a connection that timed out can be half-open.
            Err(error) => error,
        };
        let (reason, why) = match error {
            CallError::Timeout => (FailureReason::Timeout, "timed out".to_owned()),
            CallError::Connection(why) => (FailureReason::ConnectFailed, why),
        };
        let remedy = remedy(&self.url, &why);
        Err(Unreachable { reason, why: format!("cannot reach {}: {why}; {remedy}", self.url) })
    }
}

fn endpoint(
    url: &ServerUrl,
    config: &ExportConfig,
    error: &dyn Fn(&dyn Error) -> OpenError,
) -> Result<Endpoint, OpenError> {
    let tls = url.is_tls();
    let scheme = if tls { "https" } else { "http" };
    let host = url.uri().host().unwrap_or_default();
    let port = url.uri().port_u16().unwrap_or(PORT_DEFAULT);
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}"))
        .and_then(|endpoint| endpoint.user_agent(concat!("blkkin/", env!("CARGO_PKG_VERSION"))))
        .map_err(|e| error(&e))?
        .connect_timeout(config.connect_timeout);
    if !tls {
        return Ok(endpoint);
    }
    let material = config.tls.or(&config.otlp.tls).read()?;
    let mut tls = match material.authorities {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    if let Some((certificate, key)) = material.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    endpoint.tls_config(tls).map_err(|e| error(&e))
}

async fn read_response(
    client: &mut Grpc<Channel>,
    request: Request<Bytes>,
    method: PathAndQuery,
) -> Result<Bytes, Status> {
    // In contrast to `unary`, a response of status 0 without a message is no error.
    let mut response = client.server_streaming(request, method, EncodedCodec).await?.into_inner();
    let message = response.message().await?.unwrap_or_default();
    // The status is in the trailers.
    response.trailers().await?;
    Ok(message)
}

fn connection_error(error: &(dyn Error + 'static)) -> CallError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return CallError::Timeout;
        }
        cause = error.source();
    }
    CallError::Connection(root_cause(error))
}

/// Codec of messages that are encoded already.
struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = EncodedCodec;
    type Decoder = EncodedCodec;

    fn encoder(&mut self) -> EncodedCodec {
        EncodedCodec
    }

    fn decoder(&mut self) -> EncodedCodec {
        EncodedCodec
    }
}

impl Encoder for EncodedCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(message.len());
        out.put(message);
        Ok(())
    }
}

impl Decoder for EncodedCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
