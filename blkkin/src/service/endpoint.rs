//! The HTTP endpoint of a service: `GET /metrics`, `GET /health` and `POST /dump`.
//!
//! It listens on the loopback address by default, because device names and request rates are not
//! public. On other addresses a bearer token can protect the metrics ([`super::bearer_auth`]);
//! without one the service logs a warning.
//!
//! *Health* is `200 healthy` while work progresses, followed by one line for each unreachable peer.
//! It is `503` when work has stopped and a restart may help. A service manager that restarts
//! unhealthy services therefore does not restart a waiting one.
//!
//! *Metrics* are OpenMetrics. A client that accepts `text/plain` but not OpenMetrics gets
//! Prometheus' text format 0.0.4.
//!
//! *Dump* requests a dump of the agent's flight recorder: `202` with a line of text, `409` without a flight recorder,
//! `429` with `Retry-After` if the last dump was a moment ago. The body, such as that of a webhook, is read and ignored.
//!
//! *Bounds*: one request a connection, 5 s for the whole of it, and 16 connections at a time. A
//! further one closes the oldest: so clients that are silent or do not read cost at most 16 responses
//! of memory, and a probe of /health is answered however many there are.
//! *Rejected*: letting the further one wait. 16 clients that read nothing would make a liveness probe
//! fail, and the service be restarted.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::bearer_auth::BearerToken;
use super::openmetrics::{self, DumpAnswer, Exposition, ServiceStatus};
use crate::cli::listen::ListenAddr;
use crate::error::CliError;

/// Default ports, distinct so that one service of each kind can run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Agent = 9899,
    Aggregator = 9900,
    Exporter = 9901,
}

const CONNECTIONS_MAX: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a request's body. The JSON of a webhook has some kB.
const BODY_MAX: usize = 256 << 10;
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A metrics endpoint, open until the process exits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// The bound address; with port 0 the kernel chose the port.
    address: SocketAddr,
}

impl Endpoint {
    /// Starts the endpoint that a service was configured with. If no address was configured and the
    /// default port is taken, it logs that and starts none.
    pub(crate) fn start(
        listen: Option<ListenAddr>,
        token: Option<&Path>,
        port: Port,
        status: Arc<dyn ServiceStatus>,
    ) -> Result<Option<Endpoint>, CliError> {
        let token = token.map(BearerToken::read).transpose()?;
        let is_open = token.is_none();
        // Loopback: reachable from this machine only.
        let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port as u16);
        let opened = match listen {
            Some(ListenAddr::Off) => return Ok(None),
            Some(ListenAddr::Addr(address)) => Endpoint::open(address, token, status).map(Some)?,
            None => match Endpoint::open(default, token, status) {
                Ok(endpoint) => Some(endpoint),
                Err(error) => {
                    warn!("no metrics: {} ({})", error.what, error.why);
                    None
                }
            },
        };
        if let Some(Endpoint { address }) = opened {
            info!(%address, "metrics at http://{address}/metrics, health at http://{address}/health");
            if is_open && !address.ip().is_loopback() {
                warn!(
                    "the metrics are readable by every client that reaches this address; --metrics-token FILE requires a token",
                );
            }
        }
        Ok(opened)
    }

    /// Binds the address and starts to serve `status`.
    fn open(
        address: SocketAddr,
        token: Option<BearerToken>,
        status: Arc<dyn ServiceStatus>,
    ) -> Result<Endpoint, CliError> {
        let failed = |error: io::Error| {
            CliError::cannot_trace(
                format!("cannot serve metrics at {address}"),
                error,
                "--metrics ADDRESS:PORT with a free port, or --metrics off",
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let serve = move || runtime.block_on(serve(listener, token, status));
        Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(Endpoint { address })
    }
}

async fn serve(
    listener: TcpListener,
    token: Option<BearerToken>,
    status: Arc<dyn ServiceStatus>,
) -> Infallible {
    let token = Arc::new(token);
    let mut connections = VecDeque::<JoinHandle<()>>::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely no file descriptor is left; retry.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (status, token) = (Arc::clone(&status), Arc::clone(&token));
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = respond(&request, (*token).as_ref(), &*status);
                async {
                    // A connection that is closed with unread bytes is reset, and may lose the response.
                    let body = Limited::new(request.into_body(), BODY_MAX);
                    let _ = body.collect().await;
                    Ok::<_, Infallible>(response)
                }
            });
            let mut server = http1::Builder::new();
            let connection = server.keep_alive(false).serve_connection(TokioIo::new(stream), service);
            // The client has its response, has disconnected, or is too slow.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
        }));
    }
}

