//! Who this process is, where readers outside look for it: OpenTelemetry's *process context* (OTEP 4719).
//!
//! *In*: attributes (`service.name`, `service.instance.id`), as often as they change. *Out*: a page of this process that a reader finds by its
//! name in /proc/PID/maps, and a payload that it points at. blkkin puts what it reads there on the spans of this process's calls, with
//! the prefix `app.`; so do profilers with theirs.
//!
//! *Invariant*: a reader that follows the standard reads one state or the next, never a mixture: the number is 0 while anything else is
//! written, and another for each state. *Order of writes*: OTEP 4719, *Publication Protocol* and *Updating Protocol*
//! (open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md at 34f27fdc). The readers are on other CPUs, so
//! here the fences are the processor's.
//!
//! *One a process*, by the standard: where somebody else has published one, it is left alone. It is not a forked child's: there the page
//! is missing, and the child says who it is itself, or nothing.
//!
//! *What it says of threads*: where this library publishes what they work for ([`publish`]), the keys by which readers
//! are told of it, beside the resource; among them the names of what threads say besides ([`thread_key`]). A name is added and never taken
//! back: what a thread has said under its number is read when it has been said, and named by what is here then.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::publish::NotPublished;
use crate::said::ThreadKey;

/// Of the page: whatever is larger lies elsewhere.
const BYTES: usize = 4_096;
const NAME: &CStr = c"OTEL_CTX";
const VERSION: u64 = 2;
/// What a reader of blkkin's takes; and most say some hundred bytes.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Names of what threads say: a number is a byte (OTEP 4947).
const KEYS_MAX: usize = 256;
/// Of one of them, as blkkin takes it.
const KEY_BYTES_MAX: usize = 128;
/// MFD_NOEXEC_SEAL of Linux 6.3 (include/uapi/linux/memfd.h); an older kernel refuses the word.
const MFD_NOEXEC_SEAL: u32 = 8;
/// PR_SET_VMA and PR_SET_VMA_ANON_NAME of Linux 5.17 (include/uapi/linux/prctl.h).
const PR_SET_VMA: i32 = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: libc::c_ulong = 0;

/// As it lies at the page's begin.
#[repr(C)]
struct Header {
    signature: AtomicU64,
    version_and_size: AtomicU64,
    /// When it was published; 0: it is being written.
    number: AtomicU64,
    payload: AtomicU64,
}

const _: () = assert!(size_of::<Header>() == 32);

/// Why nothing is said.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotSaid {
    /// `BLKKIN_UST_CONTEXT=0` is in the environment.
    SwitchedOff,
    /// Another library of this process does it.
    Taken,
    /// More than 64 KiB; or a key without a name, or with one of more than 128 bytes.
    TooLong,
    /// There are 256 keys already.
    TooMany,
    /// Threads do not publish, so nothing is named.
    Threads(NotPublished),
    /// There is no memory for it that a reader could find.
    Refused(String),
}

impl Display for NotSaid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("switched off by BLKKIN_UST_CONTEXT=0"),
            Self::Taken => f.write_str("another library of this process publishes a process context"),
            Self::TooLong => {
                write!(f, "more than {PAYLOAD_BYTES_MAX} bytes, or a key not of 1 to {KEY_BYTES_MAX}")
            }
            Self::TooMany => write!(f, "there are {KEYS_MAX} keys already"),
            Self::Threads(why) => write!(f, "threads do not publish: {why}"),
            Self::Refused(why) => write!(f, "no memory for it: {why}"),
        }
    }
}

impl std::error::Error for NotSaid {}

/// Says from now on that this process is `attributes`, and nothing else that was said before.
///
/// Keys are OpenTelemetry's where it has one: `service.name`, `service.instance.id`, `deployment.environment.name`. It costs
/// about 0.1 ms the first time and 2 µs then.
pub fn publish_process(attributes: &[(&str, &str)]) -> Result<(), NotSaid> {
    let (off, threads) = (is_off(), crate::publishing().is_ok());
    if off {
        return Err(NotSaid::SwitchedOff);
    }
    let held = Held::take();
    let keys = held.words().map_or_else(Vec::new, |words| words.keys.clone());
    held.say(Words { resource: resource(attributes), keys }, threads)
}

