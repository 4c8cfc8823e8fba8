//! Rings written by the test: a memory file with the same page layout.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;

use blkkin_probe_abi::record::{BioRecord, Header, TAG_BIO};
use proptest::prelude::*;

use super::*;
use crate::read::decode::bytes_of;

const PAGE: u64 = 4096;
const BYTES: u64 = 1 << 20;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// Producer side of a ring. Writes never wrap around: the tests write less than the ring holds.
struct Kernel {
    pages: File,
    position: u64,
}

impl Kernel {
    fn new() -> (Kernel, Ring) {
        // SAFETY: the name is a C string, and no other value owns the descriptor.
        let pages = unsafe { File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), 0)) };
        pages.set_len(2 * PAGE + BYTES + 16 * PAGE).unwrap();
        let ring = Ring::map_pages(pages.as_fd(), BYTES as usize).unwrap();
        (Kernel { pages, position: 0 }, ring)
    }

    /// Writes an entry and returns its file offset.
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

    /// Writes a bio that completed at this time.
    fn bio(&mut self, span: u64, time_ns: u64) -> u64 {
        self.put(0, bytes_of(&bio(span, time_ns)))
    }

    /// Consumer position: how much was released.
    fn released(&self) -> u64 {
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
    RingReader::new(rings, ReqOpTable::default())
}

/// Spans of the events below the watermark.
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
fn rings_are_merged_by_time_up_to_the_watermark() {
    let ((mut one, first), (mut two, second)) = (Kernel::new(), Kernel::new());
    [(1, 10), (2, 30), (3, 50)].into_iter().for_each(|(span, time)| _ = one.bio(span, time));
    [(4, 20), (5, 40), (6, 60)].into_iter().for_each(|(span, time)| _ = two.bio(span, time));
    let mut reader = reader(vec![first, second]);
    reader.poll(MonotonicNs(45));
    assert!(merged(&mut reader).is_empty());
    assert_eq!(reader.poll(MonotonicNs(70)), 0);
    assert_eq!(merged(&mut reader), [1, 4, 2, 5]);
    assert_eq!((one.released(), two.released()), (2 * 104, 2 * 104));
    reader.close();
    assert_eq!(merged(&mut reader), [3, 6]);
    assert_eq!(one.released(), one.position);
}

#[test]
fn record_stamped_5_ms_before_a_poll_is_returned_by_it() {
    const MS: u64 = 1_000_000;
    let (mut kernel, ring) = Kernel::new();
    let mut reader = reader(vec![ring]);
    reader.poll(MonotonicNs(100 * MS));
    [(1, 101), (2, 114), (3, 116)].into_iter().for_each(|(span, ms)| _ = kernel.bio(span, ms * MS));
    reader.poll(MonotonicNs(120 * MS));
    assert_eq!(merged(&mut reader), [1, 2]);
    assert_eq!(reader.watermark(), MonotonicNs(115 * MS));
    reader.poll(MonotonicNs(122 * MS));
    assert_eq!(merged(&mut reader), [3], "the previous poll is more recent than that");
    assert_eq!(reader.watermark(), MonotonicNs(120 * MS));
}

#[test]
fn older_entry_after_a_later_one_is_returned_before_the_watermark() {
    let (mut kernel, ring) = Kernel::new();
    kernel.bio(1, 10);
    kernel.bio(2, 120);
    kernel.bio(3, 90);
    kernel.bio(4, 130);
    let mut reader = reader(vec![ring]);
    reader.poll(MonotonicNs(100));
    reader.poll(MonotonicNs(200));
    assert_eq!(merged(&mut reader), [1, 3, 2], "2 is later, and returned because 3 follows it");
    reader.close();
    assert_eq!(merged(&mut reader), [4]);
}

