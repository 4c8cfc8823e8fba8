//! Reader of OpenTelemetry *process contexts* (OTEP 4719), which the process may rewrite during the
//! read.
//!
//! *In*: the start of the mapping, from a [`scan`](crate::scan()). *Out*: the payload of one state
//! with its timestamp, or an error. *Invariant*: no torn payload is returned. The reader reads the
//! timestamp, then the rest, then the timestamp again. If it is 0 or has changed, the process was
//! writing (OTEP 4719, *Reading Protocol* and *Updating Protocol*;
//! open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md at 34f27fdc).
//! Each read is a separate system call (process_vm_readv), so the reads keep their order. *Bounds*:
//! four attempts, 64 KiB.
//!
//! *Weakness*: a process that changes the payload and keeps the timestamp goes unnoticed. It could
//! as well publish any other payload.

use crate::memory::Memory;

/// Bytes of the mapping's header: signature, version, payload size, timestamp, payload address.
const HEADER_BYTES: usize = 32;
const SIGNATURE: &[u8] = b"OTEL_CTX";
const VERSION: u32 = 2;
/// Offset of the publication timestamp, different for each state, or 0 while the process writes.
const PUBLISHED_AT_OFFSET: u64 = 16;
/// Maximum payload. The authors of the standard expect some KiB.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of attempts. A process that writes more often than once in 20 µs is read again
/// later.
const READ_ATTEMPTS: usize = 4;

/// Consistent state of a process context, with its encoded payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessContext {
    /// Timestamp of this state.
    pub published_at: u64,
    /// The payload: see [`resource::decode`](crate::resource::decode).
    pub payload: Vec<u8>,
}

/// Reason why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The mapping contains no process context, or none yet.
    #[error("no process context is published there")]
    NotPublished,
    /// The memory is not mapped.
    #[error("the memory is not mapped")]
    Unmapped,
    /// The process was writing at every attempt.
    #[error("the process context was being written")]
    BeingWritten,
    /// The version is unknown, the payload is too long, or its address is not mapped.
    #[error("the process context is invalid")]
    Invalid,
}

/// Reads the current timestamp; none if the memory is not mapped, 0 while the process writes.
pub fn published_at(memory: &impl Memory, at: u64) -> Option<u64> {
    memory.read_u64(at.checked_add(PUBLISHED_AT_OFFSET)?)
}

