//! What the terminal behind an output can do.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};

use blkkin_report::{Alphabet, Colour, Style};
use terminal_size::Width;

use crate::args::Color;

/// Columns where there is neither a terminal to ask nor COLUMNS to read: what the report is made for.
const WIDTH_DEFAULT: usize = 100;

/// How to write to `output`.
pub(crate) fn style(color: Color, output: &(impl AsFd + IsTerminal)) -> Style {
    let width = terminal_size::terminal_size_of(output);
    Style {
        width: width
            .map_or_else(|| columns(std::env::var("COLUMNS").ok()), |(Width(columns), _)| columns.into()),
        alphabet: alphabet(|name| std::env::var(name).ok()),
        colour: if colored(color, output) { Colour::Ansi } else { Colour::Never },
    }
}

/// Whether this process may write to the terminal behind `output` without disturbing another job: a background
/// job may not, and may even be stopped for it (stty tostop).
pub(crate) fn in_foreground(output: impl AsFd) -> bool {
    // SAFETY: both calls take and return numbers only; the descriptor is open while `output` is borrowed.
    unsafe { libc::tcgetpgrp(output.as_fd().as_raw_fd()) == libc::getpgrp() }
}

/// Columns of an output that is no terminal, as the environment has them (environ(7)).
fn columns(set: Option<String>) -> usize {
    set.and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0).unwrap_or(WIDTH_DEFAULT)
}

/// By itself only on a terminal, and not where NO_COLOR is set (no-color.org) or the terminal has no way to do it.
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

/// The first of these that is set is the locale (setlocale(3)). Where none is, today's terminals speak UTF-8 all
/// the same.
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
    fn without_a_terminal_the_environment_says_the_width() {
        assert_eq!(columns(Some("132".into())), 132);
        for unusable in [None, Some("0"), Some(""), Some("wide"), Some("-1")] {
            assert_eq!(columns(unusable.map(str::to_owned)), WIDTH_DEFAULT, "{unusable:?}");
        }
    }

    #[test]
    fn the_alphabet_is_the_locales() {
        let of = |name: &'static str, value: &'static str| {
            alphabet(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(of("LANG", "C.UTF-8"), Alphabet::Unicode);
        assert_eq!(of("LC_ALL", "de_DE.utf8"), Alphabet::Unicode);
        assert_eq!(of("LANG", "C"), Alphabet::Ascii);
        assert_eq!(of("LANG", ""), Alphabet::Unicode);
        assert_eq!(of("HOME", "/"), Alphabet::Unicode);
    }
}
