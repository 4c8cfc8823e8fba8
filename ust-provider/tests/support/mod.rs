//! What the tests share.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

pub(crate) mod batch;
mod c;
mod fresh;
mod lttng;

pub(crate) use c::{compile, library, make, without_headers};
pub(crate) use fresh::Fresh;
pub(crate) use lttng::{Event, Lttng, alone, copy_program, forget, nobody_else, succeed};
