//! Shared code of the tests.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod c;
mod lttng;
mod user_crate;

pub(crate) use c::{compile, library, make, without_headers};
pub(crate) use lttng::{Event, Lttng, copy_program, isolate, remove_wait_file, succeed, unused_user};
pub(crate) use user_crate::UserCrate;
