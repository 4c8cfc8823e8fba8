//! Tags in the order in which they are put in.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::span::TagValue;

/// A span's tags under construction.
#[derive(Debug)]
pub(super) struct Tags(pub(super) Vec<(Cow<'static, str>, TagValue)>);

impl Tags {
    /// Room for a call's on a file, of which there are 24.
    pub(super) fn of_a_call() -> Self {
        Tags(Vec::with_capacity(28))
    }

    /// Room for a bio's or a request's: 6 to 14.
    pub(super) fn of_block_io() -> Self {
        Tags(Vec::with_capacity(14))
    }

    pub(super) fn text(&mut self, key: &'static str, value: &'static str) {
        self.0.push((key.into(), TagValue::Text(Cow::Borrowed(value))));
    }

    pub(super) fn owned(&mut self, key: &'static str, value: impl Into<String>) {
        self.0.push((key.into(), TagValue::Text(Cow::Owned(value.into()))));
    }

    /// In words that are not ours.
    pub(super) fn said(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned().into(), TagValue::Text(Cow::Owned(value.to_owned()))));
    }

    /// The same of a number.
    pub(super) fn said_number(&mut self, key: &str, value: i64) {
        self.0.push((key.to_owned().into(), TagValue::Number(value)));
    }

    pub(super) fn shared(&mut self, key: &'static str, value: &Arc<str>) {
        self.0.push((key.into(), TagValue::Shared(value.clone())));
    }

    /// What does not fit is not said: no counter of the kernel's gets there.
    pub(super) fn number(&mut self, key: &'static str, value: impl TryInto<i64>) {
        if let Ok(value) = value.try_into() {
            self.0.push((key.into(), TagValue::Number(value)));
        }
    }

    pub(super) fn maybe(&mut self, key: &'static str, value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            self.number(key, value);
        }
    }

    /// Only if there are any.
    pub(super) fn count(&mut self, key: &'static str, value: u32) {
        if value != 0 {
            self.number(key, value);
        }
    }

    /// Only if it took any time.
    pub(super) fn duration(&mut self, key: &'static str, value: DurationNs) {
        if value.0 != 0 {
            self.number(key, value.0);
        }
    }

    /// The raw times: what the kernel's clock said, untouched by any conversion.
    pub(super) fn times(&mut self, start: MonotonicNs, end: MonotonicNs) {
        self.number("blkkin.start.ns", start.0);
        self.number("blkkin.duration.ns", end.since(start).0);
    }
}
