//! What the soak is made of: worlds, the services between them and Zipkin, chance, and books of what came out.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod books;
pub(crate) mod chance;
pub(crate) mod live;
pub(crate) mod pipeline;
pub(crate) mod worlds;
