//! NBD servers that a command line names, and whether a connection leads to one of them.
//!
//! *In*: a file name of QEMU's (`nbd://HOST:PORT/EXPORT`, `nbd:unix:PATH`), or the options of its driver `nbd`; and the
//! name of a connection, as the kernel side has it. *Out*: an [`NbdServer`].
//!
//! *Invariant*: a connection leads to a server if its far end has the server's port and address, or the path of its
//! socket. A host name is not resolved, since its address may have changed: there the port decides. So a connection can lead to
//! several of the servers that one command line names, and then the caller has a choice.
//!
//! Source: block/nbd.c of QEMU (`nbd_parse_uri`, `nbd_parse_filename`, `nbd_config`); IANA for the default port.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use crate::option_list::OptionList;

/// Port of a server without one.
const PORT: u16 = 10_809;

/// Address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServer {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(String),
}

impl Display for NbdServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdServer::Tcp(host, port) if host.contains(':') => write!(formatter, "nbd://[{host}]:{port}"),
            NbdServer::Tcp(host, port) => write!(formatter, "nbd://{host}:{port}"),
            NbdServer::Unix(path) => write!(formatter, "nbd:unix:{path}"),
        }
    }
}

impl NbdServer {
    /// Parses a file name. None for other protocols, and for TLS (`nbds`), whose requests are not seen.
    pub(crate) fn of_file_name(name: &str) -> Option<NbdServer> {
        if let Some(rest) = name.strip_prefix("nbd:unix:") {
            return of_path(rest.split(':').next()?);
        }
        let schemes = ["nbd+unix://", "nbd+tcp://", "nbd://"];
        let scheme = schemes.into_iter().find(|scheme| name.starts_with(scheme));
        let Some(scheme) = scheme else {
            // The old form: nbd:HOST:PORT:exportname=NAME.
            let (host, rest) = host_and_rest(name.strip_prefix("nbd:")?)?;
            return Some(NbdServer::Tcp(host, rest.strip_prefix(':')?.split(':').next()?.parse().ok()?));
        };
        let rest = name.strip_prefix(scheme)?;
        if scheme == "nbd+unix://" {
            let (_, query) = rest.split_once('?')?;
            let path = query.split(['&', ';']).find_map(|part| part.strip_prefix("socket="))?;
            return of_path(&decoded(path));
        }
        let authority = rest.split(['/', '?']).next()?;
        let authority = authority.rsplit('@').next()?;
        let (host, rest) = host_and_rest(authority)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => PORT,
        };
        Some(NbdServer::Tcp(decoded(&host), port))
    }

    /// Reads the options of the driver `nbd` that have this prefix in their keys.
    pub(crate) fn of_options(options: &OptionList, prefix: &str) -> Option<NbdServer> {
        // The first form is that of `-blockdev`, the other one is older.
        let get = |name: &str| {
            let both = [format!("{prefix}server.{name}"), format!("{prefix}{name}")];
            both.iter().find_map(|key| options.get(key))
        };
        match (get("path"), get("host")) {
            (Some(path), _) => of_path(path),
            (None, Some(host)) => {
                let port = get("port").map_or(Some(PORT), |port| port.parse().ok())?;
                Some(NbdServer::Tcp(host.to_owned(), port))
            }
            (None, None) => None,
        }
    }

    /// Returns whether a TCP connection to this address leads to it.
    pub fn is_at(&self, far: SocketAddr) -> bool {
        let NbdServer::Tcp(host, port) = self else { return false };
        // A name is no address.
        let is_host =
            host.parse::<IpAddr>().map_or(true, |own| own.to_canonical() == far.ip().to_canonical());
        far.port() == *port && is_host
    }

    /// Returns whether a connection to a socket with this path leads to it.
    pub fn is_path(&self, path: &str) -> bool {
        matches!(self, NbdServer::Unix(own) if own == path)
    }
}

