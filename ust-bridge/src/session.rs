//! A session of our own: made by the `lttng` command, taken away when its keeper goes, or at the next start where that one
//! was killed.
//!
//! [`tool`] runs the command, [`daemons`] starts private daemons where none run, [`keeper`] makes, replaces and ends
//! sessions. A session that the user made needs none of this: [`crate::live::follow`] attaches to it by name.
//!
//! Buffers are one ring a processor for each user by default; 300 processes share 2.2 MB then. A ring for each process costs 2.1
//! MB each, and a relay forgets a process that ends before its reader has heard of it: for a few processes that stay.

pub mod daemons;
pub mod keeper;
pub mod tool;
