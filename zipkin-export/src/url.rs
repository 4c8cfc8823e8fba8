//! Address of a server that accepts spans.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

use crate::destination_error::DestinationError;

/// URL that spans are posted to. Displayed without user name and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(Uri);

impl ServerUrl {
    /// Parses a URL; `path` is the default path.
    pub fn parse(value: &str, path: &str) -> Result<ServerUrl, DestinationError> {
        let bad = |why: String| DestinationError::Url { url: value.to_owned(), why };
        let uri: Uri = value.parse().map_err(|e| bad(format!("{e}")))?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(bad("it has no host".to_owned()));
        }
        if !port_is_valid(&uri) {
            return Err(bad("its port is not a number up to 65535".to_owned()));
        }
        if uri.path() != "/" {
            return Ok(ServerUrl(uri));
        }
        let mut parts = uri.into_parts();
        let query = parts.path_and_query.as_ref().and_then(|p| p.query());
        let path = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        parts.path_and_query = Some(path.parse().map_err(|e| bad(format!("{e}")))?);
        Uri::from_parts(parts).map(ServerUrl).map_err(|e| bad(format!("{e}")))
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }

    /// Returns a hash of the undisplayed parts that distinguish servers: the user name and the
    /// query. None if there are none.
    pub(crate) fn identity_hash(&self) -> Option<u64> {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
        // A password can change while the server stays the same.
        let user = user.split(':').next().unwrap_or_default();
        let query = self.0.query().unwrap_or_default();
        // FNV-1a: stable, because names are derived from it.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = user.bytes().chain([0]).chain(query.bytes()).fold(0xcbf2_9ce4_8422_2325, fold);
        (!user.is_empty() || !query.is_empty()).then_some(hash)
    }

    /// Returns whether connections use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.0.scheme_str(), Some("https" | "grpcs"))
    }

    /// Returns whether the server is on this machine, so that no proxy of the environment is used.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.0.host().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or("http");
        write!(f, "{scheme}://{}", self.0.host().unwrap_or_default())?;
        if let Some(port) = self.0.port() {
            write!(f, ":{port}")?;
        }
        write!(f, "{}", self.0.path())
    }
}

/// Checks the port: the parser accepts any digits, and then reports that there is no port.
fn port_is_valid(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |a| a.as_str());
    uri.port_u16().is_some() || authority.ends_with(uri.host().unwrap_or_default())
}
