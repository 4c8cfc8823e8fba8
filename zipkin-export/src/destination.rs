//! Where spans go: the value of `zipkin=…` on the command line and in a configuration.
//!
//! *In*: a word. *Out*: a file's path, or a URL that spans can be posted to. What begins with `http://` or
//! `https://` is a URL, everything else is a path. What looks like a mistake between the two is an error: a
//! user who writes `zipkin=localhost:9411` would otherwise find a file of that name instead of spans.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use ureq::http::Uri;

/// Where Zipkin's HTTP API takes spans.
const SPANS_PATH: &str = "/api/v2/spans";

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A file of Zipkin v2 JSON.
    File(PathBuf),
    /// A server that speaks Zipkin's HTTP API.
    Http(ZipkinUrl),
}

impl Destination {
    /// Reads the value of `zipkin=…`: a URL or a path.
    pub fn parse(value: &str) -> Result<Destination, DestinationError> {
        match value.split_once("://") {
            _ if value.is_empty() => Err(DestinationError::Empty),
            Some((scheme, _)) if is_http(scheme) => ZipkinUrl::parse(value).map(Destination::Http),
            Some((scheme, _)) if is_word(scheme) => Err(DestinationError::Scheme(scheme.to_owned())),
            _ if is_host_and_port(value) => Err(DestinationError::NoScheme(value.to_owned())),
            _ if value.ends_with('/') => Err(DestinationError::Directory(value.to_owned())),
            _ => Ok(Destination::File(PathBuf::from(value))),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::File(path) => write!(f, "{}", path.display()),
            Destination::Http(url) => write!(f, "{url}"),
        }
    }
}

/// A URL that spans are posted to. Shown without user name and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipkinUrl(Uri);

impl ZipkinUrl {
    fn parse(value: &str) -> Result<ZipkinUrl, DestinationError> {
        let bad = |why: String| DestinationError::Url { url: value.to_owned(), why };
        let uri: Uri = value.parse().map_err(|e| bad(format!("{e}")))?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(bad("it names no host".to_owned()));
        }
        if !port_is_sound(&uri) {
            return Err(bad("its port is not a number up to 65535".to_owned()));
        }
        if uri.path() != "/" {
            return Ok(ZipkinUrl(uri));
        }
        let mut parts = uri.into_parts();
        let query = parts.path_and_query.as_ref().and_then(|p| p.query());
        let path = query.map_or_else(|| SPANS_PATH.to_owned(), |q| format!("{SPANS_PATH}?{q}"));
        parts.path_and_query = Some(path.parse().map_err(|e| bad(format!("{e}")))?);
        Uri::from_parts(parts).map(ZipkinUrl).map_err(|e| bad(format!("{e}")))
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }

    /// On this machine: no proxy of the environment may stand between.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.0.host().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for ZipkinUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or("http");
        write!(f, "{scheme}://{}", self.0.host().unwrap_or_default())?;
        if let Some(port) = self.0.port() {
            write!(f, ":{port}")?;
        }
        write!(f, "{}", self.0.path())
    }
}

/// Why a word is no destination. Each says what to write instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// Nothing.
    #[error("zipkin= needs a URL or a file: zipkin=http://localhost:9411 or zipkin=trace.json")]
    Empty,
    /// Another protocol.
    #[error("zipkin= does not speak {0}: write http://, https:// or a file's path")]
    Scheme(String),
    /// A host and a port without a protocol.
    #[error("zipkin={0} is neither a URL nor clearly a file: write http://{0} or ./{0}")]
    NoScheme(String),
    /// A directory.
    #[error("zipkin={0} is a directory: name a file in it, such as {0}trace.json")]
    Directory(String),
    /// Not a URL.
    #[error("zipkin={url} is not a URL: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The parser takes any digits for a port, and then says that there is none.
fn port_is_sound(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |a| a.as_str());
    uri.port_u16().is_some() || authority.ends_with(uri.host().unwrap_or_default())
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn is_word(scheme: &str) -> bool {
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

fn is_host_and_port(value: &str) -> bool {
    let host = value.split('/').next().unwrap_or_default();
    host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_get_zipkins_path_unless_they_have_one() {
        for (given, posted) in [
            ("http://localhost:9411", "http://localhost:9411/api/v2/spans"),
            ("http://localhost:9411/", "http://localhost:9411/api/v2/spans"),
            ("HTTPS://zipkin.example", "https://zipkin.example/api/v2/spans"),
            ("http://[::1]:9411", "http://[::1]:9411/api/v2/spans"),
            ("http://h/?tenant=a", "http://h/api/v2/spans?tenant=a"),
            ("http://h:9411/zipkin/api/v2/spans", "http://h:9411/zipkin/api/v2/spans"),
            ("http://h/other?k=v", "http://h/other?k=v"),
        ] {
            match Destination::parse(given) {
                Ok(Destination::Http(url)) => assert_eq!(url.uri().to_string(), posted),
                other => panic!("{given}: {other:?}"),
            }
        }
    }

    #[test]
    fn everything_else_is_a_path() {
        for given in ["trace.json", "/tmp/a b.json", "./localhost:9411", "a/b:7/c", "C:x", "a://b", "x/://y"]
        {
            match Destination::parse(given) {
                Ok(Destination::File(path)) => assert_eq!(path, PathBuf::from(given)),
                Err(DestinationError::Scheme(scheme)) => assert_eq!((given, &*scheme), ("a://b", "a")),
                other => panic!("{given}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_looks_like_a_mistake_is_an_error_that_says_what_to_write() {
        for (given, remedy) in [
            ("", "zipkin=trace.json"),
            ("ftp://h/x", "write http://"),
            ("localhost:9411", "write http://localhost:9411 or ./localhost:9411"),
            ("zipkin:9411/api/v2/spans", "write http://zipkin:9411/api/v2/spans"),
            ("traces/", "traces/trace.json"),
            ("http://", "is not a URL"),
            ("http://a b", "is not a URL"),
            ("http://h:99999", "is not a URL"),
        ] {
            let error = Destination::parse(given).expect_err(given).to_string();
            assert!(error.contains(remedy), "{given}: {error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let url = Destination::parse("https://me:secret@h:1/p?key=secret").map(|d| d.to_string());
        assert_eq!(url.as_deref(), Ok("https://h:1/p"));
    }

    #[test]
    fn loopback_is_known_by_name_and_number() {
        for (url, loopback) in [
            ("http://localhost:1", true),
            ("http://127.0.0.9:1", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.1:1", false),
            ("http://localhost.example", false),
        ] {
            let Ok(Destination::Http(parsed)) = Destination::parse(url) else { panic!("{url}") };
            assert_eq!(parsed.is_loopback(), loopback, "{url}");
        }
    }
}
