//! Reader of a thread's OpenTelemetry thread context (OTEP 4947).
//!
//! *In*: the memory of a process, and the address of a thread's slot
//! ([`TlsLocation::address`](crate::TlsLocation::address)). *Out*: the thread context, or none.
//!
//! *Weakness*: the record may change during the read. For an exact result the thread must be
//! stopped, as it is in a signal, in a system call or under ptrace.

use crate::memory::Memory;
use crate::thread_attributes::{self, ThreadAttributes};

/// Bytes of the record's header: trace id, span id, valid, trace flags, length of the attributes.
const HEADER_BYTES: usize = 28;
/// Maximum bytes of attributes. Writers are recommended to keep a record at or under 640 bytes
/// (OTEP 4947, *Thread-Local Context Record*).
const ATTRIBUTES_MAX: usize = 640 - HEADER_BYTES;

/// Span that a thread works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadContext {
    /// Trace id, in network byte order.
    pub trace_id: [u8; 16],
    /// Span id, in network byte order.
    pub span_id: [u8; 8],
    /// Trace flags of W3C Trace Context; bit 0 is *sampled*.
    pub trace_flags: u8,
    /// Attributes; none if they are longer than the recommended maximum or cannot be read.
    pub attributes: Option<ThreadAttributes>,
}

/// Reads the thread context whose slot is at `address`. None if the thread has none, is writing it,
/// or if the memory cannot be read.
pub fn read(memory: &impl Memory, address: u64) -> Option<ThreadContext> {
    let record = memory.read_u64(address).filter(|record| *record != 0)?;
    let mut header = [0; HEADER_BYTES];
    memory.read(record, &mut header)?;
    if header[24] != 1 {
        return None;
    }
    let length = usize::from(u16::from_le_bytes([header[26], header[27]]));
    let mut bytes = vec![0; length.min(ATTRIBUTES_MAX)];
    let at = record.wrapping_add(HEADER_BYTES as u64);
    let are_read = length <= ATTRIBUTES_MAX && (length == 0 || memory.read(at, &mut bytes).is_some());
    Some(ThreadContext {
        trace_id: std::array::from_fn(|byte| header[byte]),
        span_id: std::array::from_fn(|byte| header[16 + byte]),
        trace_flags: header[25],
        attributes: are_read.then(|| thread_attributes::decode(&bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FakeMemory;

    /// Memory with a slot at 0x1000 that points to a record at 0x1008.
    fn memory(valid: u8, attributes: &[u8], length: u16) -> FakeMemory {
        let slot = 0x1008u64.to_le_bytes();
        let header = [&[1; 16][..], &[2; 8], &[valid, 1], &length.to_le_bytes()].concat();
        FakeMemory { at: 0x1000, bytes: [&slot, &header[..], attributes].concat() }
    }

    #[test]
    fn valid_record_is_read_with_its_attributes() {
        let context = read(&memory(1, &[3, 2, b'h', b'i'], 4), 0x1000).unwrap();
        assert_eq!((context.trace_id, context.span_id, context.trace_flags), ([1; 16], [2; 8], 1));
        assert_eq!(context.attributes.unwrap().entries, [(3, "hi".into())]);
        let attributes = |length| read(&memory(1, &[], length), 0x1000).unwrap().attributes;
        assert_eq!(attributes(0), Some(ThreadAttributes::default()));
        assert_eq!((attributes(4), attributes(u16::MAX)), (None, None));
    }

    #[test]
    fn missing_invalid_and_unmapped_records_are_none() {
        assert_eq!(read(&memory(0, &[], 0), 0x1000), None);
        assert_eq!(read(&memory(1, &[], 0), 0x2000), None);
        assert_eq!(read(&FakeMemory { at: 0x1000, bytes: vec![0; 8] }, 0x1000), None);
        assert_eq!(read(&FakeMemory { at: 0x1000, bytes: vec![1; 8] }, 0x1000), None);
    }
}
