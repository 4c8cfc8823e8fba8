//! Who may ask for figures where more than this machine can reach them: whoever knows what is in a file (RFC 6750:
//! `Authorization: Bearer TOKEN`). Prometheus has it as `authorization: {credentials_file: …}`.
//!
//! *Invariant*: how long the answer takes says nothing of how much of the token was right. Health stays open: what asks for it
//! (a kubelet, a script) learns whether the service is well, and nothing of the machine.
//!
//! *Rejected*: TLS here. A certificate for each node is more to go wrong than names of devices are worth; where the network is not
//! trusted a proxy that has one stands in front, and the service stays on the loopback address.

use std::fs;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderMap};

use crate::failure::Failure;

/// Fewer could be tried out.
const LENGTH_MIN: usize = 16;

/// What has to be said.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// The first line of this file.
    pub(crate) fn read(file: &Path) -> Result<Token, Failure> {
        let shown = file.display();
        let text = fs::read_to_string(file).map_err(|error| {
            let remedy = "--metrics-token FILE, which this service's user can read";
            Failure::usage(format!("cannot read {shown}"), error, remedy)
        })?;
        let token = text.lines().next().unwrap_or_default().trim();
        let fits = token.len() >= LENGTH_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            let why =
                format!("its first line is not {LENGTH_MIN} or more visible characters without a space");
            let remedy = format!("head -c 32 /dev/urandom | base64 >{shown}");
            return Err(Failure::usage(format!("no token in {shown}"), why, remedy));
        }
        Ok(Token(token.to_owned()))
    }

    /// Whether it was said.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let said = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let Some((scheme, said)) = said.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && same(said, self.0.as_bytes())
    }
}

/// Looks at every byte, whichever differs.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<Token, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Token::read(file.path())
    }

    fn said(words: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, words.parse().unwrap())])
    }

    #[test]
    fn only_who_knows_it_is_admitted() {
        let token = token("0123456789abcdef\nsecond line\n").unwrap();
        assert!(token.admits(&said("Bearer 0123456789abcdef")));
        assert!(token.admits(&said("bearer 0123456789abcdef")));
        for wrong in
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "Bear", ""]
        {
            assert!(!token.admits(&said(wrong)), "{wrong}");
        }
        assert!(!token.admits(&HeaderMap::new()));
    }

    #[test]
    fn a_file_without_one_is_refused() {
        for bad in ["", "short\n", "\n0123456789abcdef", "with a space between it"] {
            assert!(token(bad).is_err_and(|failure| failure.what.contains("no token")), "{bad}");
        }
        assert!(Token::read(Path::new("/nowhere/token")).is_err());
    }
}
