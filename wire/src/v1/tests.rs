//! Round trips: encoded batches decode to the same values, and any bytes yield a batch or an error.

mod golden;
mod strategies;

use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::async_io::{AsyncDescriptor, AsyncInterface, AsyncIoEvent, AsyncIoOutcome};
use crate::batch::{EventBatch, RecordStats, SourceStats};
use crate::clock::{ClockAnchor, ClockOffset, DurationNs, MonotonicNs, OptionalNs, WallclockNs};
use crate::crash_report::{CrashedRun, LossReport, RecordCounts};
use crate::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SAMPLE_RATE_ALL, SpanStatus};
use crate::event::*;
use crate::head_sampling::HeadSampling;
use crate::ids::*;
use crate::page_origin::{
    PageKind, PageOriginEvent, PagePart, PageWriter, Unattributed, WritebackReason, WriterEvidence,
};
use crate::process_context::{Attribute, AttributeValue, ProcessContextEvent};
use crate::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use crate::span::SpanKind;
use crate::syscalls::SyscallId;
use crate::thread_attributes::{ThreadAttribute, ThreadAttributes};
use crate::virtual_machine::{HostProcess, MachineDisk, NbdDisk, VirtualMachineEvent};
use golden::sample_batch;
use strategies::batch;

proptest! {
    #[test]
    fn batch_survives_a_round_trip(batch in batch()) {
        prop_assert_eq!(decode(&encode(&batch)), Ok(Decoded { batch, calls_unknown: 0 }));
    }

    #[test]
    fn peek_agrees_with_decode(batch in batch()) {
        let peeked = peek(&encode(&batch)).unwrap();
        let EventBatch { source, sequence, events, .. } = &batch;
        prop_assert_eq!(peeked, Peeked {
            source: *source, sequence: *sequence, events: events.len() as u64, counts: RecordCounts::of(events),
        });
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = (decode(&bytes), peek(&bytes));
    }

    #[test]
    fn corrupt_batch_does_not_panic(
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
fn unknown_version_is_rejected() {
    let mut bytes = encode(&sample_batch());
    assert_eq!(bytes[..2], [1 << 3, VERSION as u8], "field 1 comes first");
    bytes[1] = 2;
    assert_eq!(decode(&bytes), Err(Malformed::Version(2)));
    assert_eq!(decode(&[]), Err(Malformed::Version(0)));
}

#[test]
fn unknown_field_is_ignored() {
    let batch = sample_batch();
    let mut bytes = encode(&batch);
    // Field 1000, a varint.
    bytes.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
}

/// A reader with the older schema sees the same bytes and one additional field.
#[test]
fn crashed_runs_are_one_additional_field() {
    let fired = RecordCounts { calls: 7, ..RecordCounts::default() };
    let remains = LossReport { fired, ..LossReport::default() };
    let crashed_runs = vec![
        CrashedRun { epoch: Some(StartEpoch(3)), losses: Some(remains) },
        CrashedRun { epoch: None, losses: None },
    ];
    let batch = EventBatch { crashed_runs, ..sample_batch() };
    let bytes = encode(&batch);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
    // Field 9, twice: an epoch with 7 system calls fired and no other counts; then an unknown start
    // with unknown losses.
    let first = [0x4a, 21, 9, 3, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, 8, 7, 0x22, 0, 0x2a, 0, 0x32, 0, 0x3a, 0];
    let expected = [&first[..], &[0x4a, 2, 0x10, 1]].concat();
    let at = bytes.windows(expected.len()).position(|window| window == expected).unwrap();
    assert_eq!([&bytes[..at], &bytes[at + expected.len()..]].concat(), encode(&sample_batch()));
}

#[test]
fn unknown_system_call_is_skipped_and_counted() {
    let batch = sample_batch();
    let at = batch.events.iter().position(|event| matches!(event, LayerEvent::Syscall(_))).unwrap();
    let (name, bytes) = ("pwrite64".as_bytes(), encode(&batch));
    let offset = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let mut newer = bytes.clone();
    newer[offset..offset + name.len()].fill(b'?');
    let decoded = decode(&newer).unwrap();
    assert_eq!((decoded.batch.events.len(), decoded.calls_unknown), (batch.events.len() - 1, 1));
    assert_eq!(decoded.batch.events[at..], batch.events[at + 1..], "other events are unchanged");
}

#[test]
fn error_names_the_column_of_wrong_length() {
    use prost::Message;
    let changed = |change: fn(&mut message::EventBatch)| {
        let mut message = message::EventBatch::decode(encode(&sample_batch()).as_slice()).unwrap();
        change(&mut message);
        decode(&message.encode_to_vec()).unwrap_err()
    };
    assert_eq!(changed(|m| m.bio_events.bytes.clear()), Malformed::Short("BioEvents.bytes"));
    assert_eq!(changed(|m| m.syscall_events.duration.push(1)), Malformed::Long("SyscallEvents.duration"));
    assert_eq!(changed(|m| m.times.push(1)), Malformed::Long("EventBatch.times"));
    assert_eq!(changed(|m| m.kinds.push(9)), Malformed::Short("EventBatch.times"));
    let wrong = Malformed::Value { column: "CommitEvents.task", value: 99 };
    assert_eq!(changed(|m| m.commit_events.task[0] = 99), wrong);
}

/// A ratio below the smallest one is no value of this field, whatever wrote it.
#[test]
fn a_ratio_that_does_not_exist_is_refused() {
    let mut batch = sample_batch();
    batch.events.retain(|event| matches!(event, LayerEvent::Syscall(_)));
    let count = batch.events.len();
    for event in &mut batch.events {
        if let LayerEvent::Syscall(call) = event {
            call.sampling = HeadSampling::MIN_RATIO;
        }
    }
    let bytes = encode(&batch);
    // The column: its key (field 29, length-delimited), its length, and a 20 for each call.
    let mut column = vec![0xea, 0x01, count as u8];
    column.extend(vec![20; count]);
    let at = bytes.windows(column.len()).position(|window| window == column).expect("the column");
    assert!(decode(&bytes).is_ok());
    for bad in [21, 64, 127] {
        let mut changed = bytes.clone();
        changed[at + 3] = bad;
        let error = decode(&changed).expect_err("not a ratio");
        assert!(error.to_string().contains("SyscallEvents.sampling"), "{error}");
    }
}
