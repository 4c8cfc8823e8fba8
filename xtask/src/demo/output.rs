//! Terminal output of the demos. Lines are at most 80 columns wide, except URLs.

use std::io::IsTerminal;
use std::time::Duration;

use crate::interrupt;

const COLUMNS: usize = 78;

pub(crate) fn print_line(line: &str) {
    println!("{}", line.trim_end());
}

/// Prints `── what runs ───…`.
pub(crate) fn heading(title: &str) {
    print_line(&format!("── {title} {}", "─".repeat(COLUMNS.saturating_sub(title.chars().count() + 4))));
}

/// Line about a running process.
pub(crate) struct ProcessLine<'a> {
    pub(crate) name: &'a str,
    pub(crate) what: &'a str,
    pub(crate) pid: u32,
}

impl ProcessLine<'_> {
    pub(crate) fn print(&self) {
        let Self { name, what, pid } = self;
        print_line(&format!("  {name:<14}{what:<50}{:>12}", format!("pid {pid}")));
    }
}

/// Formats `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Waits for Ctrl-C on a terminal, so that Zipkin can be used.
pub(crate) fn wait_for_interrupt() {
    print_line("");
    if !std::io::stdout().is_terminal() {
        print_line("Zipkin ends now; on a terminal it runs until Ctrl-C");
        return;
    }
    print_line("Zipkin runs until Ctrl-C");
    while !interrupt::received() {
        std::thread::sleep(Duration::from_millis(100));
    }
    print_line("");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let all = [0, 12, 999, 1_000, 1_234_567].map(thousands);
        assert_eq!(all, ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
