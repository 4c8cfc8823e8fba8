//! How a static binary finds the addresses of brokers and collectors: by `/etc/hosts` and DNS, and nothing else.
//!
//! *Why*: glibc reads `/etc/nsswitch.conf` and loads a shared library for each other word that it finds there (`resolve`,
//! `mdns4_minimal`, `sss`). A static binary carries its own glibc, and such a library brings the machine's: two in one process,
//! of two versions, which glibc does not promise to work. `files` and `dns` are part of glibc itself since 2.34, and are what a
//! container without a file system of its own has.
//!
//! *Rejected*: musl, which has no such switch. Its target's core library comes by rustup alone, OpenSSL would have to be built
//! for it, and its allocator makes the aggregator slower.

/// Holds this process to them. To be called before any other thread runs.
pub(crate) fn hold_to_files_and_dns() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        // SAFETY: both are C strings that live for ever; no other thread runs yet. It fails for want of memory alone, and then
        // the machine's own configuration holds.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
unsafe extern "C" {
    /// nss.h: overrides what `/etc/nsswitch.conf` says of one database.
    fn __nss_configure_lookup(database: *const libc::c_char, services: *const libc::c_char) -> libc::c_int;
}
