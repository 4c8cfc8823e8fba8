//! One request drawn over time: what happened when, at which layer, and in words where the time went.
//!
//! *In*: a trace and the account's split of its time. *Out*: lines. [`tree`] says which rows there are and which
//! stretches of time each has, with [`block`] for what lies below the file system, [`bar`] puts stretches into columns, [`draw`] puts rows side by side with their
//! numbers, [`heading`] and [`words`] say the rest. [`operation`] does the same for what programs
//! say of themselves, with the calls made for it as rows among its own. None of them knows a terminal.
//!
//! *Invariant*: a drawn stretch is a measured one. What is unaccounted is drawn where nothing
//! else was, and looks like nothing else.

pub mod bar;
pub mod block;
pub mod draw;
pub mod heading;
pub mod operation;
pub mod tree;
pub mod words;
