//! Command line of `blkkin-nbd`.
//!
//! *In*: the process's arguments. *Out*: [`Args`], with the listen addresses and the [`Mode`].
//! *Invariant*: at least one address is given, and `--rings` excludes `--threads`.

use std::path::PathBuf;

use clap::Parser;

use crate::server::{Address, MEMORY_MIN, Mode};

/// Serves a file, or a block device, to NBD clients.
///
/// Prints a URI for each address once it listens there, and runs until SIGTERM or SIGINT. Requests
/// in flight complete first.
#[derive(Debug, Parser)]
#[command(name = "blkkin-nbd", version)]
pub struct Args {
    /// Regular file or block device to serve, with its size at the start
    pub file: PathBuf,

    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH", required_unless_present = "tcp")]
    pub unix: Option<PathBuf>,

    /// Listen on this TCP address; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    pub tcp: Option<String>,

    /// Export name; the empty name selects the export too
    #[arg(long, value_name = "NAME", default_value = "")]
    pub name: String,

    /// Refuse every request that changes the file
    #[arg(long, short)]
    pub read_only: bool,

    /// Number of threads that execute requests; few of them run if the file is fast
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,

    /// Execute requests by N io_urings, each with a thread, instead of by system calls
    #[arg(long, value_name = "N", conflicts_with = "threads", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub rings: Option<u16>,

    /// Largest number of concurrent clients; a further one replaces a client that has been idle for
    /// 60 s, or is disconnected
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub connections: usize,

    /// Memory for the requests and replies of all clients, such as 64M or 1GiB; at least 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_bytes)]
    pub memory: usize,
}

impl Args {
    /// Returns the addresses to listen on.
    pub fn addresses(&self) -> Vec<Address> {
        let unix = self.unix.clone().map(Address::Unix);
        unix.into_iter().chain(self.tcp.clone().map(Address::Tcp)).collect()
    }

    /// Returns how requests are executed.
    pub fn mode(&self) -> Mode {
        self.rings.map_or(Mode::Threads(self.threads.into()), |rings| Mode::Rings(rings.into()))
    }
}

/// Parses a number of bytes, with the units of the other programs: powers of 1024, in any case.
fn memory_bytes(value: &str) -> Result<usize, String> {
    let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("units are K, M, G".to_owned()),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes >= MEMORY_MIN).ok_or_else(|| "the minimum is 64M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_minimum() {
        for value in ["268435456", "262144K", "256M", "256mib", "256MiB"] {
            assert_eq!(memory_bytes(value), Ok(256 << 20), "{value}");
        }
        assert_eq!(memory_bytes("1G"), Ok(1 << 30));
        for value in ["", "M", "63M", "64T", "-1G", "99999999999999999999", "18446744073709551615G"] {
            assert!(memory_bytes(value).is_err(), "{value}");
        }
    }
}
