//! Rings whose kernel is the test: a file in memory with the same pages.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;

use blkkin_probe_abi::record::{BioRecord, Header, TAG_BIO};
use proptest::prelude::*;

use super::*;
use crate::decode::bytes_of;

const PAGE: u64 = 4096;
const BYTES: u64 = 1 << 20;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// The writer's side of a ring. What it writes does not come round: the tests write less than the ring holds.
struct Kernel {
    pages: File,
    position: u64,
}

impl Kernel {
    fn new() -> (Kernel, Ring) {
        // SAFETY: the name is a C string; the descriptor is nobody else's.
        let pages = unsafe { File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), 0)) };
        pages.set_len(2 * PAGE + BYTES + 16 * PAGE).unwrap();
        let ring = Ring::over(pages.as_fd(), BYTES as usize).unwrap();
        (Kernel { pages, position: 0 }, ring)
    }

    /// Where it was written.
    fn put(&mut self, marks: u32, bytes: &[u8]) -> u64 {
        let at = 2 * PAGE + self.position;
        self.pages.write_all_at(&(bytes.len() as u32 | marks).to_ne_bytes(), at).unwrap();
        self.pages.write_all_at(bytes, at + 8).unwrap();
        self.go_to(self.position + 8 + (bytes.len() as u64).next_multiple_of(8));
        at
    }

    fn go_to(&mut self, position: u64) {
        self.position = position;
        self.pages.write_all_at(&position.to_ne_bytes(), PAGE).unwrap();
    }

    /// A bio that ended then.
    fn bio(&mut self, span: u64, time_ns: u64) -> u64 {
        self.put(0, bytes_of(&bio(span, time_ns)))
    }

    /// How much it was given back.
    fn given_back(&self) -> u64 {
        let mut position = [0; 8];
        self.pages.read_exact_at(&mut position, 0).unwrap();
        u64::from_ne_bytes(position)
    }
}

fn bio(span: u64, time_ns: u64) -> BioRecord {
    let header = Header { tag: TAG_BIO, len: size_of::<BioRecord>() as u32, time_ns, ..Header::default() };
    BioRecord { header, span, ..BioRecord::default() }
}

fn reader(rings: Vec<Ring>) -> RingReader {
    RingReader::new(rings, Operations::default())
}

/// Spans below the watermark.
fn merged(reader: &mut RingReader) -> Vec<u64> {
    let mut events = Vec::new();
    assert_eq!(reader.merge(&mut events, usize::MAX), None);
    spans(&events)
}

fn spans(events: &[LayerEvent]) -> Vec<u64> {
    let span = |event: &LayerEvent| match event {
        LayerEvent::Bio(bio) => bio.span.0,
        other => panic!("{other:?}"),
    };
    events.iter().map(span).collect()
}

#[test]
fn rings_are_merged_by_time_and_what_is_later_stays() {
    let ((mut one, first), (mut two, second)) = (Kernel::new(), Kernel::new());
    [(1, 10), (2, 30), (3, 50)].into_iter().for_each(|(span, time)| _ = one.bio(span, time));
    [(4, 20), (5, 40), (6, 60)].into_iter().for_each(|(span, time)| _ = two.bio(span, time));
    let mut reader = reader(vec![first, second]);
    reader.look(MonotonicNs(45));
    assert!(merged(&mut reader).is_empty());
    assert_eq!(reader.look(MonotonicNs(70)), 0);
    assert_eq!(merged(&mut reader), [1, 4, 2, 5]);
    assert_eq!((one.given_back(), two.given_back()), (2 * 104, 2 * 104));
    reader.close();
    assert_eq!(merged(&mut reader), [3, 6]);
    assert_eq!(one.given_back(), one.position);
}

#[test]
fn what_was_stamped_5_ms_before_a_drain_does_not_wait_for_the_next() {
    const MS: u64 = 1_000_000;
    let (mut kernel, ring) = Kernel::new();
    let mut reader = reader(vec![ring]);
    reader.look(MonotonicNs(100 * MS));
    [(1, 101), (2, 114), (3, 116)].into_iter().for_each(|(span, ms)| _ = kernel.bio(span, ms * MS));
    reader.look(MonotonicNs(120 * MS));
    assert_eq!(merged(&mut reader), [1, 2]);
    assert_eq!(reader.watermark(), MonotonicNs(115 * MS));
    reader.look(MonotonicNs(122 * MS));
    assert_eq!(merged(&mut reader), [3], "the drain before is nearer than that");
    assert_eq!(reader.watermark(), MonotonicNs(120 * MS));
}

#[test]
fn an_elder_behind_a_later_one_comes_before_the_watermark_does() {
    let (mut kernel, ring) = Kernel::new();
    kernel.bio(1, 10);
    kernel.bio(2, 120);
    kernel.bio(3, 90);
    kernel.bio(4, 130);
    let mut reader = reader(vec![ring]);
    reader.look(MonotonicNs(100));
    reader.look(MonotonicNs(200));
    assert_eq!(merged(&mut reader), [1, 3, 2], "2 is later, and comes because 3 lies behind it");
    reader.close();
    assert_eq!(merged(&mut reader), [4]);
}

