//! Text layout for a terminal, independent of traces.
//!
//! All text is composed in one alphabet, with box-drawing characters and `µ`. [`style`] translates
//! it to ASCII in the last step, character by character, so both alphabets share one layout.

pub mod line;
pub mod shorten;
pub mod style;
pub mod table;
pub mod units;
