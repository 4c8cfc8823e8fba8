//! Entry points of a report's two output formats.
//!
//! They are outside [`crate::report`] because both formats read [`Report`]: the collected data does
//! not depend on how it is written.

use serde_json::Value;

use crate::losses::Losses;
use crate::report::Report;
use crate::text::style::Style;
use crate::{json, view};

impl Report {
    /// Renders the report as text for a terminal; each line ends with a newline.
    pub fn render(&self, style: &Style, losses: &Losses) -> String {
        view::page(self, losses, style)
    }

    /// Serialises the report as JSON, with times in ns, sizes in bytes and no rounding.
    pub fn to_json(&self, losses: &Losses) -> Value {
        json::value(self, losses)
    }
}