#[test]
fn a_batch_that_is_full_says_before_which_time_nothing_is_left() {
    let (mut kernel, ring) = Kernel::new();
    [(1, 10), (2, 20), (3, 40), (4, 30)].into_iter().for_each(|(span, time)| _ = kernel.bio(span, time));
    let mut reader = reader(vec![ring]);
    reader.look(MonotonicNs(100));
    reader.look(MonotonicNs(200));
    let mut events = Vec::new();
    assert_eq!(reader.merge(&mut events, 2), Some(MonotonicNs(30)), "4 lies behind 3");
    assert_eq!(spans(&events), [1, 2]);
    assert_eq!(merged(&mut reader), [4, 3]);
}

#[test]
fn what_is_not_written_yet_ends_a_ring_and_what_was_given_up_does_not() {
    let (mut kernel, ring) = Kernel::new();
    kernel.put(DISCARDED, bytes_of(&bio(9, 5)));
    kernel.bio(1, 10);
    let busy = kernel.put(BUSY, bytes_of(&bio(2, 20)));
    kernel.bio(3, 30);
    let mut reader = reader(vec![ring]);
    reader.close();
    assert_eq!(merged(&mut reader), [1]);
    kernel.pages.write_all_at(&(size_of::<BioRecord>() as u32).to_ne_bytes(), busy).unwrap();
    assert_eq!(merged(&mut reader), [2, 3]);
    assert_eq!(reader.recorded.malformed, 0);
}

/// A program of a probe is put off its CPU where it has room and has not written: what others wrote behind it is earlier than all
/// that could be said to be known.
#[test]
fn while_a_ring_stops_at_what_is_not_written_no_time_is_said_to_be_known() {
    let ((mut one, first), (mut two, second)) = (Kernel::new(), Kernel::new());
    one.bio(1, 10);
    let busy = one.put(BUSY, bytes_of(&bio(2, 500)));
    one.bio(3, 30);
    [(4, 20), (5, 40), (6, 300)].into_iter().for_each(|(span, time)| _ = two.bio(span, time));
    let mut reader = reader(vec![first, second]);
    reader.look(MonotonicNs(100));
    for now in [200, 400] {
        reader.look(MonotonicNs(now));
        assert_eq!(merged(&mut reader), if now == 200 { vec![1, 4, 5] } else { vec![] });
        assert_eq!(reader.watermark(), MonotonicNs(0), "3 is still to come");
    }
    one.pages.write_all_at(&(size_of::<BioRecord>() as u32).to_ne_bytes(), busy).unwrap();
    reader.look(MonotonicNs(600));
    assert_eq!(merged(&mut reader), [3, 6, 2], "2 comes because 3 lies behind it");
    assert_eq!(reader.watermark(), MonotonicNs(400));
}

#[test]
fn no_length_leads_out_of_the_ring() {
    for len in [1 << 29, 5000, 104] {
        let (mut kernel, ring) = Kernel::new();
        kernel.bio(1, 10);
        let at = kernel.put(0, &[0; 16]);
        kernel.pages.write_all_at(&(len as u32).to_ne_bytes(), at).unwrap();
        let mut reader = reader(vec![ring]);
        reader.close();
        assert_eq!(merged(&mut reader), [1]);
        assert_eq!(reader.recorded.malformed, 1);
        kernel.bio(2, 20);
        reader.close();
        assert_eq!(merged(&mut reader), [2], "it goes on behind what cannot be read");
    }
}

/// What happens to rings: a record (CPU, and how much before the latest it was stamped), or a drain of so many.
#[derive(Clone, Debug)]
enum Step {
    Write { cpu: usize, before: u64 },
    Drain { most: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..3usize, prop_oneof![3 => Just(0), 1 => 0..1_000_000u64]);
    let step = prop_oneof![
        8 => write.prop_map(|(cpu, before)| Step::Write { cpu, before }),
        1 => (1..20usize).prop_map(|most| Step::Drain { most }),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    /// Time goes on by 0.1 ms with each record, and a drain comes 2 ms after the one before at the earliest.
    #[test]
    fn each_record_comes_once_and_none_behind_a_watermark_that_was_said(steps in steps()) {
        let (mut kernels, rings): (Vec<_>, Vec<_>) = (0..3).map(|_| Kernel::new()).unzip();
        let mut reader = reader(rings);
        let (mut now, mut written, mut said) = (10_000_000, 0, MonotonicNs(0));
        let mut found = Vec::new();
        let mut drain = |reader: &mut RingReader, most: usize| {
            loop {
                let mut events = Vec::new();
                let next = reader.merge(&mut events, most);
                for pair in events.windows(2) {
                    assert!(pair[0].time() <= pair[1].time());
                }
                for event in &events {
                    assert!(event.time() >= said, "{:?} after {said:?}", event.time());
                }
                found.extend(spans(&events));
                said = said.max(next.unwrap_or(reader.watermark()));
                if next.is_none() {
                    break;
                }
            }
        };
        for step in steps {
            match step {
                Step::Write { cpu, before } => {
                    now += 100_000;
                    written += 1;
                    kernels[cpu].bio(written, now - before);
                }
                Step::Drain { most } => {
                    now += 2_000_000;
                    reader.look(MonotonicNs(now));
                    drain(&mut reader, most);
                }
            }
        }
        reader.close();
        drain(&mut reader, 7);
        found.sort_unstable();
        prop_assert_eq!(found, (1..=written).collect::<Vec<_>>());
        prop_assert!(kernels.iter().all(|kernel| kernel.given_back() == kernel.position));
    }
}
