//! Records of the eBPF programs: decoded, translated into events, and NBD replies matched with
//! their requests. The input is a sequence of ring entries, each aligned to 8 bytes.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_tracer::attach::req_op::ReqOpTable;
use blkkin_tracer::enrich::nbd::NbdRequests;
use blkkin_tracer::read::decode::{Record, decode};
use blkkin_tracer::read::translate;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::Source;

fuzz_target!(|bytes: &[u8]| {
    let mut words = vec![0_u64; bytes.len().div_ceil(8)];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut filled = [0; 8];
        filled[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(filled);
    }
    let (operations, mut requests, mut events) = (ReqOpTable::default(), None, Vec::new());
    let mut rest = &words[..];
    while let Some(first) = rest.first() {
        let length = (first >> 32) as usize;
        // SAFETY: initialized words, viewed as their bytes.
        let all = unsafe { std::slice::from_raw_parts(rest.as_ptr().cast::<u8>(), rest.len() * 8) };
        let entry = &all[..length.min(all.len())];
        if let Ok(record) = decode(entry) {
            let requests = requests.get_or_insert_with(|| NbdRequests::new(Source::NONE));
            match record {
                Record::NbdRequest(record) => requests.on_request(record, &mut events),
                Record::NbdReply(record) => requests.on_reply(record, &mut events),
                Record::NbdRetransmit(record) => requests.on_retransmit(record),
                record => _ = translate::append(record, &operations, &mut events),
            }
        }
        rest = rest.get(length.div_ceil(8).max(1)..).unwrap_or_default();
    }
    if let Some(mut requests) = requests {
        requests.finish(MonotonicNs(u64::MAX), &mut events);
    }
});
