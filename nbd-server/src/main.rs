//! `blkkin-nbd`: serves one file to NBD clients.

use std::io::Write;
use std::process::ExitCode;

use blkkin_nbd::args::Args;
use blkkin_nbd::export::Export;
use blkkin_nbd::request_span;
use blkkin_nbd::server::{Config, IDLE_MIN, Listener, STALL_MAX, Server};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    let args = Args::parse();
    match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("blkkin-nbd: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<(), String> {
    // Registered before the first thread starts, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| error.to_string())?;
    let export = Export::open(&args.file, &args.name, args.read_only)
        .map_err(|error| format!("{}: {error}", args.file.display()))?;
    let bind = |address| Listener::bind(&address).map_err(|error| format!("{address:?}: {error}"));
    let listeners: Vec<Listener> = args.addresses().into_iter().map(bind).collect::<Result<_, _>>()?;
    if let Err(reason) = request_span::init() {
        log(&format!("blkkin-nbd: not traced: {reason}"));
    }
    let uris: Vec<String> = listeners.iter().map(Listener::uri).collect();
    let config = Config {
        mode: args.mode(),
        connections: args.connections,
        memory: args.memory,
        stall_max: STALL_MAX,
        idle_min: IDLE_MIN,
    };
    let server = Server::start(export, listeners, config).map_err(|error| error.to_string())?;
    // A parent process waits for these lines, and reads from them the port that the kernel chose.
    let mut stdout = std::io::stdout().lock();
    let printed = uris.iter().try_for_each(|uri| writeln!(stdout, "{uri}")).and_then(|()| stdout.flush());
    printed.map_err(|error| error.to_string())?;
    drop(stdout);
    signals.forever().next();
    server.stop();
    Ok(())
}

/// Writes a line to standard error. A failure is ignored: nothing reads it then.
fn log(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
