//! Spans to an OTLP receiver by gRPC: one unary call a request (grpc/doc/PROTOCOL-HTTP2.md).
//!
//! *In*: requests. *Out*: calls, and what the status means. *Invariant*: only status 0 is a yes. Without TLS.
//!
//! | status | meaning (opentelemetry-proto, docs/specification.md, OTLP/gRPC response) |
//! |---|---|
//! | 0 OK | accepted, perhaps all but some |
//! | 1, 4, 8, 10, 11, 14, 15, no connection, no answer | nobody looked at it: repeated |
//! | 5, 7, 12, 16 | not a place for spans |
//! | any other | something in it is wrong: halved |
//!
//! *Rejected*: tonic. Its channel balances, buffers and keeps alive; one caller with one call under way needs a connection.

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
use crate::delivery::{Away, Post, Reason, Reply};
use crate::otlp;
use crate::url::ServerUrl;

/// Where receivers listen (IANA, service otlp).
const PORT_DEFAULT: u16 = 4317;
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Before a message: not compressed, and its length.
const PREFIX: usize = 5;

/// Calls a receiver.
pub struct GrpcPost {
    url: ServerUrl,
    connect_timeout: Duration,
    post_timeout: Duration,
    runtime: Runtime,
    /// A connection, once there is one. It is driven while a call is under way.
    client: Option<SendRequest<Bytes>>,
}

/// What a call came to.
struct Answer {
    status: u32,
    words: String,
    message: Bytes,
}

impl GrpcPost {
    /// Nothing is connected yet.
    pub fn new(url: ServerUrl, config: &ExportConfig) -> io::Result<GrpcPost> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (connect_timeout, post_timeout) = (config.connect_timeout, config.post_timeout);
        Ok(GrpcPost { url, connect_timeout, post_timeout, runtime, client: None })
    }

    fn judge(&self, answer: &Answer) -> Result<Reply, Away> {
        let said = format!("{} answered status {}: {}", self.url, answer.status, answer.words);
        match answer.status {
            0 => {
                let refused = answer.message.get(PREFIX..).and_then(otlp::refused);
                Ok(refused.map_or(Reply::Accepted, |(spans, why)| Reply::AcceptedBut(spans, why)))
            }
            8 | 14 => Err(Away { reason: Reason::Busy, why: said }),
            1 | 4 | 10 | 11 | 15 => Err(Away { reason: Reason::Failed, why: said }),
            5 | 7 | 12 | 16 => {
                Ok(Reply::Denied(format!("{said} (is this the address of an OTLP receiver?)")))
            }
            // UNKNOWN and INTERNAL: what a server says that failed.
            2 | 13 => Ok(Reply::Failed(said)),
            _ => Ok(Reply::Refused(said)),
        }
    }
}

impl Post for GrpcPost {
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away> {
        let client = self.client.take();
        let call = async {
            let client = match client {
                Some(client) => client,
                None => timeout(self.connect_timeout, connect(&self.url)).await.map_err(|_| late())??,
            };
            call(client, &self.url, request).await
        };
        // Made inside of the runtime, which has the clock.
        let called = self.runtime.block_on(async { timeout(self.post_timeout, call).await });
        match called.map_err(|_| late()).and_then(|called| called) {
            Ok((client, answer)) => {
                self.client = Some(client);
                self.judge(&answer)
            }
            Err(error) => {
                let late = error.kind() == io::ErrorKind::TimedOut;
                let why = format!(
                    "cannot reach {}: {error}; start an OTLP receiver there or correct the address",
                    self.url
                );
                Err(Away { reason: if late { Reason::NoAnswer } else { Reason::NotReached }, why })
            }
        }
    }
}

fn late() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

async fn connect(url: &ServerUrl) -> io::Result<SendRequest<Bytes>> {
    let host = url.uri().host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.uri().port_u16().unwrap_or(PORT_DEFAULT))).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    // Its end is told to whoever uses it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

async fn call(
    client: SendRequest<Bytes>,
    url: &ServerUrl,
    message: &[u8],
) -> io::Result<(SendRequest<Bytes>, Answer)> {
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
        return Err(io::Error::other(format!("it answered {}, which is no gRPC", response.status())));
    }
    // An error may come without a body, its status among the headers.
    let early = status(response.headers());
    let mut body = response.into_body();
    let message = read(&mut body).await?;
    let late = body.trailers().await.map_err(io::Error::other)?;
    let (status, words) = late.as_ref().and_then(status).or(early).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((client, Answer { status, words, message }))
}

async fn read(body: &mut RecvStream) -> io::Result<Bytes> {
    let mut message = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(io::Error::other)?;
        // What is not read any more is let go all the same, so that the trailers come.
        body.flow_control().release_capacity(chunk.len()).map_err(io::Error::other)?;
        let room = ANSWER_BYTES_MAX.saturating_sub(message.len()).min(chunk.len());
        message.extend_from_slice(&chunk[..room]);
    }
    Ok(message.freeze())
}

fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let word = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let status = word("grpc-status")?.parse().ok()?;
    Some((status, word("grpc-message").unwrap_or_default().to_owned()))
}
