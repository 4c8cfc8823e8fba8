//! TCP proxy between an exporter and its server, which shows the traffic to an observer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};

/// Listens in threads that end with the process, and returns the address. Each connection has its
/// own `observe` function, which receives the client's bytes after the server received them.
pub(crate) fn listen<Observe: FnMut(&[u8]) + Send + 'static>(
    to: String,
    observe: impl Fn() -> Observe + Send + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // The server is unreachable: the exporter notices and retries.
            let Ok(server) = TcpStream::connect(&to) else { continue };
            if let (Ok(client_reads), Ok(server_reads)) = (client.try_clone(), server.try_clone()) {
                let observe = observe();
                std::thread::spawn(move || forward(client_reads, server, observe));
                std::thread::spawn(move || forward(server_reads, client, |_| {}));
            }
        }
    });
    Ok(address)
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut observe: impl FnMut(&[u8])) {
    let _ = to.set_nodelay(true);
    let mut chunk = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..length]).is_err() {
            return;
        }
        observe(&chunk[..length]);
    }
    let _ = to.shutdown(Shutdown::Write);
}
