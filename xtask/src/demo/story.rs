//! The words of the story. No line is wider than 80 columns, but for URLs.

use std::io::IsTerminal;
use std::time::Duration;

use crate::interrupt;

const COLUMNS: usize = 78;

pub(crate) fn say(line: &str) {
    println!("{}", line.trim_end());
}

/// `── what runs ───…`
pub(crate) fn heading(words: &str) {
    say(&format!("── {words} {}", "─".repeat(COLUMNS.saturating_sub(words.chars().count() + 4))));
}

/// Something that runs.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) what: &'a str,
    pub(crate) pid: u32,
}

impl Line<'_> {
    pub(crate) fn say(&self) {
        let Self { name, what, pid } = self;
        say(&format!("  {name:<14}{what:<50}{:>12}", format!("pid {pid}")));
    }
}

/// `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// On a terminal: until Ctrl-C, so that Zipkin can be looked at.
pub(crate) fn stay() {
    say("");
    if !std::io::stdout().is_terminal() {
        say("Zipkin ends here; on a terminal it stays until Ctrl-C");
        return;
    }
    say("Zipkin stays until Ctrl-C");
    while !interrupt::came() {
        std::thread::sleep(Duration::from_millis(100));
    }
    say("");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let all = [0, 12, 999, 1_000, 1_234_567].map(thousands);
        assert_eq!(all, ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
