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
//! are told of it, beside the resource.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Of the page: whatever is larger lies elsewhere.
const BYTES: usize = 4_096;
const NAME: &CStr = c"OTEL_CTX";
const VERSION: u64 = 2;
/// What a reader of blkkin's takes; and most say some hundred bytes.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
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
    /// More than 64 KiB.
    TooLong,
    /// There is no memory for it that a reader could find.
    Refused(String),
}

impl Display for NotSaid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("switched off by BLKKIN_UST_CONTEXT=0"),
            Self::Taken => f.write_str("another library of this process publishes a process context"),
            Self::TooLong => write!(f, "more than {PAYLOAD_BYTES_MAX} bytes"),
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
    if std::env::var_os("BLKKIN_UST_CONTEXT").is_some_and(|value| value == "0") {
        return Err(NotSaid::SwitchedOff);
    }
    let payload = payload(attributes, crate::publishing().is_ok());
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(NotSaid::TooLong);
    }
    let held = Held::take();
    let header = held.header()?;
    // What lies there is of no matter while the number is 0.
    let before = header.number.swap(0, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let payload = Box::leak(payload.into_boxed_slice());
    let old = header.payload.swap(payload.as_ptr() as u64, Ordering::Relaxed);
    let length = (payload.len() as u64) << 32;
    let old_length = header.version_and_size.swap(length | VERSION, Ordering::Relaxed) >> 32;
    header.signature.store(u64::from_le_bytes(*b"OTEL_CTX"), Ordering::Relaxed);
    fence(Ordering::SeqCst);
    header.number.store(boot_ns().max(before + 1).max(LAST.load(Ordering::Relaxed) + 1), Ordering::Relaxed);
    LAST.store(header.number.load(Ordering::Relaxed), Ordering::Relaxed);
    name(header);
    if old != 0 {
        let old = std::ptr::slice_from_raw_parts_mut(old as *mut u8, old_length as usize);
        // SAFETY: a box that this function has leaked, by its address and length; a reader that is at it takes nothing of it.
        drop(unsafe { Box::from_raw(old) });
    }
    Ok(())
}

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
fn payload(attributes: &[(&str, &str)], threads: bool) -> Vec<u8> {
    let text = |text: &str| field(1, text.as_bytes());
    let pair = |key: &str, value: &[u8]| [text(key), field(2, value)].concat();
    let resource: Vec<u8> =
        attributes.iter().flat_map(|(key, value)| field(1, &pair(key, &text(value)))).collect();
    let mut payload = field(1, &resource);
    if threads {
        payload.extend(field(2, &pair("threadlocal.schema_version", &text("tlsdesc_v1_dev"))));
        payload.extend(field(2, &pair("threadlocal.attribute_key_map", &field(5, &[]))));
    }
    payload
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
