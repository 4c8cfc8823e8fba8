//! Name resolution of a static binary: `/etc/hosts` and DNS only.
//!
//! *Why*: glibc reads `/etc/nsswitch.conf` and loads a shared library for each other service that
//! it names (`resolve`, `mdns4_minimal`, `sss`). A static binary carries its own glibc, and such a
//! library loads the machine's: two copies in one process, of two versions, which glibc does not
//! support. `files` and `dns` are part of glibc itself since 2.34, and a container without a file
//! system of its own has nothing else.
//!
//! *Rejected*: musl, which has no such switch. The core library of its target comes only through
//! rustup, OpenSSL would have to be built for it, and its allocator makes the aggregator slower.

/// Restricts this process to `files` and `dns`. Must run before any other thread starts.
pub(crate) fn restrict_nss_to_files_and_dns() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        // SAFETY: both are static C strings, and no other thread runs yet. The call fails only
        // without memory; the machine's own configuration then applies.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
unsafe extern "C" {
    /// nss.h: overrides the services that `/etc/nsswitch.conf` names for one database.
    fn __nss_configure_lookup(database: *const libc::c_char, services: *const libc::c_char) -> libc::c_int;
}
