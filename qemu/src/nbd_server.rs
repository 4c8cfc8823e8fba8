//! NBD servers that a command line names, and whether a connection leads to one of them.
//!
//! *In*: a file name of QEMU's (`nbd://HOST:PORT/EXPORT`, `nbd:unix:PATH`), or the options of its driver `nbd`; and the remote
//! address or path of a connection. *Out*: an [`NbdServer`].
//!
//! *Invariant*: a connection leads to a server if its remote end has the server's port and address, or the path of its
//! socket. A host name is not resolved, since its address may have changed: there the port decides. Any connection may lead to
//! a server with an address that cannot be read. So a connection can lead to several of the servers that one command line names,
//! and then the caller has a choice.
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
    /// Address in a form that is not read, as a service name for a port.
    Unknown,
}

impl Display for NbdServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdServer::Tcp(host, port) if host.contains(':') => write!(formatter, "nbd://[{host}]:{port}"),
            NbdServer::Tcp(host, port) => write!(formatter, "nbd://{host}:{port}"),
            NbdServer::Unix(path) => write!(formatter, "nbd:unix:{path}"),
            NbdServer::Unknown => formatter.write_str("NBD server"),
        }
    }
}

impl NbdServer {
    /// Parses a file name. None for other protocols, and for TLS (`nbds`), whose requests are not seen.
    pub(crate) fn of_file_name(name: &str) -> Option<NbdServer> {
        let schemes = ["nbd+unix://", "nbd+tcp://", "nbd://", "nbd:unix:", "nbd:"];
        let scheme = schemes.into_iter().find(|scheme| name.starts_with(scheme))?;
        let rest = name.strip_prefix(scheme)?;
        let server = match scheme {
            "nbd+unix://" => of_socket_query(rest),
            "nbd:unix:" => of_path(rest.split(":exportname=").next().unwrap_or(rest)),
            "nbd:" => of_host_and_port(rest),
            _ => of_authority(rest.split(['/', '?']).next().unwrap_or(rest)),
        };
        Some(server.unwrap_or(NbdServer::Unknown))
    }

    /// Reads the options that have this prefix in their keys, if they are of the driver `nbd`.
    pub(crate) fn of_options(options: &OptionList, prefix: &str) -> Option<NbdServer> {
        if !options.is(&format!("{prefix}driver"), "nbd") {
            return None;
        }
        // The first form is that of `-blockdev`, the other one is older.
        let get = |name: &str| {
            let both = [format!("{prefix}server.{name}"), format!("{prefix}{name}")];
            both.iter().find_map(|key| options.get(key))
        };
        let server = match (get("path"), get("host")) {
            (Some(path), _) => of_path(path),
            (None, Some(host)) => {
                let port = get("port").map_or(Some(PORT), |port| port.parse().ok());
                port.map(|port| NbdServer::Tcp(host.to_owned(), port))
            }
            (None, None) => None,
        };
        Some(server.unwrap_or(NbdServer::Unknown))
    }

    /// Reads the name of a backing file, as the header of a qcow2 image has it.
    pub(crate) fn of_backing_name(name: &str) -> Option<NbdServer> {
        let Some(json) = name.strip_prefix("json:") else { return NbdServer::of_file_name(name) };
        let options = OptionList::json(json);
        ["", "file."].iter().find_map(|prefix| NbdServer::of_options(&options, prefix))
    }

    /// Returns whether both may be one server.
    pub(crate) fn may_be(&self, other: &NbdServer) -> bool {
        match (self, other) {
            // Hosts have several names.
            (NbdServer::Tcp(_, port), NbdServer::Tcp(_, of_other)) => port == of_other,
            (NbdServer::Unix(path), NbdServer::Unix(of_other)) => path == of_other,
            (NbdServer::Unknown, _) | (_, NbdServer::Unknown) => true,
            _ => false,
        }
    }

    /// Returns whether a TCP connection to this address leads to it.
    pub fn is_at(&self, remote: SocketAddr) -> bool {
        let NbdServer::Tcp(host, port) = self else { return *self == NbdServer::Unknown };
        // A name is no address.
        let is_host = |own: IpAddr| own.to_canonical() == remote.ip().to_canonical();
        remote.port() == *port && host.parse().map_or(true, is_host)
    }

