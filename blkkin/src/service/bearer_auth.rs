//! Bearer authentication for metrics on addresses that other machines reach (RFC 6750:
//! `Authorization: Bearer TOKEN`). In Prometheus: `authorization: {credentials_file: …}`.
//!
//! *Invariant*: the time of the comparison does not depend on how much of the token is correct.
//! Health needs no token: a manager has none. It has the names of disks with their explained bytes, of kernel modules and of
//! unreachable peers (docs/security.md).
//!
//! *Rejected*: TLS here. A certificate for each node is more to maintain than device names are
//! worth. In an untrusted network a reverse proxy with TLS can forward to the loopback address.

use std::fs;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderMap};

use crate::error::CliError;

/// Minimum length; shorter tokens could be guessed.
const LENGTH_MIN: usize = 16;

/// The expected token.
#[derive(Clone)]
pub(crate) struct BearerToken(String);

impl BearerToken {
    /// Reads the token from the first line of the file.
    pub(crate) fn read(file: &Path) -> Result<BearerToken, CliError> {
        let displayed = file.display();
        let text = fs::read_to_string(file).map_err(|error| {
            let remedy = "--metrics-token FILE, which this service's user can read";
            CliError::usage(format!("cannot read {displayed}"), error, remedy)
        })?;
        let token = text.lines().next().unwrap_or_default().trim();
        let fits = token.len() >= LENGTH_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            let why = format!("its first line is not a word of {LENGTH_MIN} or more visible characters");
            let remedy = format!("head -c 32 /dev/urandom | base64 >{displayed}");
            return Err(CliError::usage(format!("no token in {displayed}"), why, remedy));
        }
        Ok(BearerToken(token.to_owned()))
    }

    /// Returns whether the request carries the token.
    pub(crate) fn authorizes(&self, headers: &HeaderMap) -> bool {
        let credentials = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let Some((scheme, credentials)) = credentials.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && constant_time_eq(credentials, self.0.as_bytes())
    }
}

/// Compares in constant time.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<BearerToken, CliError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        BearerToken::read(file.path())
    }

    fn credentials(words: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, words.parse().unwrap())])
    }

    #[test]
    fn only_the_token_authorizes() {
        let token = token("0123456789abcdef\nsecond line\n").unwrap();
        assert!(token.authorizes(&credentials("Bearer 0123456789abcdef")));
        assert!(token.authorizes(&credentials("bearer 0123456789abcdef")));
        for wrong in
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "Bear", ""]
        {
            assert!(!token.authorizes(&credentials(wrong)), "{wrong}");
        }
        assert!(!token.authorizes(&HeaderMap::new()));
    }

    #[test]
    fn file_without_a_token_is_refused() {
        for bad in ["", "short\n", "\n0123456789abcdef", "with a space between it"] {
            assert!(token(bad).is_err_and(|error| error.what.contains("no token")), "{bad}");
        }
        assert!(BearerToken::read(Path::new("/nowhere/token")).is_err());
    }
}
