//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::server::{Address, Mode};

/// Serves a file, or a block device, to NBD clients.
///
/// It prints a URI for each address once it listens there, and runs until SIGTERM or SIGINT; what is under way then ends first.
#[derive(Debug, Parser)]
#[command(name = "blkkin-nbd", version)]
pub struct Args {
    /// The regular file or block device to serve, with the size that it has now
    pub file: PathBuf,

    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH", required_unless_present = "tcp")]
    pub unix: Option<PathBuf>,

    /// Listen on this TCP address; port 0 takes one that is free
    #[arg(long, value_name = "HOST:PORT")]
    pub tcp: Option<String>,

    /// What clients may call the export, besides the empty name
    #[arg(long, value_name = "NAME", default_value = "")]
    pub name: String,

    /// Refuse whatever would change the file
    #[arg(long, short)]
    pub read_only: bool,

    /// How many threads do requests; of a quick file few of them ever work
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,

    /// Do requests by so many io_urings, each with its thread, instead of by system calls
    #[arg(long, value_name = "N", conflicts_with = "threads", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub rings: Option<u16>,

    /// Clients at once; further ones are turned away
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
}

impl Args {
    /// Where to listen.
    pub fn addresses(&self) -> Vec<Address> {
        let unix = self.unix.clone().map(Address::Unix);
        unix.into_iter().chain(self.tcp.clone().map(Address::Tcp)).collect()
    }

    /// Who does the requests.
    pub fn mode(&self) -> Mode {
        self.rings.map_or(Mode::Threads(self.threads.into()), |rings| Mode::Rings(rings.into()))
    }
}
