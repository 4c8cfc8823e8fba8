//! Between the exporter and Zipkin: passes everything on, and notes when a trace went by.
//!
//! A trace's id is 16 bytes as they are in Zipkin's protobuf, the first eight of them its source's: these are looked for in
//! what goes by.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::journey::{self, Journeys, Point};

const ID: usize = 16;

/// Listens, in threads that end with the process; where.
pub(super) fn listen(to: String, journeys: Arc<Journeys>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Whoever is behind it is away: the exporter notices, and comes again.
            let Ok(server) = TcpStream::connect(&to) else { continue };
            let journeys = Arc::clone(&journeys);
            if let (Ok(client_reads), Ok(server_reads)) = (client.try_clone(), server.try_clone()) {
                std::thread::spawn(move || pass(client_reads, server, |bytes| note(bytes, &journeys)));
                std::thread::spawn(move || pass(server_reads, client, |_| {}));
            }
        }
    });
    Ok(address)
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let _ = to.set_nodelay(true);
    // What may be the begin of an id stands before what comes next.
    let (mut seen, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..length]).is_err() {
            return;
        }
        seen.extend_from_slice(&chunk[..length]);
        see(&seen);
        seen.drain(..seen.len().saturating_sub(ID - 1));
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn note(bytes: &[u8], journeys: &Journeys) {
    let Some(prefix) = journeys.prefix() else { return };
    let now = journey::now();
    for id in ids(bytes, prefix) {
        journeys.note(id, Point::Posted, now);
    }
}

fn ids(bytes: &[u8], prefix: [u8; 8]) -> impl Iterator<Item = u128> {
    let whole = bytes.windows(ID).filter(move |window| window[0] == prefix[0] && window.starts_with(&prefix));
    whole.filter_map(|window| window.try_into().ok().map(u128::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_wherever_they_stand() {
        let id = 0x0102_0304_0506_0708_1112_1314_1516_1718_u128;
        let bytes = [&[1, 2, 3][..], &id.to_be_bytes(), &[9], &(id + 1).to_be_bytes()[..15]].concat();
        assert_eq!(ids(&bytes, [1, 2, 3, 4, 5, 6, 7, 8]).collect::<Vec<_>>(), [id]);
    }
}
