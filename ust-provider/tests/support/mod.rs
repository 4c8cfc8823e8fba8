//! What the tests share.
#![allow(dead_code, reason = "each test program uses a part")]

mod c;
mod fresh;
mod lttng;

pub(crate) use c::{compile, library};
pub(crate) use fresh::Fresh;
pub(crate) use lttng::{Event, Lttng, succeed};
