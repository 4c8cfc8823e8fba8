//! The memory in which a process says who it is, read while the process may rewrite it: OpenTelemetry's *process context*.
//!
//! *In*: where its mapping begins ([`maps`](super::maps)). *Out*: the payload as it was at one moment, with the number of that
//! state, or why not. *Invariant*: nothing torn is given. The number is read by itself, then the rest, then the number again: where it is
//! 0 or another, somebody was writing (OTEP 4719, *Reading Protocol* and *Updating Protocol*;
//! open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md at 34f27fdc). Each read is a system call of its own
//! (process_vm_readv), so the reads keep their order. *Bounds*: four attempts, 64 KiB.
//!
//! *Weakness*: a process that puts another payload in and keeps the number is not found out. It could as well write what it likes.

use super::memory::Memory;

/// What the mapping begins with: signature, version, payload's size, number, payload's address.
const HEADER_BYTES: usize = 32;
const SIGNATURE: &[u8] = b"OTEL_CTX";
const VERSION: u32 = 2;
/// Where the number is: when it was published, which is another each time, or 0 while it is being written.
const NUMBER_AT: u64 = 16;
/// What a reader of the standard's authors expects is some KiB.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// A writer that changes it more often than once in 20 µs is looked at again later.
const ATTEMPTS: usize = 4;

/// Something that a process has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Of this state.
    pub(crate) number: u64,
    pub(crate) payload: Vec<u8>,
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is no process context; or none yet.
    None,
    /// Its memory is not there.
    Absent,
    /// It was being written, at each attempt.
    Changing,
    /// It is of another version, longer than it may be, or somewhere where nothing is.
    Refused,
}

/// The number of what is there now; none where it cannot be read, 0 while it is being written.
pub(crate) fn number(memory: &impl Memory, at: u64) -> Option<u64> {
    memory.word(at.checked_add(NUMBER_AT)?)
}

