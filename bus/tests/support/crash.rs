//! The end of a test's process, in which librdkafka's threads run too.
//!
//! OpenSSL's exit handler frees state that such a thread may still use. So a test's process ends without the handlers
//! of libraries, as `blkkin` does (`blkkin/src/main.rs`). If a thread crashes all the same, its stack is printed.

use std::backtrace::Backtrace;
use std::sync::Once;

use rdkafka::ClientConfig;
use rdkafka::producer::BaseProducer;

/// Has the process end as described above.
pub(crate) fn end_without_exit_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The first client registers OpenSSL's handler. A handler that is registered later runs earlier.
        drop(ClientConfig::new().create::<BaseProducer>());
        // SAFETY: both handlers have the signatures that their registration expects.
        unsafe {
            on_exit(end, std::ptr::null_mut());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_crash as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        }
    });
}

unsafe extern "C" {
    /// Of glibc, see on_exit(3).
    fn on_exit(
        function: extern "C" fn(libc::c_int, *mut libc::c_void),
        argument: *mut libc::c_void,
    ) -> libc::c_int;
}

extern "C" fn end(status: libc::c_int, _: *mut libc::c_void) {
    // SAFETY: it takes a number and does not return. Rust has written its output before.
    unsafe { libc::_exit(status) }
}

/// Returning repeats the access, which now ends the process.
#[allow(clippy::print_stderr, reason = "the process ends here")]
extern "C" fn on_crash(_: libc::c_int) {
    // SAFETY: no preconditions. The capture may wait for a lock that this thread holds.
    unsafe { libc::alarm(20) };
    let thread = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    eprintln!("crash in thread {}:\n{}", thread.trim(), Backtrace::force_capture());
}
