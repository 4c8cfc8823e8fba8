//! Requests of an NBD client. The sizes of the reads change neither requests nor their offsets. The
//! first byte of the input is the size of a read.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_nbd::protocol::request_decoder::{ReceivedRequest, RequestDecoder, Violation};

fuzz_target!(|bytes: &[u8]| {
    let Some((size, stream)) = bytes.split_first() else { return };
    assert_eq!(decode(stream, usize::from(*size).max(1)), decode(stream, usize::MAX));
});

fn decode(mut stream: &[u8], size: usize) -> (Vec<ReceivedRequest>, Option<Violation>) {
    let (mut decoder, mut received) = (RequestDecoder::default(), Vec::new());
    loop {
        loop {
            match decoder.next() {
                Ok(Some(request)) => received.push(request),
                Ok(None) => break,
                Err(violation) => return (received, Some(violation)),
            }
        }
        let space = decoder.space();
        let read = size.min(space.len()).min(stream.len());
        if read == 0 {
            return (received, None);
        }
        space[..read].copy_from_slice(&stream[..read]);
        decoder.filled(read);
        stream = &stream[read..];
    }
}
