//! Attributes of a thread's work, such as `http.route` = `/buy/:id`, as in OpenTelemetry's thread
//! context.
//!
//! *In*: keys, which the process registers once ([`thread_key`](crate::thread_key)), and values.
//! *Out*: entries of OTEP 4947 (key number, length, UTF-8 bytes). They are encoded where the work
//! begins and published by each thread that continues it
//! ([`Entered::set_thread_attributes`](crate::Entered::set_thread_attributes),
//! [`ScopedSpan::set_thread_attributes`](crate::ScopedSpan::set_thread_attributes),
//! [`Instrumented::with_thread_attributes`](crate::Instrumented::with_thread_attributes)).
//!
//! *Invariant*: a key occurs once, with the value that was added last. A value that does not fit is
//! dropped and counted, and the previous value of its key is removed. A truncated value would be
//! another value, and an old one would be wrong.

/// Maximum bytes of all entries. With its header a record has 256 bytes, four cache lines. OTEP
/// 4947 recommends 640 or less.
pub(crate) const BYTES_MAX: usize = 228;

/// Number of a key in this process, returned by [`thread_key`](crate::thread_key).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadKey(pub(crate) u8);

/// Attributes of up to 228 bytes. Each takes its value's bytes and two more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadAttributes {
    bytes: usize,
    dropped: usize,
    entries: [u8; BYTES_MAX],
}

impl ThreadAttributes {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { bytes: 0, dropped: 0, entries: [0; BYTES_MAX] }
    }

    /// Adds an attribute, or replaces the value of its key. A value of more than 255 bytes, or one
    /// that does not fit, is dropped.
    #[must_use]
    pub fn with(mut self, key: ThreadKey, value: &str) -> Self {
        self.remove(key);
        let room = self.entries[self.bytes..].len();
        match u8::try_from(value.len()) {
            Ok(length) if 2 + value.len() <= room => {
                let entry = &mut self.entries[self.bytes..][..2 + value.len()];
                entry[..2].copy_from_slice(&[key.0, length]);
                entry[2..].copy_from_slice(value.as_bytes());
                self.bytes += entry.len();
            }
            _ => self.dropped += 1,
        }
        self
    }

    /// Returns the number of values that were dropped.
    pub const fn dropped_attributes_count(&self) -> usize {
        self.dropped
    }

    /// Returns the entries in their published form.
    pub(crate) fn entries(&self) -> &[u8] {
        &self.entries[..self.bytes]
    }

    fn remove(&mut self, key: ThreadKey) {
        let mut at = 0;
        while let [known, length, ..] = self.entries[at..self.bytes] {
            let end = at + 2 + usize::from(length);
            if known == key.0 {
                self.entries.copy_within(end..self.bytes, at);
                self.bytes -= end - at;
                return;
            }
            at = end;
        }
    }
}

impl Default for ThreadAttributes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [ThreadKey; 3] = [ThreadKey(0), ThreadKey(1), ThreadKey(255)];

    #[test]
    fn entries_are_contiguous_and_the_last_value_of_a_key_counts() {
        let attributes = ThreadAttributes::new()
            .with(KEYS[0], "old")
            .with(KEYS[2], "é")
            .with(KEYS[1], "")
            .with(KEYS[0], "new");
        assert_eq!(attributes.entries(), b"\xff\x02\xc3\xa9\x01\x00\x00\x03new");
        assert_eq!(attributes.dropped_attributes_count(), 0);
    }

    #[test]
    fn a_value_that_does_not_fit_is_dropped_with_the_previous_value_of_its_key() {
        let long = "x".repeat(BYTES_MAX - 2);
        assert_eq!(ThreadAttributes::new().with(KEYS[0], &long).entries().len(), BYTES_MAX);
        let full = ThreadAttributes::new().with(KEYS[1], "y").with(KEYS[0], &long);
        assert_eq!((full.entries(), full.dropped_attributes_count()), (&b"\x01\x01y"[..], 1));
        let empty = full.with(KEYS[1], &"z".repeat(256));
        assert_eq!((empty.entries(), empty.dropped_attributes_count()), (&b""[..], 2));
    }
}
