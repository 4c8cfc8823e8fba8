//! What a thread says of its work, from bytes of its memory: the one place where they become values.
//!
//! *In*: what lay behind a record's head (OTEP 4947, `attrs-data`): anybody may have written it. *Out*: values by number, as
//! [`ThreadAttributes`]; never a panic, and nothing that is not there. *Invariant*: of a number the last value counts, also where that one
//! cannot be taken: an earlier one is what the thread says no longer. What is not taken is counted.
//!
//! *Form* (open-telemetry/opentelemetry-specification, oteps/profiles/4947-thread-ctx.md at 009fafa5): entries behind one another, each a
//! number, a length and so many bytes of UTF-8. What does not hold a whole entry any more ends them.
//!
//! *Bounds*: 32 values, those of the lowest numbers, which are the names that the program has given first; 612 bytes by what is read
//! at all ([`ATTRIBUTES_MAX`](blkkin_probe_abi::context::ATTRIBUTES_MAX)). None in time: each byte is looked at once.

use std::sync::Arc;

use blkkin_wire::attributes::{ThreadAttribute, ThreadAttributes};

/// Values of a call: they go with its span. Writers say one to five.
const ENTRIES_MAX: usize = 32;

/// What a head that says so many `bytes` stands before; none where there is nothing.
pub(crate) fn said(bytes: u16, there: &[u8]) -> Option<Arc<ThreadAttributes>> {
    if bytes == 0 {
        return None;
    }
    let mut said = parse(there);
    if there.is_empty() {
        said.bytes_unread = bytes.into();
    }
    Some(said.into())
}

fn parse(mut bytes: &[u8]) -> ThreadAttributes {
    let mut said = ThreadAttributes::default();
    // Where the last of each number lies: none of 256 by far the most.
    let mut last: [Option<&[u8]>; 256] = [None; 256];
    while let [key, length, rest @ ..] = bytes {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        last[usize::from(*key)] = Some(value);
        bytes = rest;
    }
    // One that is cut, of whatever number.
    said.left_out += u32::from(!bytes.is_empty());
    for (key, value) in (0..=u8::MAX).zip(last) {
        let Some(value) = value else { continue };
        match std::str::from_utf8(value) {
            Ok(value) if said.entries.len() < ENTRIES_MAX => {
                said.entries.push(ThreadAttribute { key, value: value.into() });
            }
            _ => said.left_out += 1,
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(key: u8, value: &[u8]) -> Vec<u8> {
        [&[key, value.len() as u8], value].concat()
    }

    fn of(bytes: &[u8]) -> (Vec<(u8, String)>, u32) {
        let said = said(bytes.len() as u16, bytes).unwrap();
        let entries = said.entries.iter().map(|entry| (entry.key, entry.value.to_string())).collect();
        (entries, said.left_out)
    }

    fn kept(entries: &[(u8, &str)]) -> Vec<(u8, String)> {
        entries.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
    }

    #[test]
    fn entries_are_taken_by_number_and_of_each_the_last_counts() {
        let bytes = [entry(7, b"old"), entry(0, "é".as_bytes()), entry(7, b"new"), entry(255, b"")].concat();
        assert_eq!(of(&bytes), (kept(&[(0, "é"), (7, "new"), (255, "")]), 0));
        assert_eq!(said(0, b""), None);
    }

    #[test]
    fn what_is_cut_or_no_text_is_counted_and_an_earlier_value_does_not_stand_for_it() {
        let whole = entry(1, b"one");
        for cut in [&[2][..], &[2, 1], &[2, 255, 0, 0]] {
            assert_eq!(of(&[&whole, cut].concat()), (kept(&[(1, "one")]), 1), "{cut:?}");
        }
        assert_eq!(
            of(&[entry(1, b"one"), entry(2, b"x"), entry(1, &[0xff])].concat()),
            (kept(&[(2, "x")]), 1)
        );
    }

    #[test]
    fn there_are_so_many_at_the_most_and_the_rest_is_counted() {
        let all: Vec<u8> = (0..=255).rev().flat_map(|key| entry(key, b"")).collect();
        let (entries, left_out) = of(&all);
        assert_eq!((entries.len(), left_out, entries.last().unwrap().0), (ENTRIES_MAX, 224, 31));
    }

    #[test]
    fn what_was_not_read_is_told_by_its_bytes() {
        let expected = ThreadAttributes { bytes_unread: 613, ..ThreadAttributes::default() };
        assert_eq!(*said(613, b"").unwrap(), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_values_of_what_they_hold(bytes in proptest::collection::vec(any::<u8>(), 1..620)) {
            let said = said(bytes.len() as u16, &bytes).unwrap();
            prop_assert!(said.entries.len() <= ENTRIES_MAX);
            prop_assert!(said.entries.is_sorted_by(|a, b| a.key < b.key));
            for entry in &said.entries {
                let own = super::tests::entry(entry.key, entry.value.as_bytes());
                prop_assert!(bytes.windows(own.len()).any(|window| window == own));
            }
        }

        /// What a writer has said comes back, whatever lies behind.
        #[test]
        fn what_a_writer_has_said_comes_back(
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
