//! Bytes from a ring to a record: the one place where they are believed, and only after tag and length agree.
//!
//! *In*: the bytes of one ring entry: hostile until here. *Out*: a [`Record`], which lies where the bytes do, or why not.
//! Never panics, whatever the bytes (proptest below); what it refuses is counted as malformed.

use blkkin_probe_abi::Plain;
use blkkin_probe_abi::context::Head;
use blkkin_probe_abi::hit::{HIT_HAS_TEXT, HitRecord, TEXT_MAX};
use blkkin_probe_abi::record::{
    BioRecord, CALL_HAS_ATTRIBUTES, CALL_HAS_CONTEXT, CALL_HAS_SECOND, CallRecord, CommitRecord,
    FILE_PATH_MAX, FileRecord, Header, NbdAnswered, NbdAsked, NbdResent, PATH_ARG_MAX, PairRecord,
    RequestRecord, SecondFile, TAG_BIO, TAG_CALL, TAG_COMMIT, TAG_FILE, TAG_HIT, TAG_NBD_ANSWERED,
    TAG_NBD_ASKED, TAG_NBD_RESENT, TAG_PAIR, TAG_REQUEST, TAG_TASK, TaskRecord,
};
use thiserror::Error;

/// A record, checked, where it lies: to copy it would take as long as to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A system call.
    Call(Call<'a>),
    /// A bio.
    Bio(&'a BioRecord),
    /// A request.
    Request(&'a RequestRecord),
    /// A bio and its request.
    Pair(&'a PairRecord),
    /// A commit.
    Commit(&'a CommitRecord),
    /// A task.
    Task(&'a TaskRecord),
    /// A file, and its path's components, leaf first, each ended by NUL.
    File(&'a FileRecord, &'a [u8]),
    /// What a program asked an NBD server.
    NbdAsked(&'a NbdAsked),
    /// What it was told, or that it did not ask.
    NbdAnswered(&'a NbdAnswered),
    /// A thread at a probe of its program, and the room for a text: all of it, whatever its length.
    Hit(&'a HitRecord, &'a [u8]),
    /// What of it TCP sent once more.
    NbdResent(&'a NbdResent),
}

/// A system call's record and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The fixed part.
    pub record: &'a CallRecord,
    /// The other file.
    pub second: Option<&'a SecondFile>,
    /// Its path arguments.
    pub paths: [&'a [u8]; 2],
    /// The span that its thread worked for.
    pub head: Option<&'a Head>,
    /// What it said besides; none where it said nothing, or nothing could be read.
    pub attributes: &'a [u8],
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Shorter than its kind must be.
    #[error("a record of tag {tag} has {len} bytes, fewer than it must")]
    Short {
        /// Its tag; 0 if not even that was there.
        tag: u8,
        /// Its bytes.
        len: usize,
    },
    /// Longer than what it says of itself.
    #[error("a record of tag {tag} has {len} bytes, more than it says")]
    Long {
        /// Its tag.
        tag: u8,
        /// Its bytes.
        len: usize,
    },
    /// Not where a record may begin.
    #[error("a record that does not begin at a multiple of 8 bytes")]
    Unaligned,
    /// No such kind.
    #[error("a record of the unknown tag {tag}")]
    UnknownTag {
        /// Its tag.
        tag: u8,
    },
}

/// Decodes one ring entry.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let header: &Header = front(bytes, 0)?.0;
    if header.len as usize > bytes.len() {
        return Err(Malformed::Short { tag: header.tag, len: bytes.len() });
    }
    if (header.len as usize) < bytes.len() {
        return Err(Malformed::Long { tag: header.tag, len: bytes.len() });
    }
    match header.tag {
        TAG_CALL => call(bytes),
        TAG_BIO => whole(bytes, TAG_BIO).map(Record::Bio),
        TAG_REQUEST => whole(bytes, TAG_REQUEST).map(Record::Request),
        TAG_PAIR => whole(bytes, TAG_PAIR).map(Record::Pair),
        TAG_COMMIT => whole(bytes, TAG_COMMIT).map(Record::Commit),
        TAG_TASK => whole(bytes, TAG_TASK).map(Record::Task),
        TAG_FILE => file(bytes),
        TAG_NBD_ASKED => whole(bytes, TAG_NBD_ASKED).map(Record::NbdAsked),
        TAG_NBD_ANSWERED => whole(bytes, TAG_NBD_ANSWERED).map(Record::NbdAnswered),
        TAG_HIT => hit(bytes),
        TAG_NBD_RESENT => whole(bytes, TAG_NBD_RESENT).map(Record::NbdResent),
        tag => Err(Malformed::UnknownTag { tag }),
    }
}

fn call(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let (record, rest): (&CallRecord, _) = front(bytes, TAG_CALL)?;
    let (second, rest) = if record.header.flags & CALL_HAS_SECOND != 0 {
        let (second, rest): (&SecondFile, _) = front(rest, TAG_CALL)?;
        (Some(second), rest)
    } else {
        (None, rest)
    };
    let short = Malformed::Short { tag: TAG_CALL, len: bytes.len() };
    let [first_len, second_len] = record.path_len.map(usize::from);
    if first_len > PATH_ARG_MAX || second_len > PATH_ARG_MAX {
        return Err(Malformed::Long { tag: TAG_CALL, len: bytes.len() });
    }
    let (first, rest) = rest.split_at_checked(first_len).ok_or(short)?;
    let (other, rest) = rest.split_at_checked(second_len).ok_or(short)?;
    let (head, rest) = if record.header.flags & CALL_HAS_CONTEXT != 0 {
        // At the next multiple of 8, as the record itself.
        let between = (bytes.len() - rest.len()).next_multiple_of(8) - (bytes.len() - rest.len());
        let (head, rest): (&Head, _) = front(rest.get(between..).ok_or(short)?, TAG_CALL)?;
        (Some(head), rest)
    } else {
        (None, rest)
    };
    let said = head.filter(|_| record.header.flags & CALL_HAS_ATTRIBUTES != 0);
    let said = said.map_or(0, |head| usize::from(head.attributes));
    let (attributes, rest) = rest.split_at_checked(said).ok_or(short)?;
    ended(rest, TAG_CALL, bytes)?;
    Ok(Record::Call(Call { record, second, paths: [first, other], head, attributes }))
}

fn hit(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let (record, text): (&HitRecord, _) = front(bytes, TAG_HIT)?;
    let room = if record.header.flags & HIT_HAS_TEXT != 0 { TEXT_MAX } else { 0 };
    match text.len() {
        there if there < room => Err(Malformed::Short { tag: TAG_HIT, len: bytes.len() }),
        there if there > room => Err(Malformed::Long { tag: TAG_HIT, len: bytes.len() }),
        _ => Ok(Record::Hit(record, text)),
    }
}

fn file(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let (record, path): (&FileRecord, _) = front(bytes, TAG_FILE)?;
    if path.len() > FILE_PATH_MAX {
        return Err(Malformed::Long { tag: TAG_FILE, len: bytes.len() });
    }
    Ok(Record::File(record, path))
}

fn whole<T: Plain>(bytes: &[u8], tag: u8) -> Result<&T, Malformed> {
    let (record, rest) = front(bytes, tag)?;
    ended(rest, tag, bytes)?;
    Ok(record)
}

fn ended(rest: &[u8], tag: u8, bytes: &[u8]) -> Result<(), Malformed> {
    if rest.is_empty() { Ok(()) } else { Err(Malformed::Long { tag, len: bytes.len() }) }
}

/// The value at the front, and what follows it.
fn front<T: Plain>(bytes: &[u8], tag: u8) -> Result<(&T, &[u8]), Malformed> {
    let (front, rest) =
        bytes.split_at_checked(size_of::<T>()).ok_or(Malformed::Short { tag, len: bytes.len() })?;
    let value = front.as_ptr().cast::<T>();
    if !value.is_aligned() {
        return Err(Malformed::Unaligned);
    }
    // SAFETY: `front` has size_of::<T>() bytes and is aligned, and of a Plain type every bit pattern is a value.
    Ok((unsafe { &*value }, rest))
}

/// A value's bytes.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a Plain type has no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bio() -> BioRecord {
        let header =
            Header { tag: TAG_BIO, len: size_of::<BioRecord>() as u32, time_ns: 7, ..Header::default() };
        BioRecord { header, span: 1, bytes: 4096, ..BioRecord::default() }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        assert_eq!(decode(bytes_of(&bio())), Ok(Record::Bio(&bio())));
    }

    #[test]
    fn short_long_and_unknown_are_told_apart() {
        let record = bio();
        let bytes = bytes_of(&record);
        assert_eq!(decode(&bytes[..95]), Err(Malformed::Short { tag: TAG_BIO, len: 95 }));
        assert_eq!(decode(&bytes[..3]), Err(Malformed::Short { tag: 0, len: 3 }));
        let mut long = bytes.to_vec();
        long.push(0);
        assert_eq!(decode(&long), Err(Malformed::Long { tag: TAG_BIO, len: 97 }));
        let mut unknown = bio();
        unknown.header.tag = 99;
        assert_eq!(decode(bytes_of(&unknown)), Err(Malformed::UnknownTag { tag: 99 }));
    }

    #[test]
    fn a_record_that_lies_askew_is_refused() {
        let shifted: Vec<u8> = [0].into_iter().chain(bytes_of(&bio()).iter().copied()).collect();
        assert_eq!(decode(&shifted[1..]), Err(Malformed::Unaligned));
    }

    #[test]
    fn a_record_of_the_right_tag_and_the_wrong_size_is_refused() {
        let mut record = bio();
        record.header.tag = TAG_CALL;
        assert_eq!(decode(bytes_of(&record)), Err(Malformed::Short { tag: TAG_CALL, len: 96 }));
    }

    #[test]
    fn a_hit_has_room_for_a_text_if_it_says_so() {
        let record = |flags, len: usize| {
            let header = Header { tag: TAG_HIT, flags, len: len as u32, ..Header::default() };
            HitRecord { header, row: 3, ..HitRecord::default() }
        };
        let fixed = size_of::<HitRecord>();
        let bare = record(0, fixed);
        assert_eq!(decode(bytes_of(&bare)), Ok(Record::Hit(&bare, b"")));
        let with = record(HIT_HAS_TEXT, fixed + TEXT_MAX);
        let bytes: Vec<u8> = bytes_of(&with).iter().copied().chain([b'x'; TEXT_MAX]).collect();
        assert_eq!(decode(&bytes), Ok(Record::Hit(&with, &[b'x'; TEXT_MAX])));
        let short = record(HIT_HAS_TEXT, fixed);
        assert_eq!(decode(bytes_of(&short)), Err(Malformed::Short { tag: TAG_HIT, len: fixed }));
    }

    #[test]
    fn paths_and_second_file_are_cut_out_of_the_tail() {
        let mut record = CallRecord { path_len: [3, 2], ..CallRecord::default() };
        record.header =
            Header { tag: TAG_CALL, len: (size_of::<CallRecord>() + 5) as u32, ..Header::default() };
        let mut bytes = bytes_of(&record).to_vec();
        bytes.extend_from_slice(b"abcde");
        let call =
            Call { record: &record, second: None, paths: [b"abc", b"de"], head: None, attributes: b"" };
        assert_eq!(decode(&bytes), Ok(Record::Call(call)));
        bytes.pop();
        bytes[4..8].copy_from_slice(&((size_of::<CallRecord>() + 4) as u32).to_ne_bytes());
        assert_eq!(decode(&bytes), Err(Malformed::Short { tag: TAG_CALL, len: size_of::<CallRecord>() + 4 }));
    }

    #[test]
    fn a_context_ends_a_call_behind_whatever_else_it_has() {
        let head = Head { trace: [1; 16], span: [2; 8], valid: 1, flags: 1, ..Head::default() };
        for (path, filled) in [(0, 0), (5, 8), (8, 8)] {
            let len = size_of::<CallRecord>() + filled + size_of::<Head>();
            let header =
                Header { tag: TAG_CALL, flags: CALL_HAS_CONTEXT, len: len as u32, ..Header::default() };
            let record = CallRecord { header, path_len: [path, 0], ..CallRecord::default() };
            let mut bytes = bytes_of(&record).to_vec();
            bytes.extend([b'x'; 8][..filled].iter().chain(bytes_of(&head)));
            let paths = [&[b'x'; 8][..path.into()], b""];
            let call = Call { record: &record, second: None, paths, head: Some(&head), attributes: b"" };
            assert_eq!(decode(&bytes), Ok(Record::Call(call)));
            bytes.truncate(len - 8);
            bytes[4..8].copy_from_slice(&(len as u32 - 8).to_ne_bytes());
            assert!(matches!(decode(&bytes), Err(Malformed::Short { tag: TAG_CALL, .. })));
        }
    }

    #[test]
    fn attributes_end_a_call_if_it_says_that_they_are_there() {
        let head = Head { valid: 1, attributes: 5, ..Head::default() };
        let record = |flags, behind: usize| {
            let len = size_of::<CallRecord>() + size_of::<Head>() + behind;
            let header = Header { tag: TAG_CALL, flags, len: len as u32, ..Header::default() };
            let record = CallRecord { header, ..CallRecord::default() };
            let bytes: Vec<u8> = [bytes_of(&record), bytes_of(&head), &b"abcdef"[..behind]]
                .into_iter()
                .flatten()
                .copied()
                .collect();
            (record, bytes)
        };
        let both = CALL_HAS_CONTEXT | CALL_HAS_ATTRIBUTES;
        for (flags, attributes) in [(both, &b"abcde"[..]), (CALL_HAS_CONTEXT, b"")] {
            let (record, bytes) = record(flags, attributes.len());
            let paths = [&b""[..]; 2];
            let call = Call { record: &record, second: None, paths, head: Some(&head), attributes };
            assert_eq!(decode(&bytes), Ok(Record::Call(call)));
        }
        let refused = |flags, behind| decode(&record(flags, behind).1).unwrap_err();
        assert!(matches!(refused(both, 4), Malformed::Short { tag: TAG_CALL, .. }));
        assert!(matches!(refused(both, 6), Malformed::Long { tag: TAG_CALL, .. }));
        assert!(matches!(refused(CALL_HAS_CONTEXT, 5), Malformed::Long { tag: TAG_CALL, .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_bytes_behind_a_true_header_are_a_record_or_an_error(
            tag in 0u8..12, mut bytes in proptest::collection::vec(any::<u8>(), 16..600)
        ) {
            bytes[0] = tag;
            let len = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&len.to_ne_bytes());
            let _ = decode(&bytes);
        }
    }
}
