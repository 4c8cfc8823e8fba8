//! What the tests of the whole system share: disks of their own, tasks that do exactly what they are told, and
//! what the tracer says of both.
//!
//! A test that cannot run on a machine says `skipped: WHY` and returns.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]
#![allow(dead_code, unused_imports, unused_macros, reason = "each test file uses a part of it")]

pub(crate) mod actor;
pub(crate) mod aio;
pub(crate) mod blktrace;
pub(crate) mod context;
pub(crate) mod direct;
pub(crate) mod disk;
pub(crate) mod fio;
pub(crate) mod ftrace;
pub(crate) mod guest;
pub(crate) mod live;
pub(crate) mod metrics;
pub(crate) mod nbd;
pub(crate) mod one;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod resends;
pub(crate) mod room;
pub(crate) mod service;
pub(crate) mod sg;
pub(crate) mod terminal;
pub(crate) mod tools;
pub(crate) mod ublk;

/// Ends the test here, as one that does not apply to this machine.
macro_rules! skip {
    ($($why:tt)*) => {{
        println!("skipped: {}", format_args!($($why)*));
        return;
    }};
}
pub(crate) use skip;

/// Skips the test unless it runs as root and these programs are installed.
macro_rules! needs {
    ($($program:literal),*) => {
        if !crate::common::is_root() {
            crate::support::skip!("to load programs takes root");
        }
        $(if !crate::support::tools::is_installed($program) {
            crate::support::skip!("{} is not installed", $program);
        })*
    };
}
pub(crate) use needs;

/// Skips the test unless it runs inside a guest, whose kernel it is about.
macro_rules! needs_guest {
    () => {
        if std::env::var_os("BLKKIN_GUEST").is_none() {
            crate::support::skip!("runs inside a guest: cargo xtask vm");
        }
    };
}
pub(crate) use needs_guest;

/// The value, or the test is skipped for the reason given instead of it.
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => crate::support::skip!("{why}"),
        }
    };
}
pub(crate) use or_skip;
