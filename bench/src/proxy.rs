//! TCP proxy between an exporter and Zipkin, which passes each post to an observer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::posts::{PostParser, Posted};

/// Listens in threads that end with the process, and returns the address. `observe` receives the
/// spans of each post after Zipkin received it.
pub(crate) fn listen(
    to: String,
    observe: impl Fn(Result<Vec<Posted>>) + Send + Sync + 'static,
) -> Result<SocketAddr> {
    let observe = Arc::new(observe);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // The server is unreachable: the exporter notices and retries.
            let Ok(server) = TcpStream::connect(&to) else { continue };
            if let (Ok(client_reads), Ok(server_reads)) = (client.try_clone(), server.try_clone()) {
                let (observe, mut parser) = (Arc::clone(&observe), PostParser::default());
                let parse = move |bytes: &[u8]| {
                    parser.take(bytes);
                    while let Some(spans) = parser.next() {
                        observe(spans);
                    }
                };
                std::thread::spawn(move || forward(client_reads, server, parse));
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