/// The key of this name for what threads say of their work ([`Said`](crate::Said)): `http.route`. To be asked for after
/// [`init`](crate::init), once: it is the same each time, and costs what [`publish_process`] does the first time. It stays, also in a
/// forked child, which says it as its own when it says who it is.
pub fn thread_key(name: &str) -> Result<ThreadKey, NotSaid> {
    if is_off() {
        return Err(NotSaid::SwitchedOff);
    }
    crate::publishing().map_err(NotSaid::Threads)?;
    if !(1..=KEY_BYTES_MAX).contains(&name.len()) {
        return Err(NotSaid::TooLong);
    }
    let held = Held::take();
    let mut words = held.words().cloned().unwrap_or_default();
    let known = words.keys.iter().position(|key| key == name);
    if known.is_none() && words.keys.len() == KEYS_MAX {
        return Err(NotSaid::TooMany);
    }
    let number = known.unwrap_or(words.keys.len());
    if known.is_none() {
        words.keys.push(name.to_owned());
        held.say(words, true)?;
    }
    // One of 256.
    Ok(ThreadKey(number as u8))
}

fn is_off() -> bool {
    std::env::var_os("BLKKIN_UST_CONTEXT").is_some_and(|value| value == "0")
}

/// What this process says, as it was said last: of the resource the bytes.
#[derive(Clone, Default)]
struct Words {
    resource: Vec<u8>,
    keys: Vec<String>,
}

/// Replaced as a whole: a child that is forked meanwhile has the one or the other.
static WORDS: AtomicPtr<Words> = AtomicPtr::new(null_mut());
/// The last number, so that the next is another.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The page, and the process whose it is.
static PAGE: AtomicU64 = AtomicU64::new(0);
static PAGE_OF: AtomicU32 = AtomicU32::new(0);
/// The process in which a thread is at it; 0: none.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// One thread at a time. Not a mutex: a child that was forked while another thread held it would wait for ever; a holder of another
/// process is none.
struct Held;

impl Held {
    fn take() -> Held {
        let own = std::process::id();
        loop {
            let holder = HOLDER.load(Ordering::Relaxed);
            let free = holder != own;
            if free && HOLDER.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Held;
            }
            std::thread::yield_now();
        }
    }

    /// This process's page; made where there is none.
    fn header(&self) -> Result<&'static Header, NotSaid> {
        let own = std::process::id();
        if PAGE_OF.load(Ordering::Relaxed) != own {
            // In a forked child the other's page is missing, and what it pointed at is lost: some hundred bytes.
            let taken = fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(":OTEL_CTX"));
            if taken {
                return Err(NotSaid::Taken);
            }
            PAGE.store(page().map_err(|why| NotSaid::Refused(why.to_string()))?, Ordering::Relaxed);
            PAGE_OF.store(own, Ordering::Relaxed);
        }
        // SAFETY: a page of zeros that was mapped for it, aligned as pages are, and is never unmapped.
        Ok(unsafe { &*(PAGE.load(Ordering::Relaxed) as *const Header) })
    }
}

impl Held {
    fn words(&self) -> Option<&Words> {
        // SAFETY: null or a box that `say` has leaked; who takes it back is held meanwhile.
        unsafe { WORDS.load(Ordering::Relaxed).as_ref() }
    }

