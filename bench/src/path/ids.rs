//! Trace ids in the traffic to Zipkin.
//!
//! A trace id is 16 bytes in Zipkin's protobuf. Its first eight bytes identify the source; the
//! traffic is searched for them.

use std::sync::Arc;

use super::timeline::{Checkpoint, TraceTimelines};
use crate::process::now_us;

const ID: usize = 16;

/// Returns an observer that records the traces in the traffic.
pub(super) fn observer(timelines: Arc<TraceTimelines>) -> impl FnMut(&[u8]) + Send + 'static {
    // A possible start of an id is kept for the next bytes.
    let mut pending = Vec::new();
    move |bytes| {
        pending.extend_from_slice(bytes);
        note(&pending, &timelines);
        pending.drain(..pending.len().saturating_sub(ID - 1));
    }
}

fn note(bytes: &[u8], timelines: &TraceTimelines) {
    let Some(prefix) = timelines.prefix() else { return };
    let now = now_us();
    for id in ids(bytes, prefix) {
        timelines.note(id, Checkpoint::Posted, now);
    }
}

fn ids(bytes: &[u8], prefix: [u8; 8]) -> impl Iterator<Item = u128> {
    let whole = bytes.windows(ID).filter(move |window| window[0] == prefix[0] && window.starts_with(&prefix));
    whole.filter_map(|window| window.try_into().ok().map(u128::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_at_any_offset() {
        let id = 0x0102_0304_0506_0708_1112_1314_1516_1718_u128;
        let bytes = [&[1, 2, 3][..], &id.to_be_bytes(), &[9], &(id + 1).to_be_bytes()[..15]].concat();
        assert_eq!(ids(&bytes, [1, 2, 3, 4, 5, 6, 7, 8]).collect::<Vec<_>>(), [id]);
    }
}
