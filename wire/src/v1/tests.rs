//! What is written is read again, whatever it is; and whatever is read is a batch or an error.

mod ever;
mod made;

use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::attributes::{ThreadAttribute, ThreadAttributes};
use crate::batch::{Account, Accounts, EventBatch};
use crate::calls::CallId;
use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::event::*;
use crate::ids::*;
use crate::killed::{Killed, Remains, Tally};
use crate::meeting::{Meeting, MeetingEvent, Side};
use crate::operation::{Note, NoteValue, OperationEvent, Outcome, WHOLE};
use crate::process::{Attribute, AttributeValue, ProcessEvent};
use crate::span::SpanKind;
use ever::known;
use made::batch;

proptest! {
    #[test]
    fn what_is_written_is_read_again(batch in batch()) {
        prop_assert_eq!(decode(&encode(&batch)), Ok(Decoded { batch, calls_unknown: 0 }));
    }

    #[test]
    fn a_look_sees_what_decoding_gives(batch in batch()) {
        let peeked = peek(&encode(&batch)).unwrap();
        let EventBatch { source, sequence, events, .. } = &batch;
        prop_assert_eq!(peeked, Peeked {
            source: *source, sequence: *sequence, events: events.len() as u64, tally: Tally::of(events),
        });
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = (decode(&bytes), peek(&bytes));
    }

    #[test]
    fn a_batch_with_bytes_changed_is_a_batch_or_an_error(
        batch in batch(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut: prop::sample::Index
    ) {
        let mut bytes = encode(&batch);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes);
        let _ = decode(&bytes[..cut.index(bytes.len())]);
    }
}

#[test]
fn another_version_is_refused_by_its_number() {
    let mut bytes = encode(&known());
    assert_eq!(bytes[..2], [1 << 3, VERSION as u8], "field 1 comes first");
    bytes[1] = 2;
    assert_eq!(decode(&bytes), Err(Malformed::Version(2)));
    assert_eq!(decode(&[]), Err(Malformed::Version(0)));
}

#[test]
fn a_field_that_is_not_known_is_ignored() {
    let batch = known();
    let mut bytes = encode(&batch);
    // Field 1000, a varint.
    bytes.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
}

/// As it is for whoever reads by the schema of before it: the same bytes, and one field more.
#[test]
fn who_was_killed_is_said_behind_what_a_batch_has_always_said() {
    let tally = Tally { calls: 7, ..Tally::default() };
    let remains = Remains { fired: tally, ..Remains::default() };
    let killed = vec![
        Killed { epoch: Some(StartEpoch(3)), remains: Some(remains) },
        Killed { epoch: None, remains: None },
    ];
    let batch = EventBatch { killed, ..known() };
    let bytes = encode(&batch);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
    // Field 9, twice: an epoch, of the fired 7 calls, of the rest nothing; then only that it is not known.
    let first = [0x4a, 21, 9, 3, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, 8, 7, 0x22, 0, 0x2a, 0, 0x32, 0, 0x3a, 0];
    let said = [&first[..], &[0x4a, 2, 0x10, 1]].concat();
    let at = bytes.windows(said.len()).position(|window| window == said).unwrap();
    assert_eq!([&bytes[..at], &bytes[at + said.len()..]].concat(), encode(&known()));
}

#[test]
fn a_call_that_is_not_known_is_left_out_and_counted() {
    let batch = known();
    let at = batch.events.iter().position(|event| matches!(event, LayerEvent::Call(_))).unwrap();
    let (name, bytes) = ("pwrite64".as_bytes(), encode(&batch));
    let place = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let mut newer = bytes.clone();
    newer[place..place + name.len()].fill(b'?');
    let decoded = decode(&newer).unwrap();
    assert_eq!((decoded.batch.events.len(), decoded.calls_unknown), (batch.events.len() - 1, 1));
    assert_eq!(decoded.batch.events[at..], batch.events[at + 1..], "and the others are as they were");
}

#[test]
fn a_column_too_short_or_too_long_is_named() {
    use prost::Message;
    let changed = |change: fn(&mut message::EventBatch)| {
        let mut message = message::EventBatch::decode(encode(&known()).as_slice()).unwrap();
        change(&mut message);
        decode(&message.encode_to_vec()).unwrap_err()
    };
    assert_eq!(changed(|m| m.bio_events.bytes.clear()), Malformed::Short("BioEvents.bytes"));
    assert_eq!(changed(|m| m.call_events.took.push(1)), Malformed::Long("CallEvents.took"));
    assert_eq!(changed(|m| m.times.push(1)), Malformed::Long("EventBatch.times"));
    assert_eq!(changed(|m| m.kinds.push(9)), Malformed::Short("EventBatch.times"));
    let wrong = Malformed::Value { column: "CommitEvents.task", value: 99 };
    assert_eq!(changed(|m| m.commit_events.task[0] = 99), wrong);
}