    fn say(&self, words: Words, threads: bool) -> Result<(), NotSaid> {
        let payload = payload(&words, threads);
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(NotSaid::TooLong);
        }
        let header = self.header()?;
        // What lies there is of no matter while the number is 0.
        let before = header.number.swap(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let payload = Box::leak(payload.into_boxed_slice());
        let old = header.payload.swap(payload.as_ptr() as u64, Ordering::Relaxed);
        let length = (payload.len() as u64) << 32;
        let old_length = header.version_and_size.swap(length | VERSION, Ordering::Relaxed) >> 32;
        header.signature.store(u64::from_le_bytes(*b"OTEL_CTX"), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        header
            .number
            .store(boot_ns().max(before + 1).max(LAST.load(Ordering::Relaxed) + 1), Ordering::Relaxed);
        LAST.store(header.number.load(Ordering::Relaxed), Ordering::Relaxed);
        name(header);
        if old != 0 {
            let old = std::ptr::slice_from_raw_parts_mut(old as *mut u8, old_length as usize);
            // SAFETY: a box that this function has leaked, by its address and length; a reader that is at it takes nothing of it.
            drop(unsafe { Box::from_raw(old) });
        }
        let old = WORDS.swap(Box::into_raw(Box::new(words)), Ordering::Relaxed);
        if !old.is_null() {
            // SAFETY: a box that this function has leaked, of which nobody else holds a reference now.
            drop(unsafe { Box::from_raw(old) });
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// A page that a reader finds: of a file in memory, or, where there may be none, of memory that has a name.
fn page() -> io::Result<u64> {
    let make = |flags| {
        // SAFETY: the name ends in a NUL.
        unsafe { libc::memfd_create(NAME.as_ptr(), flags) }
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let file = match make(flags | MFD_NOEXEC_SEAL) {
        file if file >= 0 => file,
        _ => make(flags),
    };
    // SAFETY: of a file that is ours, or of none, which fails.
    let is_file = file >= 0 && unsafe { libc::ftruncate(file, BYTES as i64) } == 0;
    let (kind, from) =
        if is_file { (libc::MAP_PRIVATE, file) } else { (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) };
    // SAFETY: a new mapping, where the kernel likes.
    let page = unsafe { libc::mmap(null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, kind, from, 0) };
    let failed = io::Error::last_os_error();
    if file >= 0 {
        // SAFETY: it is ours, and the mapping stays.
        unsafe { libc::close(file) };
    }
    if page == libc::MAP_FAILED {
        return Err(failed);
    }
    // SAFETY: the mapping that was just made, of nobody else's.
    let left_out = unsafe { libc::madvise(page, BYTES, libc::MADV_DONTFORK) } == 0;
    // SAFETY: as in `name`.
    let found = is_file || unsafe { named(page as u64) };
    if left_out && found {
        return Ok(page as u64);
    }
    let why = io::Error::last_os_error();
    // SAFETY: nobody knows of it.
    unsafe { libc::munmap(page, BYTES) };
    Err(why)
}

/// Gives the page its name, which is also how it is told that something is new; kernels without names refuse it.
fn name(header: &Header) {
    // SAFETY: the page that begins there.
    unsafe { named(header as *const Header as u64) };
}

/// # Safety
///
/// A page of ours begins there.
unsafe fn named(page: u64) -> bool {
    // SAFETY: the caller's; the name ends in a NUL, and the kernel copies it.
    unsafe { libc::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, page, BYTES, NAME.as_ptr()) == 0 }
}

fn boot_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the place is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// `ProcessContext` of OTEP 4719: its resource, and how to read threads.
fn payload(words: &Words, threads: bool) -> Vec<u8> {
    let mut payload = field(1, &words.resource);
    if threads {
        let names: Vec<u8> = words.keys.iter().flat_map(|name| field(1, &text(name))).collect();
        payload.extend(field(2, &pair("threadlocal.schema_version", &text("tlsdesc_v1_dev"))));
        payload.extend(field(2, &pair("threadlocal.attribute_key_map", &field(5, &names))));
    }
    payload
}

fn resource(attributes: &[(&str, &str)]) -> Vec<u8> {
    attributes.iter().flat_map(|(key, value)| field(1, &pair(key, &text(value)))).collect()
}

fn text(text: &str) -> Vec<u8> {
    field(1, text.as_bytes())
}

fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    [text(key), field(2, value)].concat()
}

/// Protobuf's, of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut left = bytes.len();
    while left > 0x7f {
        field.push(left as u8 | 0x80);
        left >>= 7;
    }
    field.push(left as u8);
    field.extend_from_slice(bytes);
    field
}
