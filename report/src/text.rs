//! Words and numbers on a terminal: no trace in here.
//!
//! Everything is written in one alphabet, with box-drawing characters and `µ`; [`style`] turns it into ASCII at
//! the very end, character by character, so that both look the same and only one is laid out.

pub mod line;
pub mod shorten;
pub mod style;
pub mod table;
pub mod units;
