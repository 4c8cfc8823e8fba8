//! What a thread says of its work besides its span: `http.route` is `/buy/:id`, as readers of OpenTelemetry's thread context take it.
//!
//! *In*: keys, which the process names once ([`thread_key`](crate::thread_key)), and values. *Out*: entries as OTEP 4947 has them (a key's
//! number, a length, bytes of UTF-8), made where the work begins and published whenever a thread takes it up
//! ([`Entered::says`](crate::Entered::says), [`Here::says`](crate::Here::says), [`Spanned::saying`](crate::Spanned::saying)).
//!
//! *Invariant*: a key is in it once, with the last value that was added. One that has no room is left out whole, the one before it too, and
//! counted: half of a value is another value, and an old one is wrong.

/// Bytes of all entries: with its head a record takes 256, four cache lines. The standard recommends 640 at most.
pub(crate) const BYTES_MAX: usize = 228;

/// A key's number in this process: see [`thread_key`](crate::thread_key).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadKey(pub(crate) u8);

/// Values under keys. Of all keys and values together 228 bytes, two more for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    bytes: usize,
    left_out: usize,
    entries: [u8; BYTES_MAX],
}

impl Said {
    /// Nothing.
    pub const fn new() -> Self {
        Self { bytes: 0, left_out: 0, entries: [0; BYTES_MAX] }
    }

    /// And this: instead of what was said under that key before. A value of more than 255 bytes, or for which there is no room any more,
    /// is left out.
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
            _ => self.left_out += 1,
        }
        self
    }

    /// How many values were left out.
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// The entries, as they are published.
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

impl Default for Said {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [ThreadKey; 3] = [ThreadKey(0), ThreadKey(1), ThreadKey(255)];

    #[test]
    fn values_lie_behind_one_another_and_the_last_of_a_key_counts() {
        let said = Said::new().with(KEYS[0], "old").with(KEYS[2], "é").with(KEYS[1], "").with(KEYS[0], "new");
        assert_eq!(said.entries(), b"\xff\x02\xc3\xa9\x01\x00\x00\x03new");
        assert_eq!(said.left_out(), 0);
    }

    #[test]
    fn what_has_no_room_is_left_out_and_so_is_what_it_was_said_instead_of() {
        let long = "x".repeat(BYTES_MAX - 2);
        assert_eq!(Said::new().with(KEYS[0], &long).entries().len(), BYTES_MAX);
        let full = Said::new().with(KEYS[1], "y").with(KEYS[0], &long);
        assert_eq!((full.entries(), full.left_out()), (&b"\x01\x01y"[..], 1));
        let gone = full.with(KEYS[1], &"z".repeat(256));
        assert_eq!((gone.entries(), gone.left_out()), (&b""[..], 2));
    }
}
