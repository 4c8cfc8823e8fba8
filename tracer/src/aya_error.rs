//! Errors of the eBPF loader as text.

use crate::error::TracerError;

/// Returns the error for a map that the object lacks.
pub(crate) fn missing_map(map: &'static str) -> TracerError {
    TracerError::Map {
        map,
        reason: "the object has no such map; it was built from another source".to_owned(),
    }
}

/// Formats an error and its causes in one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        cause = error.source();
    }
    // The verifier's log can have megabytes; its end names the failing instruction.
    const KEPT: usize = 1500;
    if text.len() > KEPT {
        let from = text.len() - KEPT;
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text = format!("…{}", &text[from..]);
    }
    text
}