#[test]
fn full_batch_returns_the_time_of_the_earliest_remaining_event() {
    let (mut kernel, ring) = Kernel::new();
    [(1, 10), (2, 20), (3, 40), (4, 30)].into_iter().for_each(|(span, time)| _ = kernel.bio(span, time));
    let mut reader = reader(vec![ring]);
    reader.poll(MonotonicNs(100));
    reader.poll(MonotonicNs(200));
    let mut events = Vec::new();
    assert_eq!(reader.merge(&mut events, 2), Some(MonotonicNs(30)), "4 follows 3");
    assert_eq!(spans(&events), [1, 2]);
    assert_eq!(merged(&mut reader), [4, 3]);
}

#[test]
fn unsubmitted_entry_ends_a_ring_and_discarded_entry_does_not() {
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

/// A USDT program was descheduled between reservation and submission. Entries after that
/// reservation are earlier than any time that could be declared complete.
#[test]
fn watermark_does_not_advance_while_a_ring_is_blocked() {
    let ((mut one, first), (mut two, second)) = (Kernel::new(), Kernel::new());
    one.bio(1, 10);
    let busy = one.put(BUSY, bytes_of(&bio(2, 500)));
    one.bio(3, 30);
    [(4, 20), (5, 40), (6, 300)].into_iter().for_each(|(span, time)| _ = two.bio(span, time));
    let mut reader = reader(vec![first, second]);
    reader.poll(MonotonicNs(100));
    for now in [200, 400] {
        reader.poll(MonotonicNs(now));
        assert_eq!(merged(&mut reader), if now == 200 { vec![1, 4, 5] } else { vec![] });
        assert_eq!(reader.watermark(), MonotonicNs(0), "3 is still pending");
    }
    one.pages.write_all_at(&(size_of::<BioRecord>() as u32).to_ne_bytes(), busy).unwrap();
    reader.poll(MonotonicNs(600));
    assert_eq!(merged(&mut reader), [3, 6, 2], "2 is returned because 3 follows it");
    assert_eq!(reader.watermark(), MonotonicNs(400));
}

#[test]
fn invalid_length_never_leads_outside_the_ring() {
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
        assert_eq!(merged(&mut reader), [2], "reading continues after an unreadable part");
    }
}

/// A step of the test: a record (its CPU, and its age relative to the newest), or a poll with a
/// maximum batch size.
#[derive(Clone, Debug)]
enum Step {
    Write { cpu: usize, before: u64 },
    Poll { max: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..3usize, prop_oneof![3 => Just(0), 1 => 0..1_000_000u64]);
    let step = prop_oneof![
        8 => write.prop_map(|(cpu, before)| Step::Write { cpu, before }),
        1 => (1..20usize).prop_map(|max| Step::Poll { max }),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    /// Time advances by 0.1 ms per record, and polls are at least 2 ms apart.
    #[test]
    fn each_record_is_returned_once_and_none_before_a_published_watermark(steps in steps()) {
        let (mut kernels, rings): (Vec<_>, Vec<_>) = (0..3).map(|_| Kernel::new()).unzip();
        let mut reader = reader(rings);
        let (mut now, mut written, mut watermark) = (10_000_000, 0, MonotonicNs(0));
        let mut found = Vec::new();
        let mut poll = |reader: &mut RingReader, max: usize| {
            loop {
                let mut events = Vec::new();
                let next = reader.merge(&mut events, max);
                for pair in events.windows(2) {
                    assert!(pair[0].time() <= pair[1].time());
                }
                for event in &events {
                    assert!(event.time() >= watermark, "{:?} after {watermark:?}", event.time());
                }
                found.extend(spans(&events));
                watermark = watermark.max(next.unwrap_or(reader.watermark()));
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
                Step::Poll { max } => {
                    now += 2_000_000;
                    reader.poll(MonotonicNs(now));
                    poll(&mut reader, max);
                }
            }
        }
        reader.close();
        poll(&mut reader, 7);
        found.sort_unstable();
        prop_assert_eq!(found, (1..=written).collect::<Vec<_>>());
        prop_assert!(kernels.iter().all(|kernel| kernel.released() == kernel.position));
    }
}
