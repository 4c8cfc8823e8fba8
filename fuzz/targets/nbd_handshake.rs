//! Handshake of the NBD server. It reads no byte after the handshake.
#![no_main]

use std::io::{self, Read, Write};

use blkkin_fuzz::fuzz_target;
use blkkin_nbd::protocol::handshake::{OPTION_MAX, OPTIONS_MAX, negotiate};
use blkkin_nbd::protocol::{ExportInfo, PAYLOAD_MAX};

/// Client whose bytes are the input.
struct Client<'a> {
    sent: &'a [u8],
    received: usize,
}

impl Read for Client<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sent.read(into)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let export = ExportInfo { name: "disk".to_owned(), size: u64::from(PAYLOAD_MAX), read_only: false };
    let mut client = Client { sent: bytes, received: 0 };
    let negotiated = negotiate(&mut client, &export);
    assert!(client.received <= OPTIONS_MAX * OPTION_MAX as usize);
    if negotiated.is_ok() {
        // The same bytes end the same handshake if nothing follows them.
        let used = &bytes[..bytes.len() - client.sent.len()];
        let again = negotiate(&mut Client { sent: used, received: 0 }, &export);
        assert_eq!(again.ok(), negotiated.ok());
    }
});
