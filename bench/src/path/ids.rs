//! Traces that go by on their way to Zipkin.
//!
//! A trace's id is 16 bytes as they are in Zipkin's protobuf, the first eight of them its source's: these are looked for in
//! what goes by.

use std::sync::Arc;

use super::journey::{Journeys, Point};
use crate::process::now_us;

const ID: usize = 16;

/// Notes the traces in what it is shown.
pub(super) fn noting(journeys: Arc<Journeys>) -> impl FnMut(&[u8]) + Send + 'static {
    // What may be the begin of an id stands before what comes next.
    let mut seen = Vec::new();
    move |bytes| {
        seen.extend_from_slice(bytes);
        note(&seen, &journeys);
        seen.drain(..seen.len().saturating_sub(ID - 1));
    }
}

fn note(bytes: &[u8], journeys: &Journeys) {
    let Some(prefix) = journeys.prefix() else { return };
    let now = now_us();
    for id in ids(bytes, prefix) {
        journeys.note(id, Point::Posted, now);
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
    fn ids_are_found_wherever_they_stand() {
        let id = 0x0102_0304_0506_0708_1112_1314_1516_1718_u128;
        let bytes = [&[1, 2, 3][..], &id.to_be_bytes(), &[9], &(id + 1).to_be_bytes()[..15]].concat();
        assert_eq!(ids(&bytes, [1, 2, 3, 4, 5, 6, 7, 8]).collect::<Vec<_>>(), [id]);
    }
}
