//! OpenTelemetry's *process context* (OTEP 4719): the resource of this process, for readers of
//! other processes.
//!
//! *In*: attributes such as `service.name` and `service.instance.id`, as often as they change.
//! *Out*: a page of this process that a reader finds by its name in /proc/PID/maps, and a payload
//! to which the page points. blkkin adds the attributes, with the prefix `app.`, to the spans of
//! the process's system calls. Profilers read them too.
//!
//! *Invariant*: a reader that follows the standard reads one state or the next, never a mixture.
//! The number in the header is 0 during a write and different for each state. The order of writes
//! is that of OTEP 4719, *Publication Protocol* and *Updating Protocol*
//! (open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md at 34f27fdc).
//! Readers run on other CPUs, so the fences are hardware fences.
//!
//! *One per process*, by the standard: if another library has published one, it is left alone. A
//! forked child does not inherit it: the page is missing there, and the child has no process
//! context until it publishes its own.
//!
//! *Thread contexts*: if this library publishes thread contexts ([`crate::thread_context`]), the
//! payload also has the keys by which readers decode them, and the names of thread attributes
//! ([`thread_key`]). A name is added and never removed: a thread's record has only the number of a
//! key, and a reader resolves it with the names that it finds later.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::thread_attributes::ThreadKey;
use crate::thread_context::ThreadContextError;

/// Bytes of the page, which has only the header.
const PAGE_BYTES: usize = 4_096;
const NAME: &CStr = c"OTEL_CTX";
const VERSION: u64 = 2;
/// Maximum bytes of the payload that blkkin's reader accepts. Most payloads have some hundred
/// bytes.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Maximum names of thread attributes: a key number is one byte (OTEP 4947).
const KEYS_MAX: usize = 256;
/// Maximum bytes of a name that blkkin's reader accepts.
const KEY_BYTES_MAX: usize = 128;
/// MFD_NOEXEC_SEAL of Linux 6.3 (include/uapi/linux/memfd.h). Older kernels reject the flag.
const MFD_NOEXEC_SEAL: u32 = 8;
/// PR_SET_VMA of Linux 5.17 (include/uapi/linux/prctl.h).
const PR_SET_VMA: i32 = 0x5356_4d41;
/// PR_SET_VMA_ANON_NAME of Linux 5.17 (include/uapi/linux/prctl.h).
const PR_SET_VMA_ANON_NAME: libc::c_ulong = 0;

/// Header at the start of the page.
#[repr(C)]
struct Header {
    signature: AtomicU64,
    version_and_size: AtomicU64,
    /// Time of publication; 0 during a write.
    number: AtomicU64,
    payload: AtomicU64,
}

const _: () = assert!(size_of::<Header>() == 32);

/// Reason why a process context or an attribute name is not published.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProcessContextError {
    /// The environment has `BLKKIN_UST_CONTEXT=0`.
    Disabled,
    /// Another library of this process publishes one.
    AlreadyPublished,
    /// The payload exceeds 64 KiB, or a key is empty or exceeds 128 bytes.
    TooLong,
    /// The process already has 256 keys.
    TooManyKeys,
    /// Thread contexts are not published, so their attributes have no keys.
    ThreadContext(ThreadContextError),
    /// Memory that a reader could find was not available.
    Memory(String),
}

impl Display for ProcessContextError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("switched off by BLKKIN_UST_CONTEXT=0"),
            Self::AlreadyPublished => {
                f.write_str("another library of this process publishes a process context")
            }
            Self::TooLong => {
                write!(f, "more than {PAYLOAD_BYTES_MAX} bytes, or a key not of 1 to {KEY_BYTES_MAX}")
            }
            Self::TooManyKeys => write!(f, "there are {KEYS_MAX} keys already"),
            Self::ThreadContext(error) => write!(f, "threads do not publish: {error}"),
            Self::Memory(reason) => write!(f, "no memory for it: {reason}"),
        }
    }
}

impl std::error::Error for ProcessContextError {}

