//! Where figures and health are asked for, by HTTP: `GET /metrics` and `GET /health`.
//!
//! It listens on the loopback address unless told otherwise: names of devices and rates of requests are nobody's business
//! who is not on the machine. Elsewhere a token keeps figures to those who know it ([`super::token`]); where there is none it says
//! so.
//!
//! *Health* is `200 well` as long as work goes on, with a line for each who is away and since when; `503` where nothing goes on
//! any more, which a new start may mend. So a manager that restarts who is not well does not restart who only waits.
//!
//! *Metrics* are OpenMetrics, and Prometheus' text format 0.0.4 for who accepts `text/plain` and not OpenMetrics.
//!
//! *Bounds*: 16 connections at a time, 5 s for a request's head; whoever asks slowly keeps nobody else waiting for longer.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::figures::{self, Exposition, Figures};
use super::token::Token;
use crate::failure::Failure;
use crate::output::say;

/// Where each service listens unless told otherwise, so that one of each can be on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Agent = 9899,
    Aggregator = 9900,
    Exporter = 9901,
}

const CONNECTIONS_MAX: usize = 16;
const HEAD_WITHIN: Duration = Duration::from_secs(5);
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where it is to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// There.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl FromStr for Where {
    type Err = String;

    fn from_str(word: &str) -> Result<Where, String> {
        match word {
            "off" => Ok(Where::Off),
            word => word.parse().map(Where::At).map_err(|_| "ADDRESS:PORT, or off".to_owned()),
        }
    }
}

/// It listens until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// Where; with port 0 the kernel chose one.
    address: SocketAddr,
}

impl Endpoint {
    /// As a service was told. Where it was told nothing it is of no consequence that somebody else has the port: it says so, and
    /// there is none.
    pub(crate) fn of(
        told: Option<Where>,
        token: Option<&Path>,
        port: Port,
        figures: Arc<dyn Figures>,
    ) -> Result<Option<Endpoint>, Failure> {
        let token = token.map(Token::read).transpose()?;
        let open_to_all = token.is_none();
        // Only who is on this machine can ask.
        let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port as u16);
        let opened = match told {
            Some(Where::Off) => return Ok(None),
            Some(Where::At(address)) => Endpoint::open(address, token, figures).map(Some)?,
            None => match Endpoint::open(default, token, figures) {
                Ok(endpoint) => Some(endpoint),
                Err(failure) => {
                    say(&format!("no metrics: {} ({})", failure.what, failure.why));
                    None
                }
            },
        };
        if let Some(Endpoint { address }) = opened {
            say(&format!("metrics at http://{address}/metrics, health at http://{address}/health"));
            if open_to_all && !address.ip().is_loopback() {
                say(
                    "whoever reaches that address reads the metrics: --metrics-token FILE keeps them to who knows it",
                );
            }
        }
        Ok(opened)
    }

    /// Answers with `figures` from now on.
    fn open(
        address: SocketAddr,
        token: Option<Token>,
        figures: Arc<dyn Figures>,
    ) -> Result<Endpoint, Failure> {
        let failed = |error: io::Error| {
            Failure::cannot_trace(
                format!("cannot serve metrics at {address}"),
                error,
                "--metrics ADDRESS:PORT, of which the port is free, or --metrics off",
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let serve = move || runtime.block_on(serve(listener, token, figures));
        Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(Endpoint { address })
    }
}

async fn serve(listener: TcpListener, token: Option<Token>, figures: Arc<dyn Figures>) -> Infallible {
    let (room, token) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(token));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { continue };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor left, most likely: there will be one again.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (figures, token) = (Arc::clone(&figures), Arc::clone(&token));
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, (*token).as_ref(), &*figures);
                async { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
            // Whoever asked is gone: there is nobody to tell.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

fn answer(
    request: &Request<Incoming>,
    token: Option<&Token>,
    figures: &dyn Figures,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" if token.is_some_and(|token| !token.admits(request.headers())) => {
            let mut refused = plain(StatusCode::UNAUTHORIZED, "with a token only\n".to_owned());
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        }
        "/metrics" => {
            let (exposition, kind) = match wants_plain(request) {
                true => (Exposition::Plain, PLAIN),
                false => (Exposition::OpenMetrics, OPEN_METRICS),
            };
            of_type(StatusCode::OK, kind, figures::text(&figures.families(), exposition))
        }
        "/health" => match figures.ill() {
            None => plain(
                StatusCode::OK,
                ["well".to_owned()].into_iter().chain(figures.remarks()).map(line).collect(),
            ),
            Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics and /health\n".to_owned()),
    }
}

fn line(remark: String) -> String {
    remark + "\n"
}

/// Accepts the older format and not the newer one.
fn wants_plain(request: &Request<Incoming>) -> bool {
    let accepts = |kind: &str| {
        let mut said = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        said.any(|value| value.contains(kind))
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

    use super::super::figures::{Family, Kind};
    use super::*;

    struct Ill(Option<String>);

    impl Figures for Ill {
        fn families(&self) -> Vec<Family> {
            vec![Family::one(Kind::Gauge, "up", "It works", 1.0)]
        }

        fn ill(&self) -> Option<String> {
            self.0.clone()
        }

        fn remarks(&self) -> Vec<String> {
            vec!["x is away".to_owned()]
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

    fn open(ill: Option<&str>) -> SocketAddr {
        let figures = Arc::new(Ill(ill.map(str::to_owned)));
        Endpoint::open("127.0.0.1:0".parse().unwrap(), None, figures).unwrap().address
    }

    #[test]
    fn with_a_token_figures_are_for_who_knows_it_and_health_for_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef").unwrap();
        let token = Some(Token::read(file.path()).unwrap());
        let address =
            Endpoint::open("127.0.0.1:0".parse().unwrap(), token, Arc::new(Ill(None))).unwrap().address;
        assert!(ask(address, "GET /metrics").starts_with("HTTP/1.1 401"));
        assert!(ask(address, "GET /health").starts_with("HTTP/1.1 200"));
        let known = "GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\nX-Rest:";
        assert!(ask(address, known).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn figures_and_health_are_told() {
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
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("well\nx is away\n"), "{health}");
        assert!(ask(address, "GET /").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn who_is_not_well_says_why() {
        let health = ask(open(Some("no rounds for 31 s")), "GET /health");
        assert!(health.starts_with("HTTP/1.1 503") && health.ends_with("no rounds for 31 s\n"), "{health}");
    }

    #[test]
    fn a_connection_that_says_nothing_keeps_nobody_waiting() {
        let address = open(None);
        let _silent: Vec<_> = (1..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, "GET /health").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_port_that_is_taken_is_a_failure_with_a_remedy() {
        let taken = open(None);
        let failure = Endpoint::open(taken, None, Arc::new(Ill(None))).unwrap_err();
        assert!(failure.what.contains(&taken.to_string()), "{failure}");
        assert!(failure.remedy.contains("--metrics"), "{failure}");
    }

    #[test]
    fn where_is_an_address_or_off() {
        assert_eq!("off".parse(), Ok(Where::Off));
        assert_eq!("[::1]:80".parse(), Ok(Where::At("[::1]:80".parse().unwrap())));
        assert!("9899".parse::<Where>().is_err());
    }
}
