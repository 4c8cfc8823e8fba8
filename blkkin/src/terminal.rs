//! Capabilities of the terminal behind an output: width, alphabet, colour.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};

use blkkin_report::{Alphabet, Colour, Style};
use terminal_size::Width;

use crate::cli::Color;

/// Columns without a terminal and without COLUMNS; the report is laid out for this width.
const WIDTH_DEFAULT: usize = 100;

/// Returns the style for `output`.
pub(crate) fn style(color: Color, output: &(impl AsFd + IsTerminal)) -> Style {
    let width = terminal_size::terminal_size_of(output);
    Style {
        width: width
            .map_or_else(|| columns(std::env::var("COLUMNS").ok()), |(Width(columns), _)| columns.into()),
        alphabet: alphabet(|name| std::env::var(name).ok()),
        colour: if colored(color, output) { Colour::Ansi } else { Colour::Never },
    }
}

/// Returns whether this process may write to the terminal behind `output` without disturbing
/// another job. A background job may not, and may even be stopped for it (stty tostop).
pub(crate) fn in_foreground(output: impl AsFd) -> bool {
    // SAFETY: both calls take and return numbers only; the descriptor is open while `output` is
    // borrowed.
    unsafe { libc::tcgetpgrp(output.as_fd().as_raw_fd()) == libc::getpgrp() }
}

/// Returns the columns of an output that is not a terminal, from the environment (environ(7)).
fn columns(set: Option<String>) -> usize {
    set.and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0).unwrap_or(WIDTH_DEFAULT)
}

/// Returns whether to use colour. Automatic colour needs a terminal that supports it, and no
/// NO_COLOR (no-color.org).
fn colored(color: Color, output: &impl IsTerminal) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            output.is_terminal() && !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

/// Takes the locale from the first variable that is set (setlocale(3)). Without one, UTF-8 is
/// assumed: today's terminals use it.
fn alphabet(variable: impl Fn(&str) -> Option<String>) -> Alphabet {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    match set {
        Some(locale) if !locale.to_ascii_lowercase().replace('-', "").contains("utf8") => Alphabet::Ascii,
        _ => Alphabet::Unicode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_without_a_terminal_comes_from_the_environment() {
        assert_eq!(columns(Some("132".into())), 132);
        for unusable in [None, Some("0"), Some(""), Some("wide"), Some("-1")] {
            assert_eq!(columns(unusable.map(str::to_owned)), WIDTH_DEFAULT, "{unusable:?}");
        }
    }

    #[test]
    fn alphabet_follows_the_locale() {
        let of = |name: &'static str, value: &'static str| {
            alphabet(move |variable| (variable == name).then(|| value.to_owned()))
        };
        assert_eq!(of("LANG", "C.UTF-8"), Alphabet::Unicode);
        assert_eq!(of("LC_ALL", "de_DE.utf8"), Alphabet::Unicode);
        assert_eq!(of("LANG", "C"), Alphabet::Ascii);
        assert_eq!(of("LANG", ""), Alphabet::Unicode);
        assert_eq!(of("HOME", "/"), Alphabet::Unicode);
    }
}
