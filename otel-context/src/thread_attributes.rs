//! Decoder of thread context attributes.
//!
//! *In*: the bytes after a thread context's header (OTEP 4947, `attrs-data`), untrusted. *Out*:
//! values by key index, as [`ThreadAttributes`]; never a panic, and nothing that is not in the
//! bytes. *Invariant*: the last value of a key counts, even if it cannot be decoded, since earlier
//! values are outdated. Dropped values are counted.
//!
//! *Format* (open-telemetry/opentelemetry-specification, oteps/profiles/4947-thread-ctx.md at
//! 009fafa5): a sequence of entries, each a key index, a length and that many bytes of UTF-8. A
//! truncated entry ends the sequence.
//!
//! *Bounds*: 32 values, those of the lowest indexes, which are the keys that the program named
//! first. Each byte is visited once.

/// Maximum number of values, which a system call's span carries. Writers use one to five.
const ENTRIES_MAX: usize = 32;

/// Decoded attributes of a thread context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadAttributes {
    /// Values by key index, each index once. [`Resource::thread_keys`](crate::Resource) has the
    /// names.
    pub entries: Vec<(u8, Box<str>)>,
    /// Number of attributes that were dropped: not UTF-8, truncated, or too many.
    pub dropped_attributes: u32,
}

/// Decodes the attributes after a thread context's header.
pub fn decode(mut bytes: &[u8]) -> ThreadAttributes {
    let mut attributes = ThreadAttributes::default();
    // Last value of each key.
    let mut last: [Option<&[u8]>; 256] = [None; 256];
    while let [key, length, rest @ ..] = bytes {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        last[usize::from(*key)] = Some(value);
        bytes = rest;
    }
    // A truncated entry, of whatever key.
    attributes.dropped_attributes += u32::from(!bytes.is_empty());
    for (key, value) in (0..=u8::MAX).zip(last) {
        let Some(value) = value else { continue };
        match std::str::from_utf8(value) {
            Ok(value) if attributes.entries.len() < ENTRIES_MAX => {
                attributes.entries.push((key, value.into()));
            }
            _ => attributes.dropped_attributes += 1,
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(key: u8, value: &[u8]) -> Vec<u8> {
        [&[key, value.len() as u8], value].concat()
    }

    fn of(bytes: &[u8]) -> (Vec<(u8, String)>, u32) {
        let attributes = decode(bytes);
        let entries = attributes.entries.iter().map(|(key, value)| (*key, value.to_string())).collect();
        (entries, attributes.dropped_attributes)
    }

    fn expected(entries: &[(u8, &str)]) -> Vec<(u8, String)> {
        entries.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
    }

    #[test]
    fn last_value_of_each_key_counts() {
        let bytes = [entry(7, b"old"), entry(0, "é".as_bytes()), entry(7, b"new"), entry(255, b"")].concat();
        assert_eq!(of(&bytes), (expected(&[(0, "é"), (7, "new"), (255, "")]), 0));
        assert_eq!(decode(b""), ThreadAttributes::default());
    }

    #[test]
    fn truncated_or_invalid_value_is_counted_and_hides_earlier_values() {
        let whole = entry(1, b"one");
        for cut in [&[2][..], &[2, 1], &[2, 255, 0, 0]] {
            assert_eq!(of(&[&whole, cut].concat()), (expected(&[(1, "one")]), 1), "{cut:?}");
        }
        assert_eq!(
            of(&[entry(1, b"one"), entry(2, b"x"), entry(1, &[0xff])].concat()),
            (expected(&[(2, "x")]), 1)
        );
    }

    #[test]
    fn excess_values_are_counted() {
        let all: Vec<u8> = (0..=255).rev().flat_map(|key| entry(key, b"")).collect();
        let (entries, left_out) = of(&all);
        assert_eq!((entries.len(), left_out, entries.last().unwrap().0), (ENTRIES_MAX, 224, 31));
    }

    proptest! {
        #[test]
        fn any_bytes_yield_only_contained_values(bytes in proptest::collection::vec(any::<u8>(), 1..620)) {
            let attributes = decode(&bytes);
            prop_assert!(attributes.entries.len() <= ENTRIES_MAX);
            prop_assert!(attributes.entries.is_sorted_by(|(one, _), (next, _)| one < next));
            for (key, value) in &attributes.entries {
                let own = entry(*key, value.as_bytes());
                prop_assert!(bytes.windows(own.len()).any(|window| window == own));
            }
        }

        /// Values of a writer are decoded, whatever bytes follow.
        #[test]
        fn written_attributes_round_trip(
            pairs in proptest::collection::vec((0..20u8, "\\PC{0,8}"), 0..12), cut in 0..3usize
        ) {
            let mut bytes: Vec<u8> = pairs.iter().flat_map(|(key, value)| entry(*key, value.as_bytes())).collect();
            bytes.extend(&[9, 200, 1][..cut]);
            let last: std::collections::BTreeMap<u8, String> = pairs.into_iter().collect();
            prop_assume!(!bytes.is_empty());
            prop_assert_eq!(of(&bytes), (last.into_iter().collect(), u32::from(cut > 0)));
        }
    }
}
