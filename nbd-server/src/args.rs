//! Command line of `blkkin-nbd`.
//!
//! *In*: the process's arguments. *Out*: [`Args`], with the listen addresses and the [`Mode`].
//! *Invariant*: at least one address is given, and `--rings` excludes `--threads`.

use std::path::PathBuf;

use clap::Parser;

use crate::server::{Address, Mode};

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

    /// Largest number of concurrent clients; further ones are disconnected
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
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
