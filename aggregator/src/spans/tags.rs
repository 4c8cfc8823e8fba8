//! Tags of a span, in the order in which they are added.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::span::TagValue;

/// Tags of a span under construction.
#[derive(Debug)]
pub(super) struct Tags(pub(super) Vec<(Cow<'static, str>, TagValue)>);

impl Tags {
    /// Creates tags with room for a call on a file, which has 24, and 6 more if it waited.
    pub(super) fn of_a_call() -> Self {
        Tags(Vec::with_capacity(28))
    }

    /// Creates tags with room for a bio or a request, which has 6 to 14.
    pub(super) fn of_block_io() -> Self {
        Tags(Vec::with_capacity(14))
    }

    pub(super) fn text(&mut self, key: &'static str, value: &'static str) {
        self.0.push((key.into(), TagValue::Text(Cow::Borrowed(value))));
    }

    pub(super) fn owned(&mut self, key: &'static str, value: impl Into<String>) {
        self.0.push((key.into(), TagValue::Text(Cow::Owned(value.into()))));
    }

    /// Adds a text of an application or daemon.
    pub(super) fn application_text(&mut self, key: String, value: &str) {
        self.0.push((key.into(), TagValue::Text(Cow::Owned(value.to_owned()))));
    }

    /// Adds a number of an application or daemon.
    pub(super) fn application_number(&mut self, key: String, value: i64) {
        self.0.push((key.into(), TagValue::Number(value)));
    }

    pub(super) fn shared(&mut self, key: &'static str, value: &Arc<str>) {
        self.0.push((key.into(), TagValue::Shared(value.clone())));
    }

    /// Adds a number. One that does not fit is not added: no counter of the kernel gets there.
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

    /// Adds a count that is not zero.
    pub(super) fn count(&mut self, key: &'static str, value: u32) {
        if value != 0 {
            self.number(key, value);
        }
    }

    /// Adds a duration that is not zero.
    pub(super) fn duration(&mut self, key: &'static str, value: DurationNs) {
        if value.0 != 0 {
            self.number(key, value.0);
        }
    }

    /// Adds the raw times of the kernel's clock, without any conversion.
    pub(super) fn times(&mut self, start: MonotonicNs, end: MonotonicNs) {
        self.number("blkkin.start.ns", start.0);
        self.number("blkkin.duration.ns", end.since(start).0);
    }
}
