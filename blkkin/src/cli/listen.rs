//! `--metrics`: the address of the metrics endpoint.

use std::net::SocketAddr;
use std::str::FromStr;

/// The listen address of the metrics endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// An address and port.
    Addr(SocketAddr),
    /// No endpoint.
    Off,
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(value: &str) -> Result<ListenAddr, String> {
        match value {
            "off" => Ok(ListenAddr::Off),
            value => value.parse().map(ListenAddr::Addr).map_err(|_| "ADDRESS:PORT, or off".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_an_address_or_off() {
        assert_eq!("off".parse(), Ok(ListenAddr::Off));
        assert_eq!("[::1]:80".parse(), Ok(ListenAddr::Addr("[::1]:80".parse().unwrap())));
        assert!("9899".parse::<ListenAddr>().is_err());
    }
}