    /// Returns whether a connection to a socket with this path leads to it.
    pub fn is_path(&self, path: &str) -> bool {
        matches!(self, NbdServer::Unix(own) if own == path) || *self == NbdServer::Unknown
    }
}

fn of_authority(authority: &str) -> Option<NbdServer> {
    let (host, rest) = host_and_rest(authority.rsplit('@').next()?)?;
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok()?,
        None => PORT,
    };
    Some(NbdServer::Tcp(decoded(&host), port))
}

/// Reads the old form `HOST:PORT:exportname=NAME`.
fn of_host_and_port(text: &str) -> Option<NbdServer> {
    let (host, rest) = host_and_rest(text)?;
    Some(NbdServer::Tcp(host, rest.strip_prefix(':')?.split(':').next()?.parse().ok()?))
}

fn of_socket_query(text: &str) -> Option<NbdServer> {
    let (_, query) = text.split_once('?')?;
    of_path(&decoded(query.split(['&', ';']).find_map(|part| part.strip_prefix("socket="))?))
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
        assert_eq!(of("nbd:unix:/a:b.sock:exportname=c"), unix("/a:b.sock"));
        assert_eq!(["nbds://store", "/nbd://", "file:nbd"].map(of), [const { None }; 3]);
        let unread = ["nbd:", "nbd:host", "nbd:host:x", "nbd://", "nbd://[::1", "nbd://h:x"];
        assert_eq!(unread.map(of), [const { Some(NbdServer::Unknown) }; 6]);
        let without_path = ["nbd+unix:///disk", "nbd:unix:", "nbd+unix://?socket="];
        assert_eq!(without_path.map(of), [const { Some(NbdServer::Unknown) }; 3]);
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
        let unread = ["nbd,server.host=store,server.port=nbd", "nbd,export=a"];
        assert_eq!(unread.map(|text| of(text, "")), [const { Some(NbdServer::Unknown) }; 2]);
        assert_eq!(of("raw,host=store", ""), None);
    }

    #[test]
    fn the_header_of_an_image_may_name_a_server() {
        let nested = r#"json:{"driver": "raw", "file": {"driver": "nbd", "server.host": "store", "server.port": "7"}}"#;
        let names = ["nbd://store:7/a", nested, r#"json:{"driver": "nbd", "path": "/s"}"#, "/base.img"];
        assert_eq!(
            names.map(NbdServer::of_backing_name),
            [tcp("store", 7), tcp("store", 7), unix("/s"), None]
        );
        let server = |name: &str| NbdServer::of_file_name(name).unwrap();
        assert!(server("nbd://store:7").may_be(&server("nbd://192.0.2.2:7")));
        assert!(!server("nbd://store:7").may_be(&server("nbd://store")));
        assert!(!server("nbd:unix:/s").may_be(&server("nbd://s")));
        assert!(server("nbd:unix:/s").may_be(&NbdServer::Unknown));
    }

    #[test]
    fn a_connection_leads_to_the_server_with_its_address() {
        let remote = |text: &str| text.parse::<SocketAddr>().unwrap();
        let server = |text: &str| NbdServer::of_file_name(text).unwrap();
        assert!(server("nbd://192.0.2.2").is_at(remote("192.0.2.2:10809")));
        assert!(server("nbd://[::ffff:192.0.2.2]").is_at(remote("192.0.2.2:10809")));
        assert!(server("nbd://store").is_at(remote("192.0.2.2:10809")), "a name has any address");
        assert!(!server("nbd://192.0.2.3").is_at(remote("192.0.2.2:10809")));
        assert!(!server("nbd://192.0.2.2").is_at(remote("192.0.2.2:10810")));
        assert!(server("nbd:unix:/s").is_path("/s") && !server("nbd:unix:/s").is_path("/t"));
        assert!(NbdServer::Unknown.is_at(remote("192.0.2.2:1")) && NbdServer::Unknown.is_path("/s"));
        assert!(!server("nbd:unix:/s").is_at(remote("192.0.2.2:10809")) && !server("nbd://s").is_path("s"));
    }
}
