//! A machine that was cloned while its agent ran: both continue with the same source, sequence
//! numbers and span ids.

use std::collections::HashSet;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::LayerEvent;

use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::trace::{Root, Trace};

/// Returns two batches of a call with a bio and its request: the call ends in the second one. Both
/// machines give the same ids to them, at times of their own.
fn machine(begin: u64) -> [EventBatch; 2] {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (begin + 1, begin + 9));
    let call = fixtures::call_with(1, (begin, begin + 20), 1);
    [
        batch(1, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], begin + 10),
        batch(2, vec![LayerEvent::Syscall(call)], begin + 30),
    ]
}

fn time_of_root(trace: &Trace) -> Option<u64> {
    if let Root::Call(call) = &trace.root { Some(call.enter.0) } else { None }
}

#[test]
fn two_agents_of_one_start_are_noticed_and_no_trace_has_parts_of_both() {
    let ([first, second], [other_first, other_second]) = (machine(100), machine(103));
    // The order of arrival in which one machine's call finds the other's bio.
    let arrivals = [&first, &other_first, &other_second, &second, &other_first, &second];
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    for batch in arrivals {
        joiner.apply(batch.clone(), &mut out);
    }
    for trace in &out {
        let times = trace.bios.iter().map(|bio| bio.queue.0 - 1).chain(time_of_root(trace));
        let machines: HashSet<u64> = times.collect();
        assert!(machines.len() <= 1, "parts of two machines: {trace:?}");
    }
    let ids: HashSet<_> = out.iter().map(|trace| trace.id).collect();
    assert_eq!(ids.len(), out.len(), "no two have one id");
    let roots: HashSet<u64> = out.iter().filter_map(time_of_root).collect();
    assert_eq!(roots, HashSet::from([100, 103]), "no machine's call is lost");
    let stats = joiner.stats();
    assert!(stats.balances(), "{stats:?}");
    assert_eq!((stats.batches_contested, stats.batches_repeated), (3, 2), "both arrived twice");
}