/// Publishes the resource attributes of this process, in place of those that it published before.
///
/// Keys follow OpenTelemetry's semantic conventions: `service.name`, `service.instance.id`,
/// `deployment.environment.name`. The first call takes about 0.1 ms, later ones 2 µs.
pub fn publish_process(attributes: &[(&str, &str)]) -> Result<(), ProcessContextError> {
    let (disabled, threads) = (is_disabled(), crate::publishing().is_ok());
    if disabled {
        return Err(ProcessContextError::Disabled);
    }
    let lock = Lock::acquire();
    let keys = lock.published().map_or_else(Vec::new, |published| published.keys.clone());
    lock.publish(Published { resource: resource(attributes), keys }, threads)
}

/// Registers the name of a thread attribute, such as `http.route`, and returns its key for
/// [`ThreadAttributes`](crate::ThreadAttributes).
///
/// Call it once per name, after [`init`](crate::init). Later calls return the same key. The first
/// call costs as much as [`publish_process`]. The key stays valid in a forked child, which
/// publishes it with its own process context.
pub fn thread_key(name: &str) -> Result<ThreadKey, ProcessContextError> {
    if is_disabled() {
        return Err(ProcessContextError::Disabled);
    }
    crate::publishing().map_err(ProcessContextError::ThreadContext)?;
    if !(1..=KEY_BYTES_MAX).contains(&name.len()) {
        return Err(ProcessContextError::TooLong);
    }
    let lock = Lock::acquire();
    let mut published = lock.published().cloned().unwrap_or_default();
    let known = published.keys.iter().position(|key| key == name);
    if known.is_none() && published.keys.len() == KEYS_MAX {
        return Err(ProcessContextError::TooManyKeys);
    }
    let number = known.unwrap_or(published.keys.len());
    if known.is_none() {
        published.keys.push(name.to_owned());
        lock.publish(published, true)?;
    }
    // KEYS_MAX numbers fit into a byte.
    Ok(ThreadKey(number as u8))
}

fn is_disabled() -> bool {
    std::env::var_os("BLKKIN_UST_CONTEXT").is_some_and(|value| value == "0")
}

/// Content of the last publication. The resource is encoded.
#[derive(Clone, Default)]
struct Published {
    resource: Vec<u8>,
    keys: Vec<String>,
}

/// Last publication. It is replaced as a whole, so a child that is forked meanwhile has the old one
/// or the new one.
static PUBLISHED: AtomicPtr<Published> = AtomicPtr::new(null_mut());
/// Number of the last publication, which the next one must exceed.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
/// Address of the page.
static PAGE: AtomicU64 = AtomicU64::new(0);
/// Process that made the page.
static PAGE_OWNER: AtomicU32 = AtomicU32::new(0);
/// Process in which a thread holds the lock; 0 for none.
static LOCK_OWNER: AtomicU32 = AtomicU32::new(0);

/// Lock of the statics. It is not a mutex: a child that was forked while another thread held one
/// would wait for ever. A lock that another process holds counts as free.
struct Lock;

