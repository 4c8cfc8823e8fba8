//! Readers of columns, and delta coding.

use super::Malformed;

/// Remaining values of a column.
pub(super) struct Column<'a, T> {
    values: std::slice::Iter<'a, T>,
    name: &'static str,
}

impl<'a, T> Column<'a, T> {
    pub(super) fn new(values: &'a [T], name: &'static str) -> Self {
        Column { values: values.iter(), name }
    }

    /// Returns the next value.
    pub(super) fn next(&mut self) -> Result<&'a T, Malformed> {
        self.values.next().ok_or(Malformed::Short(self.name))
    }

    /// Returns the next value if `present`.
    pub(super) fn next_if(&mut self, present: bool) -> Result<Option<&'a T>, Malformed> {
        present.then(|| self.next()).transpose()
    }

    /// Returns whether no values are left.
    pub(super) fn is_empty(&self) -> bool {
        self.values.as_slice().is_empty()
    }

    /// Returns an error if values are left.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.values.as_slice().is_empty() { Ok(()) } else { Err(Malformed::Long(self.name)) }
    }

    /// Returns the error for an invalid value of this column.
    pub(super) fn refuse(&self, value: u64) -> Malformed {
        Malformed::Value { column: self.name, value }
    }
}

/// Previous value of a delta column.
#[derive(Debug, Default)]
pub(super) struct Delta(u64);

impl Delta {
    /// Encodes a value.
    pub(super) fn encode(&mut self, value: u64) -> i64 {
        let difference = value.wrapping_sub(self.0) as i64;
        self.0 = value;
        difference
    }

    /// Decodes a value.
    pub(super) fn decode(&mut self, difference: i64) -> u64 {
        self.0 = self.0.wrapping_add(difference as u64);
        self.0
    }
}

impl From<u64> for Delta {
    /// Creates a column whose first value is encoded relative to `first`.
    fn from(first: u64) -> Self {
        Delta(first)
    }
}