/// Reads the whole process context.
pub fn read(memory: &impl Memory, at: u64) -> Result<ProcessContext, ReadError> {
    for _ in 0..READ_ATTEMPTS {
        let before = published_at(memory, at).ok_or(ReadError::Unmapped)?;
        let mut header = [0; HEADER_BYTES];
        memory.read(at, &mut header).ok_or(ReadError::Unmapped)?;
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[from + byte]));
        let (version, size) = (word(8) as u32, (word(8) >> 32) as usize);
        if &header[..8] != SIGNATURE {
            return Err(ReadError::NotPublished);
        }
        if before == 0 || word(16) != before {
            continue;
        }
        let mut payload = vec![0; size.min(PAYLOAD_BYTES_MAX)];
        let read = memory.read(word(24), &mut payload);
        if published_at(memory, at).ok_or(ReadError::Unmapped)? != before {
            continue;
        }
        return match read {
            _ if version != VERSION || size > PAYLOAD_BYTES_MAX => Err(ReadError::Invalid),
            Some(()) => Ok(ProcessContext { published_at: before, payload }),
            None => Err(ReadError::Invalid),
        };
    }
    Err(ReadError::BeingWritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{FakeMemory, ProcessMemory};
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, fence};

    const AT: u64 = 0x7000;

    fn header(version: u32, size: u32, timestamp: u64, payload: u64) -> Vec<u8> {
        let words = u64::from(size) << 32 | u64::from(version);
        [SIGNATURE, &words.to_le_bytes(), &timestamp.to_le_bytes(), &payload.to_le_bytes()].concat()
    }

    fn of(header: Vec<u8>, payload: &[u8]) -> FakeMemory {
        FakeMemory { at: AT, bytes: [&header, payload].concat() }
    }

    #[test]
    fn payload_is_read_with_its_timestamp() {
        let memory = of(header(2, 5, 77, AT + 32), b"hello");
        assert_eq!(read(&memory, AT), Ok(ProcessContext { published_at: 77, payload: b"hello".to_vec() }));
        assert_eq!(published_at(&memory, AT), Some(77));
    }

    #[test]
    fn invalid_process_contexts_are_distinguished() {
        let error = |memory: FakeMemory| read(&memory, AT).unwrap_err();
        assert_eq!(error(of(header(2, 5, 0, AT + 32), b"hello")), ReadError::BeingWritten);
        assert_eq!(error(of(header(1, 5, 7, AT + 32), b"hello")), ReadError::Invalid);
        assert_eq!(error(of(header(2, u32::MAX, 7, AT + 32), b"hello")), ReadError::Invalid);
        assert_eq!(error(of(header(2, 5, 7, 0), b"hello")), ReadError::Invalid);
        assert_eq!(error(of(vec![0; 32], b"")), ReadError::NotPublished);
        assert_eq!(error(of(header(2, 5, 7, AT)[..20].to_vec(), b"")), ReadError::Unmapped);
        assert_eq!(read(&of(Vec::new(), b""), u64::MAX), Err(ReadError::Unmapped));
        assert_eq!(read(&ProcessMemory(u32::MAX), AT), Err(ReadError::Unmapped));
    }

    /// A writer that takes one step per read, in the order of the standard: timestamp 0, payload,
    /// address and size, new timestamp.
    struct Rewritten {
        memory: RefCell<FakeMemory>,
        reads: Cell<usize>,
        /// Reads before which the writer takes its next step.
        steps: Vec<usize>,
        step: Cell<usize>,
    }

    /// Payloads of two states: all `a` or all `b`, of different lengths, at one address.
    const STATES: [(&[u8], u64); 2] = [(b"aaaa", 32), (b"bbbbbbbb", 32)];

    impl Rewritten {
        fn take_step(&self) {
            let step = self.step.get();
            self.step.set(step + 1);
            let (state, write) = (step / 4 + 1, step % 4);
            let (payload, offset) = STATES[state % 2];
            let mut memory = self.memory.borrow_mut();
            let mut put = |at: usize, bytes: &[u8]| memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            match write {
                0 => put(16, &[0; 8]),
                1 => put(offset as usize, payload),
                2 => {
                    put(24, &(AT + offset).to_le_bytes());
                    put(12, &(payload.len() as u32).to_le_bytes());
                }
                _ => put(16, &(100 + state as u64).to_le_bytes()),
            }
        }
    }

    impl Memory for Rewritten {
        fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
            let reads = self.reads.get();
            self.reads.set(reads + 1);
            self.steps.iter().filter(|step| **step == reads).for_each(|_| self.take_step());
            self.memory.borrow().read(address, into)
        }
    }

    /// Ends the writer thread, also if the test fails.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// A thread rewrites its process context as fast as it can, in the order of the standard. It
    /// alternates between two payloads, each of one letter, which the timestamp's lowest bit
    /// selects.
    #[test]
    fn concurrent_writes_never_yield_a_torn_payload() {
        const READS: u32 = 20_000;
        const LENGTHS: [usize; 2] = [900, 3_000];
        #[repr(C)]
        struct Page {
            signature: AtomicU64,
            version_and_size: AtomicU64,
            timestamp: AtomicU64,
            payload: AtomicU64,
            bytes: [AtomicU8; 3_000],
        }
        let page = Page {
            signature: AtomicU64::new(u64::from_le_bytes(SIGNATURE.try_into().unwrap())),
            version_and_size: AtomicU64::new(2),
            timestamp: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            bytes: [const { AtomicU8::new(0) }; 3_000],
        };
        let done = AtomicBool::new(false);
        let (mut right, mut changing, mut timestamps) = (0, 0, std::collections::HashSet::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for timestamp in 2_u64.. {
                    if done.load(Relaxed) {
                        break;
                    }
                    let state = (timestamp & 1) as usize;
                    page.timestamp.store(0, Relaxed);
                    fence(SeqCst);
                    // In place, over bytes that a reader may be reading.
                    let letter = [b'a', b'b'][state];
                    page.bytes[..LENGTHS[state]].iter().for_each(|byte| byte.store(letter, Relaxed));
                    page.payload.store(page.bytes.as_ptr() as u64, Relaxed);
                    page.version_and_size.store((LENGTHS[state] as u64) << 32 | 2, Relaxed);
                    fence(SeqCst);
                    page.timestamp.store(timestamp, Relaxed);
                    // Leaves a gap for the reader now and then.
                    (0..timestamp % 40_000).for_each(|_| std::hint::spin_loop());
                }
            });
            let _done = Done(&done);
            for _ in 0..READS {
                match read(&ProcessMemory(std::process::id()), &raw const page as u64) {
                    Ok(ProcessContext { published_at: timestamp, payload }) => {
                        let state = (timestamp & 1) as usize;
                        assert_eq!(payload.len(), LENGTHS[state]);
                        assert!(payload.iter().all(|byte| *byte == [b'a', b'b'][state]), "torn: {timestamp}");
                        timestamps.insert(timestamp);
                        right += 1;
                    }
                    Err(error) => {
                        assert_eq!(error, ReadError::BeingWritten);
                        changing += 1;
                    }
                }
            }
        });
        assert!(
            right > 0 && timestamps.len() > 10,
            "{right} reads of {} states, {changing} in vain",
            timestamps.len()
        );
    }

    proptest! {
        /// Wherever the writer continues between the reads, the result is one of the states with
        /// that state's timestamp.
        #[test]
        fn interleaved_writes_never_yield_a_torn_payload(steps in proptest::collection::vec(0..16usize, 0..40)) {
            let mut bytes = header(2, 4, 100, AT + 32);
            bytes.extend([b'a'; 32]);
            bytes.extend([0; 32]);
            let memory = RefCell::new(FakeMemory { at: AT, bytes });
            let rewritten = Rewritten { memory, reads: Cell::new(0), steps, step: Cell::new(0) };
            if let Ok(context) = read(&rewritten, AT) {
                prop_assert_eq!(context.payload, STATES[context.published_at as usize % 2].0);
            }
        }

        #[test]
        fn any_memory_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), at: u64) {
            let mut bytes = bytes;
            bytes.splice(..bytes.len().min(8), SIGNATURE.iter().copied());
            let _ = read(&FakeMemory { at, bytes }, at);
        }
    }
}
