//! Decoder of ring entries: the one place that validates bytes of the kernel side.
//!
//! *In*: the bytes of one ring entry, untrusted. *Out*: a [`Record`] that borrows the bytes, or an
//! error. *Invariant*: never panics, whatever the bytes (proptest below). The caller counts
//! rejected entries as malformed.

use blkkin_probe_abi::Plain;
use blkkin_probe_abi::context::ContextHead;
use blkkin_probe_abi::fault::{DirtyRecord, FaultRecord, TAG_DIRTY, TAG_FAULT};
use blkkin_probe_abi::record::{
    AsyncIoRecord, BioPagesRecord, BioRecord, BioRequestRecord, CommitRecord, FILE_PATH_MAX, FileRecord,
    Header, NbdReplyRecord, NbdRequestRecord, NbdRetransmitRecord, PATH_ARG_MAX, RequestRecord,
    SYSCALL_HAS_ATTRIBUTES, SYSCALL_HAS_CONTEXT, SYSCALL_HAS_SECOND, SecondFile, SyscallRecord, TAG_ASYNC_IO,
    TAG_BIO, TAG_BIO_PAGES, TAG_BIO_REQUEST, TAG_COMMIT, TAG_FILE, TAG_NBD_REPLY, TAG_NBD_REQUEST,
    TAG_NBD_RETRANSMIT, TAG_REQUEST, TAG_SYSCALL, TAG_TASK, TAG_USDT, TaskRecord,
};
use blkkin_probe_abi::sleep::{SleepsRecord, TAG_SLEEPS};
use blkkin_probe_abi::usdt::{USDT_HAS_TEXT, USDT_TEXT_MAX, UsdtRecord};
use blkkin_probe_abi::wait::{TAG_WAITS, WaitsRecord};
use thiserror::Error;