fn respond(
    request: &Request<Incoming>,
    token: Option<&BearerToken>,
    status: &dyn ServiceStatus,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let is_dump = path == "/dump";
    if is_dump && method != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
    }
    if !is_dump && method != Method::GET && method != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
    }
    match path {
        "/metrics" | "/dump" if token.is_some_and(|token| !token.authorizes(request.headers())) => {
            let mut refused = plain(StatusCode::UNAUTHORIZED, "bearer token required\n".to_owned());
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        }
        // A page in a browser of this machine could ask too.
        "/dump" if request.headers().contains_key(ORIGIN) => {
            plain(StatusCode::FORBIDDEN, "not from a browser\n".to_owned())
        }
        "/dump" => dump(status),
        "/metrics" => {
            let (exposition, kind) = match wants_plain(request) {
                true => (Exposition::Plain, PLAIN),
                false => (Exposition::OpenMetrics, OPEN_METRICS),
            };
            of_type(StatusCode::OK, kind, openmetrics::render(&status.metric_families(), exposition))
        }
        "/health" => match status.unhealthy_reason() {
            None => plain(
                StatusCode::OK,
                ["healthy".to_owned()].into_iter().chain(status.notes()).map(line).collect(),
            ),
            Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => plain(StatusCode::NOT_FOUND, "try /metrics or /health\n".to_owned()),
    }
}

fn dump(status: &dyn ServiceStatus) -> Response<Full<Bytes>> {
    match status.request_dump() {
        DumpAnswer::Started(what) => plain(StatusCode::ACCEPTED, format!("{what}\n")),
        DumpAnswer::NoRecorder => {
            let why = "this service has no flight recorder; blkkin agent --flight-recorder TIME has one\n";
            plain(StatusCode::CONFLICT, why.to_owned())
        }
        DumpAnswer::TooSoon(wait) => {
            let seconds = wait.as_secs() + 1;
            let why = format!(
                "the last dump was a moment ago; the next one may begin in {seconds} s (--dump-every)\n"
            );
            let mut refused = plain(StatusCode::TOO_MANY_REQUESTS, why);
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            refused
        }
    }
}

fn line(note: String) -> String {
    note + "\n"
}

/// Returns whether the client accepts the older format and not OpenMetrics.
fn wants_plain(request: &Request<Incoming>) -> bool {
    let accepts = |kind: &str| {
        let mut values = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        values.any(|value| value.contains(kind))
    };
    accepts("text/plain") && !accepts("application/openmetrics-text")
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    of_type(status, "text/plain; charset=utf-8", text)
}

