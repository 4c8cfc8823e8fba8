//! LTTng's packets of any metadata. The input is pieces: the metadata, then the packets of one
//! stream.
#![no_main]

use blkkin_fuzz::{fuzz_target, piece};
use blkkin_lttng_live::ctf::metadata::CtfTrace;
use blkkin_lttng_live::ctf::packet::{CounterBaseline, Decoder, Event};

fuzz_target!(|bytes: &[u8]| {
    let mut input = bytes;
    let Some(Ok(trace)) = piece(&mut input).map(CtfTrace::read) else { return };
    let (mut decoder, mut event) = (Decoder::new(CounterBaseline::Zero), Event::default());
    while let Some(packet) = piece(&mut input) {
        let Ok((_, mut position)) = decoder.open(&trace, packet) else { continue };
        let mut events = 0;
        while let Ok(true) = decoder.next(&trace, packet, &mut position, &mut event) {
            for items in [&event.stream_context, &event.context, &event.payload] {
                assert!(items.top.iter().all(|&at| (at as usize) < items.list.len()));
            }
            events += 1;
            assert!(events <= 8 * packet.len(), "an event has at least one bit");
        }
    }
});
