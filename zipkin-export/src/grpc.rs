//! Transport to an OTLP receiver by gRPC: one unary call per request (grpc/doc/PROTOCOL-HTTP2.md).
//!
//! *In*: requests. *Out*: calls, and the meaning of their status. *Invariant*: only status 0 means
//! accepted. Without TLS.
//!
//! | status | meaning (opentelemetry-proto, docs/specification.md, OTLP/gRPC response) |
//! |---|---|
//! | 0 OK | accepted, possibly in part |
//! | 1, 4, 8, 10, 11, 14, 15, no connection, no response | not processed: retried |
//! | 5, 7, 12, 16 | not an endpoint for spans |
//! | any other | invalid content: halved |
//!
//! *Rejected*: tonic. Its channel balances, buffers and keeps connections alive; one client with
//! one call at a time needs one connection.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use ureq::http::{HeaderMap, Request};

use crate::config::ExportConfig;
use crate::delivery::{FailureReason, ServerReply, Transport, Unreachable};
use crate::otlp;
use crate::url::ServerUrl;

/// Default port of receivers (IANA, service otlp).
const PORT_DEFAULT: u16 = 4317;
/// Maximum bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// Bytes before a message: compression flag and length.
const PREFIX: usize = 5;

/// gRPC client of an OTLP receiver.
pub struct GrpcTransport {
    url: ServerUrl,
    connect_timeout: Duration,
    post_timeout: Duration,
    runtime: Runtime,
    /// Connection, once there is one. It is driven only during a call.
    client: Option<SendRequest<Bytes>>,
}

/// Result of a call.
struct CallResult {
    status: u32,
    status_message: String,
    body: Bytes,
}

impl GrpcTransport {
    /// Creates a transport without connecting.
    pub fn new(url: ServerUrl, config: &ExportConfig) -> io::Result<GrpcTransport> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (connect_timeout, post_timeout) = (config.connect_timeout, config.post_timeout);
        Ok(GrpcTransport { url, connect_timeout, post_timeout, runtime, client: None })
    }

    fn classify(&self, result: &CallResult) -> Result<ServerReply, Unreachable> {
        let text = format!("{} responded with status {}: {}", self.url, result.status, result.status_message);
        match result.status {
            0 => {
                let refused = result.body.get(PREFIX..).and_then(otlp::rejected_spans);
                Ok(refused
                    .map_or(ServerReply::Accepted, |(spans, why)| ServerReply::PartlyAccepted(spans, why)))
            }
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
        let call = async {
            let client = match client {
                Some(client) => client,
                None => {
                    timeout(self.connect_timeout, connect(&self.url)).await.map_err(|_| timed_out())??
                }
            };
            call(client, &self.url, request).await
        };
        // The timeout needs the runtime's clock.
        let called = self.runtime.block_on(async { timeout(self.post_timeout, call).await });
        match called.map_err(|_| timed_out()).and_then(|called| called) {
            Ok((client, result)) => {
                self.client = Some(client);
                self.classify(&result)
            }
            Err(error) => {
                let timed_out = error.kind() == io::ErrorKind::TimedOut;
                let why = format!(
                    "cannot reach {}: {error}; start an OTLP receiver there or correct the address",
                    self.url
                );
                Err(Unreachable {
                    reason: if timed_out { FailureReason::Timeout } else { FailureReason::ConnectFailed },
                    why,
                })
            }
        }
    }
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

async fn connect(url: &ServerUrl) -> io::Result<SendRequest<Bytes>> {
    let host = url.uri().host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.uri().port_u16().unwrap_or(PORT_DEFAULT))).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    // Users of the connection see its end.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

async fn call(
    client: SendRequest<Bytes>,
    url: &ServerUrl,
    message: &[u8],
) -> io::Result<(SendRequest<Bytes>, CallResult)> {
    let mut client = client.ready().await.map_err(io::Error::other)?;
    let authority = url.uri().authority().map_or("", |authority| authority.as_str());
    let request = Request::post(format!("http://{authority}{}", url.uri().path()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", concat!("blkkin/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(io::Error::other)?;
    let (response, mut body) = client.send_request(request, false).map_err(io::Error::other)?;
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    body.send_data(framed.freeze(), true).map_err(io::Error::other)?;
    let response = response.await.map_err(io::Error::other)?;
    if !response.status().is_success() {
        return Err(io::Error::other(format!("it responded {}, which is not gRPC", response.status())));
    }
    // An error can have no body; its status is in the headers.
    let early = status(response.headers());
    let mut body = response.into_body();
    let message = read(&mut body).await?;
    let trailers = body.trailers().await.map_err(io::Error::other)?;
    let (status, status_message) =
        trailers.as_ref().and_then(status).or(early).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((client, CallResult { status, status_message, body: message }))
}

async fn read(body: &mut RecvStream) -> io::Result<Bytes> {
    let mut message = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(io::Error::other)?;
        // Capacity of discarded data is released too, so that the trailers arrive.
        body.flow_control().release_capacity(chunk.len()).map_err(io::Error::other)?;
        let room = RESPONSE_BYTES_MAX.saturating_sub(message.len()).min(chunk.len());
        message.extend_from_slice(&chunk[..room]);
    }
    Ok(message.freeze())
}

fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let status = header("grpc-status")?.parse().ok()?;
    Some((status, header("grpc-message").unwrap_or_default().to_owned()))
}
