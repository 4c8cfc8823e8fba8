//! One of many programs that come and go, and an account of what it has said that outlives it, however it ends.
//!
//! `crowd FILE EVERY_US GROUPS`: says three events (a span's begin, a number, its end) so many times, 0 for ever, with a pause between.
//! FILE has five numbers of 64 bits: its process; what it will at most have given to LTTng, written before each group; what it has
//! given, written after it; how many groups were made while nobody listened yet; and the µs until somebody did. A process that is
//! killed inside a group has given something between the second and the third.

#![allow(clippy::unwrap_used, reason = "it fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use blkkin_ust::{Span, SpanKind};

const OF_A_GROUP: u64 = 3;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let file = File::create(&words[1]).unwrap();
    let [every_us, groups] = [2, 3].map(|place| words[place].parse::<u64>().unwrap());
    let write = |place: u64, number: u64| file.write_all_at(&number.to_ne_bytes(), place * 8).unwrap();
    blkkin_ust::init().unwrap();
    (1..5).for_each(|place| write(place, 0));
    write(0, u64::from(std::process::id()));
    let (mut before, mut made) = (0, 0);
    while groups == 0 || made < groups {
        let given = blkkin_ust::stats().seen_enabled;
        write(1, given + OF_A_GROUP);
        let span = Span::root(SpanKind::Internal, c"group", c"crowd");
        span.set_number(c"number", made as i64);
        before += u64::from(!span.is_recording());
        drop(span);
        let counts = blkkin_ust::stats();
        write(2, counts.seen_enabled);
        write(3, before);
        write(4, counts.time_to_enabled.unwrap_or_default().as_micros() as u64);
        made += 1;
        std::thread::sleep(Duration::from_micros(every_us));
    }
    write(1, blkkin_ust::stats().seen_enabled);
}