fn of_type(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::super::openmetrics::{MetricFamily, MetricKind};
    use super::*;

    struct FakeService(Option<String>);

    impl ServiceStatus for FakeService {
        fn metric_families(&self) -> Vec<MetricFamily> {
            vec![MetricFamily::single(MetricKind::Gauge, "up", "It works", 1.0)]
        }

        fn unhealthy_reason(&self) -> Option<String> {
            self.0.clone()
        }

        fn notes(&self) -> Vec<String> {
            vec!["x is unreachable".to_owned()]
        }

        fn request_dump(&self) -> DumpAnswer {
            match &self.0 {
                Some(why) if why == "busy" => DumpAnswer::TooSoon(Duration::from_millis(41_500)),
                Some(why) => DumpAnswer::Started(why.clone()),
                None => DumpAnswer::NoRecorder,
            }
        }
    }

    fn ask(address: SocketAddr, line: &str) -> String {
        ask_with(address, line, "")
    }

    fn ask_with(address: SocketAddr, line: &str, head: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: here\r\n{head}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn open(unhealthy: Option<&str>) -> SocketAddr {
        let status = Arc::new(FakeService(unhealthy.map(str::to_owned)));
        Endpoint::open("127.0.0.1:0".parse().unwrap(), None, status).unwrap().address
    }

    #[test]
    fn token_protects_metrics_and_not_health() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef").unwrap();
        let token = Some(BearerToken::read(file.path()).unwrap());
        let address = Endpoint::open("127.0.0.1:0".parse().unwrap(), token, Arc::new(FakeService(None)))
            .unwrap()
            .address;
        assert!(ask(address, "GET /metrics").starts_with("HTTP/1.1 401"));
        assert!(ask(address, "GET /health").starts_with("HTTP/1.1 200"));
        let known = "GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\nX-Rest:";
        assert!(ask(address, known).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn serves_metrics_and_health() {
        let address = open(None);
        let metrics = ask(address, "GET /metrics");
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(
            metrics.contains("openmetrics-text") && metrics.ends_with("blkkin_up 1.0\n# EOF\n"),
            "{metrics}"
        );
        let plain = ask_with(address, "GET /metrics", "Accept: text/plain;version=0.0.4\r\n");
        assert!(plain.contains("version=0.0.4") && plain.ends_with("blkkin_up 1.0\n"), "{plain}");
        let both = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
        assert!(ask_with(address, "GET /metrics", both).ends_with("# EOF\n"));
        let health = ask(address, "GET /health");
        assert!(
            health.starts_with("HTTP/1.1 200") && health.ends_with("healthy\nx is unreachable\n"),
            "{health}"
        );
        assert!(ask(address, "GET /").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn a_dump_is_requested_by_post() {
        let body = format!("Content-Length: 100000\r\nX-Rest: {}", "x".repeat(10));
        let post = |address| ask_with(address, "POST /dump", "Content-Length: 0\r\n");
        let started = post(open(Some("7 events")));
        assert!(started.starts_with("HTTP/1.1 202") && started.ends_with("7 events\n"), "{started}");
        assert!(post(open(None)).starts_with("HTTP/1.1 409"));
        let soon = post(open(Some("busy")));
        assert!(soon.starts_with("HTTP/1.1 429") && soon.contains("retry-after: 42"), "{soon}");
        let browser =
            ask_with(open(Some("7 events")), "POST /dump", "Origin: http://x\r\nContent-Length: 0\r\n");
        assert!(browser.starts_with("HTTP/1.1 403"), "{browser}");
        assert!(ask(open(Some("7 events")), "GET /dump").starts_with("HTTP/1.1 405"));
        let mut webhook = TcpStream::connect(open(Some("7 events"))).unwrap();
        write!(webhook, "POST /dump HTTP/1.1\r\nHost: here\r\n{body}\r\n\r\n{}", "y".repeat(100_000))
            .unwrap();
        let mut answer = String::new();
        webhook.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }

    #[test]
    fn unhealthy_service_reports_the_reason() {
        let health = ask(open(Some("no rounds for 31 s")), "GET /health");
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("no rounds for 31 s\n"), "{health}");
    }

    /// A service whose metrics fill every buffer between it and a client that does not read.
    struct Verbose(&'static str);

    impl ServiceStatus for Verbose {
        fn metric_families(&self) -> Vec<MetricFamily> {
            vec![MetricFamily::single(MetricKind::Gauge, "up", self.0, 1.0)]
        }

        fn unhealthy_reason(&self) -> Option<String> {
            None
        }

        fn notes(&self) -> Vec<String> {
            Vec::new()
        }
    }

    fn assert_healthy_soon(address: SocketAddr) {
        let begun = std::time::Instant::now();
        assert!(ask(address, "GET /health").starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < CONNECTION_TIMEOUT / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn clients_that_do_not_read_block_no_others() {
        let status = Arc::new(Verbose("x".repeat(8 << 20).leak()));
        let address = Endpoint::open("127.0.0.1:0".parse().unwrap(), None, status).unwrap().address;
        let deaf = |_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n".repeat(50).as_bytes()).unwrap();
            client
        };
        let _deaf: Vec<_> = (0..CONNECTIONS_MAX).map(deaf).collect();
        // All are being served.
        std::thread::sleep(Duration::from_millis(200));
        assert_healthy_soon(address);
    }

    #[test]
    fn silent_clients_block_no_others() {
        let address = open(None);
        // As many as this process may have open, up to 10,000; both ends of a connection are in it.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a structure of this frame; the limit of this process is raised to what it may be.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        let clients = usize::try_from(limit.rlim_cur).unwrap().saturating_sub(1_000) / 2;
        let clients = clients.min(10_000);
        let _silent: Vec<_> = (0..clients).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_healthy_soon(address);
        assert!(clients > 400, "{clients}");
    }

    #[test]
    fn taken_port_is_an_error_with_a_remedy() {
        let address = open(None);
        let error = Endpoint::open(address, None, Arc::new(FakeService(None))).unwrap_err();
        assert!(error.what.contains(&address.to_string()), "{error}");
        assert!(error.remedy.contains("--metrics"), "{error}");
    }
}
