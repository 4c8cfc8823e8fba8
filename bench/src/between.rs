//! Between an exporter and its server: passes everything on, and shows somebody what goes by.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};

/// Listens, in threads that end with the process; where. Each connection has a `see` of its own, which is shown what the client sent
/// once the server has it.
pub(crate) fn listen<See: FnMut(&[u8]) + Send + 'static>(
    to: String,
    see: impl Fn() -> See + Send + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Whoever is behind it is away: the exporter notices, and comes again.
            let Ok(server) = TcpStream::connect(&to) else { continue };
            if let (Ok(client_reads), Ok(server_reads)) = (client.try_clone(), server.try_clone()) {
                let see = see();
                std::thread::spawn(move || pass(client_reads, server, see));
                std::thread::spawn(move || pass(server_reads, client, |_| {}));
            }
        }
    });
    Ok(address)
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let _ = to.set_nodelay(true);
    let mut chunk = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..length]).is_err() {
            return;
        }
        see(&chunk[..length]);
    }
    let _ = to.shutdown(Shutdown::Write);
}