/// A validated record, borrowed from the ring: copying it would take as long as reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A system call.
    Syscall(SyscallEntry<'a>),
    /// A bio.
    Bio(&'a BioRecord),
    /// A block request.
    Request(&'a RequestRecord),
    /// A bio and the request that contains only it.
    BioRequest(&'a BioRequestRecord),
    /// Asynchronous I/O.
    AsyncIo(&'a AsyncIoRecord),
    /// A journal commit.
    Commit(&'a CommitRecord),
    /// A task.
    Task(&'a TaskRecord),
    /// A file and its path's components, leaf first, each NUL-terminated.
    File(&'a FileRecord, &'a [u8]),
    /// A request that an NBD client gave to a socket.
    NbdRequest(&'a NbdRequestRecord),
    /// A reply to an NBD request, or the notice that the request was not sent.
    NbdReply(&'a NbdReplyRecord),
    /// A USDT event and its text buffer, at full length whatever the text's length.
    UsdtEvent(&'a UsdtRecord, &'a [u8]),
    /// A TCP retransmission of request bytes.
    NbdRetransmit(&'a NbdRetransmitRecord),
    /// The origin of a bio's pages.
    BioPages(&'a BioPagesRecord),
    /// A page fault.
    Fault(&'a FaultRecord),
    /// Pages that a store made dirty.
    Dirty(&'a DirtyRecord),
    /// Sleeps of a system call.
    Sleeps(&'a SleepsRecord),
    /// Waits of a system call.
    Waits(&'a WaitsRecord),
}

/// A system call's record and the parts that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallEntry<'a> {
    /// Fixed part.
    pub record: &'a SyscallRecord,
    /// Second file of the call.
    pub second: Option<&'a SecondFile>,
    /// Path arguments.
    pub paths: [&'a [u8]; 2],
    /// Thread context.
    pub context: Option<&'a ContextHead>,
    /// Attributes of the thread context; empty if there are none or they could not be read.
    pub attributes: &'a [u8],
}

/// Reason why an entry is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Shorter than its kind requires.
    #[error("a record of tag {tag} is too short: {len} bytes")]
    Short {
        /// Tag of the record; 0 if the entry is too short for one.
        tag: u8,
        /// Length in bytes.
        len: usize,
    },
    /// Longer than its header or its fields declare.
    #[error("a record of tag {tag} is too long: {len} bytes")]
    Long {
        /// Tag of the record.
        tag: u8,
        /// Length in bytes.
        len: usize,
    },
    /// Not aligned to 8 bytes.
    #[error("a record is not aligned to 8 bytes")]
    Unaligned,
    /// Unknown tag.
    #[error("unknown record tag {tag}")]
    UnknownTag {
        /// The tag.
        tag: u8,
    },
}

/// Decodes one ring entry.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let header: &Header = split_front(bytes, 0)?.0;
    if header.len as usize > bytes.len() {
        return Err(DecodeError::Short { tag: header.tag, len: bytes.len() });
    }
    if (header.len as usize) < bytes.len() {
        return Err(DecodeError::Long { tag: header.tag, len: bytes.len() });
    }
    match header.tag {
        TAG_SYSCALL => syscall(bytes),
        TAG_BIO => fixed(bytes, TAG_BIO).map(Record::Bio),
        TAG_REQUEST => fixed(bytes, TAG_REQUEST).map(Record::Request),
        TAG_BIO_REQUEST => fixed(bytes, TAG_BIO_REQUEST).map(Record::BioRequest),
        TAG_ASYNC_IO => fixed(bytes, TAG_ASYNC_IO).map(Record::AsyncIo),
        TAG_COMMIT => fixed(bytes, TAG_COMMIT).map(Record::Commit),
        TAG_TASK => fixed(bytes, TAG_TASK).map(Record::Task),
        TAG_FILE => file(bytes),
        TAG_NBD_REQUEST => fixed(bytes, TAG_NBD_REQUEST).map(Record::NbdRequest),
        TAG_NBD_REPLY => fixed(bytes, TAG_NBD_REPLY).map(Record::NbdReply),
        TAG_USDT => usdt_event(bytes),
        TAG_BIO_PAGES => fixed(bytes, TAG_BIO_PAGES).map(Record::BioPages),
        TAG_NBD_RETRANSMIT => fixed(bytes, TAG_NBD_RETRANSMIT).map(Record::NbdRetransmit),
        TAG_FAULT => fixed(bytes, TAG_FAULT).map(Record::Fault),
        TAG_DIRTY => fixed(bytes, TAG_DIRTY).map(Record::Dirty),
        TAG_SLEEPS => fixed(bytes, TAG_SLEEPS).map(Record::Sleeps),
        TAG_WAITS => fixed(bytes, TAG_WAITS).map(Record::Waits),
        tag => Err(DecodeError::UnknownTag { tag }),
    }
}

fn syscall(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let (record, rest): (&SyscallRecord, _) = split_front(bytes, TAG_SYSCALL)?;
    let (second, rest) = if record.header.flags & SYSCALL_HAS_SECOND != 0 {
        let (second, rest): (&SecondFile, _) = split_front(rest, TAG_SYSCALL)?;
        (Some(second), rest)
    } else {
        (None, rest)
    };
    let short = DecodeError::Short { tag: TAG_SYSCALL, len: bytes.len() };
    let [first_len, second_len] = record.path_len.map(usize::from);
    if first_len > PATH_ARG_MAX || second_len > PATH_ARG_MAX {
        return Err(DecodeError::Long { tag: TAG_SYSCALL, len: bytes.len() });
    }
    let (first, rest) = rest.split_at_checked(first_len).ok_or(short)?;
    let (other, rest) = rest.split_at_checked(second_len).ok_or(short)?;
    let (context, rest) = if record.header.flags & SYSCALL_HAS_CONTEXT != 0 {
        // At the next multiple of 8, like the record itself.
        let between = (bytes.len() - rest.len()).next_multiple_of(8) - (bytes.len() - rest.len());
        let (head, rest): (&ContextHead, _) = split_front(rest.get(between..).ok_or(short)?, TAG_SYSCALL)?;
        (Some(head), rest)
    } else {
        (None, rest)
    };
    let length = context.filter(|_| record.header.flags & SYSCALL_HAS_ATTRIBUTES != 0);
    let length = length.map_or(0, |head| usize::from(head.attribute_bytes));
    let (attributes, rest) = rest.split_at_checked(length).ok_or(short)?;
    expect_end(rest, TAG_SYSCALL, bytes)?;
    Ok(Record::Syscall(SyscallEntry { record, second, paths: [first, other], context, attributes }))
}

fn usdt_event(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let (record, text): (&UsdtRecord, _) = split_front(bytes, TAG_USDT)?;
    let room = if record.header.flags & USDT_HAS_TEXT != 0 { USDT_TEXT_MAX } else { 0 };
    match text.len() {
        there if there < room => Err(DecodeError::Short { tag: TAG_USDT, len: bytes.len() }),
        there if there > room => Err(DecodeError::Long { tag: TAG_USDT, len: bytes.len() }),
        _ => Ok(Record::UsdtEvent(record, text)),
    }
}

fn file(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let (record, path): (&FileRecord, _) = split_front(bytes, TAG_FILE)?;
    if path.len() > FILE_PATH_MAX {
        return Err(DecodeError::Long { tag: TAG_FILE, len: bytes.len() });
    }
    Ok(Record::File(record, path))
}

fn fixed<T: Plain>(bytes: &[u8], tag: u8) -> Result<&T, DecodeError> {
    let (record, rest) = split_front(bytes, tag)?;
    expect_end(rest, tag, bytes)?;
    Ok(record)
}

fn expect_end(rest: &[u8], tag: u8, bytes: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() { Ok(()) } else { Err(DecodeError::Long { tag, len: bytes.len() }) }
}

/// Splits off the value at the front.
fn split_front<T: Plain>(bytes: &[u8], tag: u8) -> Result<(&T, &[u8]), DecodeError> {
    let (front, rest) =
        bytes.split_at_checked(size_of::<T>()).ok_or(DecodeError::Short { tag, len: bytes.len() })?;
    let value = front.as_ptr().cast::<T>();
    if !value.is_aligned() {
        return Err(DecodeError::Unaligned);
    }
    // SAFETY: `front` has size_of::<T>() bytes and is aligned, and every bit pattern of a Plain
    // type is valid.
    Ok((unsafe { &*value }, rest))
}

/// Views a value as bytes.
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
    fn record_round_trips() {
        assert_eq!(decode(bytes_of(&bio())), Ok(Record::Bio(&bio())));
    }

    #[test]
    fn short_long_and_unknown_records_are_distinguished() {
        let record = bio();
        let bytes = bytes_of(&record);
        assert_eq!(decode(&bytes[..95]), Err(DecodeError::Short { tag: TAG_BIO, len: 95 }));
        assert_eq!(decode(&bytes[..3]), Err(DecodeError::Short { tag: 0, len: 3 }));
        let mut long = bytes.to_vec();
        long.push(0);
        assert_eq!(decode(&long), Err(DecodeError::Long { tag: TAG_BIO, len: 97 }));
        let mut unknown = bio();
        unknown.header.tag = 99;
        assert_eq!(decode(bytes_of(&unknown)), Err(DecodeError::UnknownTag { tag: 99 }));
    }

    #[test]
    fn unaligned_record_is_rejected() {
        let shifted: Vec<u8> = [0].into_iter().chain(bytes_of(&bio()).iter().copied()).collect();
        assert_eq!(decode(&shifted[1..]), Err(DecodeError::Unaligned));
    }

    #[test]
    fn record_with_wrong_size_for_its_tag_is_rejected() {
        let mut record = bio();
        record.header.tag = TAG_SYSCALL;
        assert_eq!(decode(bytes_of(&record)), Err(DecodeError::Short { tag: TAG_SYSCALL, len: 96 }));
    }

    #[test]
    fn usdt_event_has_a_text_buffer_if_flagged() {
        let record = |flags, len: usize| {
            let header = Header { tag: TAG_USDT, flags, len: len as u32, ..Header::default() };
            UsdtRecord { header, row: 3, ..UsdtRecord::default() }
        };
        let fixed = size_of::<UsdtRecord>();
        let bare = record(0, fixed);
        assert_eq!(decode(bytes_of(&bare)), Ok(Record::UsdtEvent(&bare, b"")));
        let with = record(USDT_HAS_TEXT, fixed + USDT_TEXT_MAX);
        let bytes: Vec<u8> = bytes_of(&with).iter().copied().chain([b'x'; USDT_TEXT_MAX]).collect();
        assert_eq!(decode(&bytes), Ok(Record::UsdtEvent(&with, &[b'x'; USDT_TEXT_MAX])));
        let short = record(USDT_HAS_TEXT, fixed);
        assert_eq!(decode(bytes_of(&short)), Err(DecodeError::Short { tag: TAG_USDT, len: fixed }));
    }

    #[test]
    fn paths_follow_the_fixed_part() {
        let mut record = SyscallRecord { path_len: [3, 2], ..SyscallRecord::default() };
        record.header =
            Header { tag: TAG_SYSCALL, len: (size_of::<SyscallRecord>() + 5) as u32, ..Header::default() };
        let mut bytes = bytes_of(&record).to_vec();
        bytes.extend_from_slice(b"abcde");
        let call = SyscallEntry {
            record: &record,
            second: None,
            paths: [b"abc", b"de"],
            context: None,
            attributes: b"",
        };
        assert_eq!(decode(&bytes), Ok(Record::Syscall(call)));
        bytes.pop();
        bytes[4..8].copy_from_slice(&((size_of::<SyscallRecord>() + 4) as u32).to_ne_bytes());
        assert_eq!(
            decode(&bytes),
            Err(DecodeError::Short { tag: TAG_SYSCALL, len: size_of::<SyscallRecord>() + 4 })
        );
    }

    #[test]
    fn context_follows_all_other_parts_of_a_call() {
        let head = ContextHead { trace: [1; 16], span: [2; 8], valid: 1, flags: 1, ..ContextHead::default() };
        for (path, filled) in [(0, 0), (5, 8), (8, 8)] {
            let len = size_of::<SyscallRecord>() + filled + size_of::<ContextHead>();
            let header =
                Header { tag: TAG_SYSCALL, flags: SYSCALL_HAS_CONTEXT, len: len as u32, ..Header::default() };
            let record = SyscallRecord { header, path_len: [path, 0], ..SyscallRecord::default() };
            let mut bytes = bytes_of(&record).to_vec();
            bytes.extend([b'x'; 8][..filled].iter().chain(bytes_of(&head)));
            let paths = [&[b'x'; 8][..path.into()], b""];
            let call =
                SyscallEntry { record: &record, second: None, paths, context: Some(&head), attributes: b"" };
            assert_eq!(decode(&bytes), Ok(Record::Syscall(call)));
            bytes.truncate(len - 8);
            bytes[4..8].copy_from_slice(&(len as u32 - 8).to_ne_bytes());
            assert!(matches!(decode(&bytes), Err(DecodeError::Short { tag: TAG_SYSCALL, .. })));
        }
    }

    #[test]
    fn attributes_end_a_call_if_flagged() {
        let head = ContextHead { valid: 1, attribute_bytes: 5, ..ContextHead::default() };
        let record = |flags, behind: usize| {
            let len = size_of::<SyscallRecord>() + size_of::<ContextHead>() + behind;
            let header = Header { tag: TAG_SYSCALL, flags, len: len as u32, ..Header::default() };
            let record = SyscallRecord { header, ..SyscallRecord::default() };
            let bytes: Vec<u8> = [bytes_of(&record), bytes_of(&head), &b"abcdef"[..behind]]
                .into_iter()
                .flatten()
                .copied()
                .collect();
            (record, bytes)
        };
        let both = SYSCALL_HAS_CONTEXT | SYSCALL_HAS_ATTRIBUTES;
        for (flags, attributes) in [(both, &b"abcde"[..]), (SYSCALL_HAS_CONTEXT, b"")] {
            let (record, bytes) = record(flags, attributes.len());
            let paths = [&b""[..]; 2];
            let call =
                SyscallEntry { record: &record, second: None, paths, context: Some(&head), attributes };
            assert_eq!(decode(&bytes), Ok(Record::Syscall(call)));
        }
        let refused = |flags, behind| decode(&record(flags, behind).1).unwrap_err();
        assert!(matches!(refused(both, 4), DecodeError::Short { tag: TAG_SYSCALL, .. }));
        assert!(matches!(refused(both, 6), DecodeError::Long { tag: TAG_SYSCALL, .. }));
        assert!(matches!(refused(SYSCALL_HAS_CONTEXT, 5), DecodeError::Long { tag: TAG_SYSCALL, .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_bytes_after_a_valid_header_are_a_record_or_an_error(
            tag in 0u8..16, mut bytes in proptest::collection::vec(any::<u8>(), 16..600)
        ) {
            bytes[0] = tag;
            let len = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&len.to_ne_bytes());
            let _ = decode(&bytes);
        }
    }
}
