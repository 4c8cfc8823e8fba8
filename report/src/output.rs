//! Entry points of a report's two output formats.
//!
//! They are outside [`crate::report`] because both formats read [`Report`]: the collected data does
//! not depend on how it is written.

use serde_json::Value;

use crate::losses::Losses;
use crate::report::Report;
use crate::text::style::Style;
use crate::view::Section;
use crate::{json, view};

impl Report {
    /// Renders the summary as text for a terminal, and these sections behind it; each line ends with a newline. The
    /// summary alone fits a terminal of 80 columns and 24 lines unless much was lost or went wrong.
    pub fn render(&self, style: &Style, losses: &Losses, sections: &[Section]) -> String {
        view::page(self, losses, style, sections)
    }

    /// Serialises the report as JSON, with times in ns, sizes in bytes and no rounding.
    pub fn to_json(&self, losses: &Losses) -> Value {
        json::value(self, losses)
    }
}
