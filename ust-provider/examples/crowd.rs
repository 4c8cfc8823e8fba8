//! A short-lived program that keeps its event counts in a file, which outlives a kill.
//!
//! `crowd FILE EVERY_US GROUPS`: emits GROUPS groups of three events (begin, number and end of a
//! span) with a pause of EVERY_US in between; 0 groups is without end.
//!
//! FILE has five 64-bit numbers: the process id; an upper bound of the events passed to LTTng,
//! written before each group; the events passed, written after it; the groups before the events
//! were enabled; and the µs until they were. A process that is killed inside a group has passed a
//! number between the third and the second.

#![allow(clippy::unwrap_used, reason = "it fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use blkkin_ust::{Span, SpanKind};

const EVENTS_PER_GROUP: u64 = 3;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let file = File::create(&args[1]).unwrap();
    let [every_us, groups] = [2, 3].map(|index| args[index].parse::<u64>().unwrap());
    let write = |index: u64, number: u64| file.write_all_at(&number.to_ne_bytes(), index * 8).unwrap();
    blkkin_ust::init().unwrap();
    (1..5).for_each(|index| write(index, 0));
    write(0, u64::from(std::process::id()));
    let (mut before, mut groups_done) = (0, 0);
    while groups == 0 || groups_done < groups {
        let passed = blkkin_ust::stats().seen_enabled;
        write(1, passed + EVENTS_PER_GROUP);
        let span = Span::root(SpanKind::Internal, c"group", c"crowd");
        span.set_number(c"number", groups_done as i64);
        before += u64::from(!span.is_recording());
        drop(span);
        let stats = blkkin_ust::stats();
        write(2, stats.seen_enabled);
        write(3, before);
        write(4, stats.time_to_enabled.unwrap_or_default().as_micros() as u64);
        groups_done += 1;
        std::thread::sleep(Duration::from_micros(every_us));
    }
    write(1, blkkin_ust::stats().seen_enabled);
}
