//! Summary lines on NBD client requests (`--nbd`).

use blkkin_aggregator::stage::link::LinkStats;
use blkkin_tracer::enrich::nbd::NbdStats;

/// Returns the summary lines, the most severe last.
pub(crate) fn notes(nbd: &NbdStats, links: Option<&LinkStats>) -> Vec<String> {
    let mut first = format!("nbd: {} requests, {} replies", nbd.requests, nbd.replies);
    // An agent's endpoints are linked by the aggregator.
    if let Some(links) = links {
        first += &format!(", {} linked to a daemon's span", (links.matched - links.disks_matched) / 2);
    }
    let mut all = vec![first];
    let mut add = |count: u64, text: &str| {
        if count > 0 {
            all.push(format!("nbd: {count} {text}"));
        }
    };
    add(nbd.unanswered, "requests have no observed reply");
    add(nbd.disconnected, "of these were on a connection that closed first");
    add(nbd.retransmits, "segments with bytes of requests were retransmitted by TCP");
    add(nbd.not_sent, "times a socket was full, and its client retried the request");
    add(nbd.unmatched_replies, "replies without a request");
    add(
        links.map_or(0, |links| links.refused - links.disks_refused),
        "endpoints of requests were refused: several have the same key",
    );
    add(nbd.cut_headers, "buffers with a partial header, or more than one: the rest was not parsed");
    add(nbd.in_data, "sends looked like requests within expected data, and were treated as data");
    add(nbd.extended, "requests had extended headers, which are not supported");
    add(nbd.untracked, "requests were not traced, because more connections are open than the table holds");
    add(nbd.dropped, "records were lost because the rings were full");
    let missing = nbd.fired.saturating_sub(nbd.recorded + nbd.dropped);
    add(missing, "records were written and never read");
    all
}
