//! Replies of an LTTng relay, read as by `blkkin trace`. The input is the bytes that the relay
//! sends on one connection, whatever is requested.
#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use blkkin_fuzz::fuzz_target;
use blkkin_lttng_live::clock::HostClocks;
use blkkin_lttng_live::live::connection::Connection;
use blkkin_lttng_live::live::reader::{Reader, ReaderSettings};

/// Relay of the process: its address, and the queue of what it sends on the next connections.
static RELAY: OnceLock<(String, Sender<Vec<u8>>)> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let (address, replies) = RELAY.get_or_init(relay);
    replies.send(bytes.to_vec()).expect("the relay's thread lives");
    let Ok(connection) = Connection::open(address) else { return };
    let clocks = HostClocks { boot_id: None, realtime_offset_ns: 0, error: Default::default() };
    let mut reader = Reader::new("s", ReaderSettings::default(), clocks);
    if reader.attach(connection).is_ok() {
        // A round that waits for metadata or for another stream's packet reads nothing.
        let mut rounds = 0..64;
        while rounds.next().is_some() && reader.round(&mut |_| ()).is_ok_and(|round| !round.ended) {}
        reader.finish(&mut |_| ());
    }
});

fn relay() -> (String, Sender<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket").to_string();
    let (sender, replies) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for bytes in replies {
            let (mut client, _) = listener.accept().expect("the target connects");
            // The client may close the connection at any byte.
            let _ = client.write_all(&bytes).and_then(|()| client.shutdown(Shutdown::Write));
            let _ = client.read_to_end(&mut Vec::new());
        }
    });
    (address, sender)
}