fn of_path(path: &str) -> Option<NbdServer> {
    (!path.is_empty()).then(|| NbdServer::Unix(path.to_owned()))
}

/// Splits `HOST…` or `[IPV6]…`.
fn host_and_rest(text: &str) -> Option<(String, &str)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    (!host.is_empty()).then(|| (host.to_owned(), rest))
}

/// Decodes `%20` of a URI. Other text after a percent sign stays.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Option<NbdServer> {
        Some(NbdServer::Tcp(host.to_owned(), port))
    }

    fn unix(path: &str) -> Option<NbdServer> {
        Some(NbdServer::Unix(path.to_owned()))
    }

    #[test]
    fn file_names_of_each_form_are_read() {
        let of = NbdServer::of_file_name;
        assert_eq!(of("nbd://store"), tcp("store", 10_809));
        assert_eq!(of("nbd://user@store:10810/disk?x=1"), tcp("store", 10_810));
        assert_eq!(of("nbd+tcp://[2001:db8::1]:7/a/b"), tcp("2001:db8::1", 7));
        assert_eq!(of("nbd:192.0.2.2:10809:exportname=a"), tcp("192.0.2.2", 10_809));
        assert_eq!(of("nbd:[::1]:10809"), tcp("::1", 10_809));
        assert_eq!(of("nbd+unix:///disk?socket=/run/a%20b.sock"), unix("/run/a b.sock"));
        assert_eq!(of("nbd+unix://?x=1&socket=/s"), unix("/s"));
        assert_eq!(of("nbd:unix:/run/a.sock:exportname=b"), unix("/run/a.sock"));
        let others = [
            "nbds://store",
            "/nbd://",
            "nbd:",
            "nbd:host",
            "nbd:host:x",
            "nbd://",
            "nbd://[::1",
            "nbd://h:x",
        ];
        assert_eq!(others.map(of), [const { None }; 8]);
        assert_eq!(["nbd+unix:///disk", "nbd:unix:", "nbd+unix://?socket="].map(of), [const { None }; 3]);
        assert_eq!(of("nbd://a%zz%4"), tcp("a%zz%4", 10_809));
        for name in ["nbd://store:10809", "nbd://[::1]:7", "nbd:unix:/run/a.sock"] {
            assert_eq!(of(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn options_of_both_forms_are_read() {
        let of = |text: &str, prefix: &str| NbdServer::of_options(&OptionList::parse(text, "driver"), prefix);
        assert_eq!(of("nbd,server.type=inet,server.host=store,server.port=7", ""), tcp("store", 7));
        assert_eq!(of("raw,file.driver=nbd,file.host=store", "file."), tcp("store", 10_809));
        assert_eq!(of("nbd,server.type=unix,server.path=/s", ""), unix("/s"));
        assert_eq!(of("nbd,path=/s", ""), unix("/s"));
        assert_eq!(of("nbd,server.host=store,server.port=x", ""), None);
        assert_eq!(of("nbd,export=a", ""), None);
    }

    #[test]
    fn a_connection_leads_to_the_server_with_its_address() {
        let far = |text: &str| text.parse::<SocketAddr>().unwrap();
        let server = |text: &str| NbdServer::of_file_name(text).unwrap();
        assert!(server("nbd://192.0.2.2").is_at(far("192.0.2.2:10809")));
        assert!(server("nbd://[::ffff:192.0.2.2]").is_at(far("192.0.2.2:10809")));
        assert!(server("nbd://store").is_at(far("192.0.2.2:10809")), "a name has any address");
        assert!(!server("nbd://192.0.2.3").is_at(far("192.0.2.2:10809")));
        assert!(!server("nbd://192.0.2.2").is_at(far("192.0.2.2:10810")));
        assert!(server("nbd:unix:/s").is_path("/s") && !server("nbd:unix:/s").is_path("/t"));
        assert!(!server("nbd:unix:/s").is_at(far("192.0.2.2:10809")) && !server("nbd://s").is_path("s"));
    }
}
