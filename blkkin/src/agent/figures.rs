//! Figures of what waits, and of what earlier starts have lost.

use std::time::SystemTime;

use blkkin_bus::spool::SpoolCounts;
use blkkin_tracer::nbd::NbdBooks;
use blkkin_wire::batch::Accounts;
use blkkin_wire::killed::{Killed, Tally};

use crate::service::{Family, Kind};

/// Of a spool.
pub(super) fn of_spool(counts: &SpoolCounts, failures: u64) -> Vec<Family> {
    let one = |kind, name, help, value: u64| Family::one(kind, name, help, value as f64);
    let age =
        counts.oldest.and_then(|oldest| SystemTime::now().duration_since(oldest).ok()).unwrap_or_default();
    vec![
        one(Kind::Gauge, "spool_bytes", "Bytes of the files in the spool", counts.bytes),
        one(Kind::Gauge, "spool_batches", "Batches that the cluster has not acknowledged", counts.batches),
        Family::one(
            Kind::Gauge,
            "spool_oldest_seconds",
            "Age of the oldest file that holds such a batch",
            age.as_secs_f64(),
        ),
        one(Kind::Counter, "spool_batches_found", "Batches that earlier starts had left", counts.found),
        one(Kind::Counter, "spool_batches_written", "Batches put into the spool", counts.written),
        one(Kind::Counter, "spool_batches_read", "Batches read from it to be sent", counts.read_back),
        one(Kind::Counter, "spool_batches_torn", "Batches that could not be read any more", counts.torn),
        one(Kind::Counter, "spool_failures", "Times that its disk did not work", failures),
    ]
}

/// Of the spans that programs work for.
pub(super) fn of_contexts(accounts: &Accounts) -> [Family; 3] {
    let processes = Family::one(
        Kind::Gauge,
        "contexts_processes",
        "Processes that publish the span that each thread works for",
        accounts.contexts_publishing as f64,
    );
    let calls = [
        ("faulted", accounts.contexts_faulted),
        ("unread", accounts.contexts_unread),
        ("invalid", accounts.contexts_invalid),
        ("attributes cut", accounts.attributes_cut),
        ("attributes unread", accounts.attributes_unread),
    ];
    let skipped = [("no right", accounts.contexts_denied), ("no room", accounts.contexts_no_room)];
    [
        processes,
        Family::by(
            "what",
            "contexts_calls",
            "Calls whose span could not be read at entry, nor at return, or is none; or whose attributes were not read",
            calls,
        ),
        Family::by("why", "contexts_processes_skipped", "Processes of which it is not known", skipped),
    ]
}

/// Of what processes say of themselves.
pub(super) fn of_resources(accounts: &Accounts) -> [Family; 2] {
    let failures = [
        ("malformed", accounts.resources_malformed),
        ("unread", accounts.resources_unread),
        ("no room", accounts.resources_no_room),
    ];
    [
        Family::one(
            Kind::Gauge,
            "resources_processes",
            "Processes that say who they are",
            accounts.resources_publishing as f64,
        ),
        Family::by("why", "resources_failed", "Times that a process says who it is, in vain", failures),
    ]
}

/// Of what programs ask NBD servers.
pub(super) fn of_asking(books: &NbdBooks) -> [Family; 5] {
    let one = |name, help, value: u64| Family::one(Kind::Counter, name, help, value as f64);
    let seen = books.unanswered - books.no_room - books.cut_off;
    let unanswered =
        [("connection ended", books.cut_off), ("no room", books.no_room), ("answer not seen", seen)];
    let unseen = [
        ("buffer in parts", books.cut),
        ("taken for data", books.in_data),
        ("extended header", books.extended),
        ("answer to a stranger", books.strangers),
        ("record dropped", books.dropped),
    ];
    [
        one("nbd_requests", "Requests that NBD clients gave to their sockets", books.asked - books.withdrawn),
        one("nbd_requests_answered", "Of these, those whose answer was seen", books.answered),
        Family::by("why", "nbd_requests_unanswered", "Of these, those given out without one", unanswered),
        Family::by("why", "nbd_unseen", "Sends, receives and records that were not followed", unseen),
        one("nbd_segments_resent", "Segments of such requests that TCP sent once more", books.resent),
    ]
}

/// Of those that were killed before. What is unknown has no number, and is counted as such.
pub(super) fn of_killed(killed: &[Killed]) -> Vec<Family> {
    let known = killed.iter().filter_map(|killed| killed.remains);
    let (lost, doubtful) = known.fold((Tally::default(), Tally::default()), |(lost, doubtful), remains| {
        (lost.plus(&remains.lost()), doubtful.plus(&remains.doubtful))
    });
    let unknown = killed.iter().filter(|killed| killed.remains.is_none()).count() as u64;
    let starts = [("known", killed.len() as u64 - unknown), ("unknown", unknown)];
    let kinds = |tally: Tally| ["call", "bio", "request", "commit", "name"].into_iter().zip(tally.numbers());
    let mut families = vec![Family::by(
        "losses",
        "killed_starts",
        "Earlier starts that were killed, or may have been where losses are unknown",
        starts,
    )];
    if unknown == 0 {
        families.push(Family::by("kind", "killed_records_lost", "Records that these have lost", kinds(lost)));
        let help = "Of these sent and not acknowledged: the cluster may have them";
        families.push(Family::by("kind", "killed_records_doubtful", help, kinds(doubtful)));
    }
    families
}