/// Reads all of it.
pub(crate) fn read(memory: &impl Memory, at: u64) -> Result<Said, Unread> {
    for _ in 0..ATTEMPTS {
        let before = number(memory, at).ok_or(Unread::Absent)?;
        let mut header = [0; HEADER_BYTES];
        memory.read(at, &mut header).ok_or(Unread::Absent)?;
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[from + byte]));
        let (version, size) = (word(8) as u32, (word(8) >> 32) as usize);
        if &header[..8] != SIGNATURE {
            return Err(Unread::None);
        }
        if before == 0 || word(16) != before {
            continue;
        }
        let mut payload = vec![0; size.min(PAYLOAD_BYTES_MAX)];
        let read = memory.read(word(24), &mut payload);
        if number(memory, at).ok_or(Unread::Absent)? != before {
            continue;
        }
        return match read {
            _ if version != VERSION || size > PAYLOAD_BYTES_MAX => Err(Unread::Refused),
            Some(()) => Ok(Said { number: before, payload }),
            None => Err(Unread::Refused),
        };
    }
    Err(Unread::Changing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::memory::{Bytes, ProcessMemory};
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, fence};

    const AT: u64 = 0x7000;

    fn header(version: u32, size: u32, number: u64, payload: u64) -> Vec<u8> {
        let words = u64::from(size) << 32 | u64::from(version);
        [SIGNATURE, &words.to_le_bytes(), &number.to_le_bytes(), &payload.to_le_bytes()].concat()
    }

    fn of(header: Vec<u8>, payload: &[u8]) -> Bytes {
        Bytes { at: AT, bytes: [&header, payload].concat() }
    }

    #[test]
    fn what_is_published_is_read_with_its_number() {
        let memory = of(header(2, 5, 77, AT + 32), b"hello");
        assert_eq!(read(&memory, AT), Ok(Said { number: 77, payload: b"hello".to_vec() }));
        assert_eq!(number(&memory, AT), Some(77));
    }

    #[test]
    fn what_is_none_is_none_and_says_why() {
        let why = |memory: Bytes| read(&memory, AT).unwrap_err();
        assert_eq!(why(of(header(2, 5, 0, AT + 32), b"hello")), Unread::Changing);
        assert_eq!(why(of(header(1, 5, 7, AT + 32), b"hello")), Unread::Refused);
        assert_eq!(why(of(header(2, u32::MAX, 7, AT + 32), b"hello")), Unread::Refused);
        assert_eq!(why(of(header(2, 5, 7, 0), b"hello")), Unread::Refused);
        assert_eq!(why(of(vec![0; 32], b"")), Unread::None);
        assert_eq!(why(of(header(2, 5, 7, AT)[..20].to_vec(), b"")), Unread::Absent);
        assert_eq!(read(&of(Vec::new(), b""), u64::MAX), Err(Unread::Absent));
        assert_eq!(read(&ProcessMemory(u32::MAX), AT), Err(Unread::Absent));
    }

    /// A writer that takes a step at each read, in the order of the standard: 0, payload, address and size, the new number.
    struct Rewritten {
        memory: RefCell<Bytes>,
        reads: Cell<usize>,
        /// Before which reads it takes its next step.
        steps: Vec<usize>,
        step: Cell<usize>,
    }

    /// Payloads of two states: all `a`, all `b`, of other lengths, in one place.
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

    /// Ends whoever goes on until then, also where a test fails.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// A thread that rewrites what this process says as fast as it can, by the standard's order, between two payloads: each is all
    /// of one letter, whose state the number's lowest bit names.
    #[test]
    fn nothing_torn_is_read_from_memory_that_is_rewritten_meanwhile() {
        const READS: u32 = 20_000;
        const LENGTHS: [usize; 2] = [900, 3_000];
        #[repr(C)]
        struct Page {
            signature: AtomicU64,
            version_and_size: AtomicU64,
            number: AtomicU64,
            payload: AtomicU64,
            bytes: [AtomicU8; 3_000],
        }
        let page = Page {
            signature: AtomicU64::new(u64::from_le_bytes(SIGNATURE.try_into().unwrap())),
            version_and_size: AtomicU64::new(2),
            number: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            bytes: [const { AtomicU8::new(0) }; 3_000],
        };
        let done = AtomicBool::new(false);
        let (mut right, mut changing, mut numbers) = (0, 0, std::collections::HashSet::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 2_u64.. {
                    if done.load(Relaxed) {
                        break;
                    }
                    let state = (number & 1) as usize;
                    page.number.store(0, Relaxed);
                    fence(SeqCst);
                    // In place, over the very bytes that a reader may be at.
                    let letter = [b'a', b'b'][state];
                    page.bytes[..LENGTHS[state]].iter().for_each(|byte| byte.store(letter, Relaxed));
                    page.payload.store(page.bytes.as_ptr() as u64, Relaxed);
                    page.version_and_size.store((LENGTHS[state] as u64) << 32 | 2, Relaxed);
                    fence(SeqCst);
                    page.number.store(number, Relaxed);
                    // So that a reader gets between two of them now and then.
                    (0..number % 40_000).for_each(|_| std::hint::spin_loop());
                }
            });
            let _done = Done(&done);
            for _ in 0..READS {
                match read(&ProcessMemory(std::process::id()), &raw const page as u64) {
                    Ok(Said { number, payload }) => {
                        let state = (number & 1) as usize;
                        assert_eq!(payload.len(), LENGTHS[state]);
                        assert!(payload.iter().all(|byte| *byte == [b'a', b'b'][state]), "torn: {number}");
                        numbers.insert(number);
                        right += 1;
                    }
                    Err(why) => {
                        assert_eq!(why, Unread::Changing);
                        changing += 1;
                    }
                }
            }
        });
        assert!(
            right > 0 && numbers.len() > 10,
            "{right} reads of {} states, {changing} in vain",
            numbers.len()
        );
    }

    proptest! {
        /// Wherever between its reads the writer goes on, what is read is one of the states, with that state's number.
        #[test]
        fn nothing_torn_is_given(steps in proptest::collection::vec(0..16usize, 0..40)) {
            let mut bytes = header(2, 4, 100, AT + 32);
            bytes.extend([b'a'; 32]);
            bytes.extend([0; 32]);
            let memory = RefCell::new(Bytes { at: AT, bytes });
            let rewritten = Rewritten { memory, reads: Cell::new(0), steps, step: Cell::new(0) };
            if let Ok(said) = read(&rewritten, AT) {
                prop_assert_eq!(said.payload, STATES[said.number as usize % 2].0);
            }
        }

        #[test]
        fn any_memory_is_looked_through(bytes in proptest::collection::vec(any::<u8>(), 0..80), at: u64) {
            let mut bytes = bytes;
            bytes.splice(..bytes.len().min(8), SIGNATURE.iter().copied());
            let _ = read(&Bytes { at, bytes }, at);
        }
    }
}
