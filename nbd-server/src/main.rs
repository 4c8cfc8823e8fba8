//! `blkkin-nbd`: serves one file to NBD clients.

use std::io::Write;
use std::process::ExitCode;

use blkkin_nbd::args::Args;
use blkkin_nbd::export::Export;
use blkkin_nbd::op;
use blkkin_nbd::server::{Config, Listener, Server};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    let args = Args::parse();
    match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&format!("blkkin-nbd: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<(), String> {
    // Before any thread: what comes from then on is heard.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| error.to_string())?;
    let export = Export::open(&args.file, &args.name, args.read_only)
        .map_err(|error| format!("{}: {error}", args.file.display()))?;
    let bind = |address| Listener::bind(&address).map_err(|error| format!("{address:?}: {error}"));
    let listeners: Vec<Listener> = args.addresses().into_iter().map(bind).collect::<Result<_, _>>()?;
    if let Err(why) = op::init() {
        say(&format!("blkkin-nbd: not traced: {why}"));
    }
    let uris: Vec<String> = listeners.iter().map(Listener::uri).collect();
    let config = Config { mode: args.mode(), connections: args.connections };
    let server = Server::start(export, listeners, config).map_err(|error| error.to_string())?;
    // For who waits until it listens, and for the port that was free.
    let mut stdout = std::io::stdout().lock();
    let told = uris.iter().try_for_each(|uri| writeln!(stdout, "{uri}")).and_then(|()| stdout.flush());
    told.map_err(|error| error.to_string())?;
    drop(stdout);
    signals.forever().next();
    server.stop();
    Ok(())
}

/// A person's matter; without a terminal nobody hears it.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
