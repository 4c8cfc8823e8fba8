//! An LTTng session of blkkin's own.
//!
//! *In*: the names of the enabled events. *Out*: a live session at a relay, which [`blkkin_lttng_live::live`]
//! reads. [`lttng_command`] runs the `lttng` command, [`lttng_daemons`] starts private LTTng
//! daemons if none run, and [`supervisor`] creates, replaces and destroys sessions. The relay runs
//! in a [`private_network`], which the session daemon reaches through the [`gate`]. A session that
//! the user created needs none of these: [`blkkin_lttng_live::live::follow`] attaches to it by name.
//!
//! *Invariant*: a session ends with its supervisor. The next start destroys the session of a
//! supervisor that was killed.
//!
//! *Rejected*: buffers of each process. By default each user has one ring per CPU, and 300
//! processes share 2.2 MB. Rings of a process cost 2.1 MB each, and a relay forgets a process that
//! exits before the reader has learned of its streams. They suit a few long-lived processes.

pub mod gate;
pub mod lttng_command;
pub mod lttng_daemons;
pub mod private_network;
pub mod supervisor;