impl Lock {
    fn acquire() -> Lock {
        let own = std::process::id();
        loop {
            let owner = LOCK_OWNER.load(Ordering::Relaxed);
            let free = owner != own;
            if free && LOCK_OWNER.compare_exchange(owner, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Lock;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the page of this process, which is made if it is missing.
    fn header(&self) -> Result<&'static Header, ProcessContextError> {
        let own = std::process::id();
        if PAGE_OWNER.load(Ordering::Relaxed) != own {
            // In a forked child the parent's page is missing, and its payload leaks: some hundred
            // bytes.
            let exists = fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(":OTEL_CTX"));
            if exists {
                return Err(ProcessContextError::AlreadyPublished);
            }
            let page = map_page().map_err(|error| ProcessContextError::Memory(error.to_string()))?;
            PAGE.store(page, Ordering::Relaxed);
            PAGE_OWNER.store(own, Ordering::Relaxed);
        }
        // SAFETY: a page of zeros that was mapped for it, aligned as pages are, and is never
        // unmapped.
        Ok(unsafe { &*(PAGE.load(Ordering::Relaxed) as *const Header) })
    }

    fn published(&self) -> Option<&Published> {
        // SAFETY: null or a box that `publish` has leaked. Only a holder of the lock frees it.
        unsafe { PUBLISHED.load(Ordering::Relaxed).as_ref() }
    }

    fn publish(&self, published: Published, threads: bool) -> Result<(), ProcessContextError> {
        let payload = payload(&published, threads);
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(ProcessContextError::TooLong);
        }
        let header = self.header()?;
        // Readers ignore the other fields while the number is 0.
        let before = header.number.swap(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let payload = Box::leak(payload.into_boxed_slice());
        let old = header.payload.swap(payload.as_ptr() as u64, Ordering::Relaxed);
        let length = (payload.len() as u64) << 32;
        let old_length = header.version_and_size.swap(length | VERSION, Ordering::Relaxed) >> 32;
        header.signature.store(u64::from_le_bytes(*b"OTEL_CTX"), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let number = boot_ns().max(before + 1).max(LAST_NUMBER.load(Ordering::Relaxed) + 1);
        header.number.store(number, Ordering::Relaxed);
        LAST_NUMBER.store(number, Ordering::Relaxed);
        set_name(header);
        if old != 0 {
            let old = std::ptr::slice_from_raw_parts_mut(old as *mut u8, old_length as usize);
            // SAFETY: a box that this function has leaked, by its address and length. A reader that
            // copies it at the same time discards the copy, because the number changed.
            drop(unsafe { Box::from_raw(old) });
        }
        let old = PUBLISHED.swap(Box::into_raw(Box::new(published)), Ordering::Relaxed);
        if !old.is_null() {
            // SAFETY: a box that this function has leaked, without other references.
            drop(unsafe { Box::from_raw(old) });
        }
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCK_OWNER.store(0, Ordering::Release);
    }
}

/// Maps a page that a reader finds: of a memfd, or, if none is allowed, anonymous memory with a
/// name.
fn map_page() -> io::Result<u64> {
    let create = |flags| {
        // SAFETY: the name ends in a NUL.
        unsafe { libc::memfd_create(NAME.as_ptr(), flags) }
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let file = match create(flags | MFD_NOEXEC_SEAL) {
        file if file >= 0 => file,
        _ => create(flags),
    };
    // SAFETY: the descriptor is ours, or negative, which fails.
    let is_file = file >= 0 && unsafe { libc::ftruncate(file, PAGE_BYTES as i64) } == 0;
    let (kind, from) =
        if is_file { (libc::MAP_PRIVATE, file) } else { (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page =
        unsafe { libc::mmap(null_mut(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, kind, from, 0) };
    let error = io::Error::last_os_error();
    if file >= 0 {
        // SAFETY: the descriptor is ours, and the mapping stays.
        unsafe { libc::close(file) };
    }
    if page == libc::MAP_FAILED {
        return Err(error);
    }
    // SAFETY: the mapping that was just made, which has no other user.
    let excluded_from_fork = unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_DONTFORK) } == 0;
    // SAFETY: a page of ours begins there.
    let found = is_file || unsafe { name_page(page as u64) };
    if excluded_from_fork && found {
        return Ok(page as u64);
    }
    let error = io::Error::last_os_error();
    // SAFETY: the mapping that was just made, which has no other user.
    unsafe { libc::munmap(page, PAGE_BYTES) };
    Err(error)
}

/// Names the page. By the standard this also notifies readers of an update. Kernels without names
/// refuse it.
fn set_name(header: &Header) {
    // SAFETY: the header is at the start of the page.
    unsafe { name_page(header as *const Header as u64) };
}

/// # Safety
///
/// A page of ours begins there.
unsafe fn name_page(page: u64) -> bool {
    // SAFETY: the caller's; the name ends in a NUL, and the kernel copies it.
    unsafe { libc::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, page, PAGE_BYTES, NAME.as_ptr()) == 0 }
}

fn boot_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Encodes `ProcessContext` of OTEP 4719: the resource, and the keys for thread contexts.
fn payload(published: &Published, threads: bool) -> Vec<u8> {
    let mut payload = field(1, &published.resource);
    if threads {
        let names: Vec<u8> = published.keys.iter().flat_map(|name| field(1, &text(name))).collect();
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

/// Encodes a length-delimited protobuf field.
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
