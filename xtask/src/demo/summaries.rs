//! Numbers in the shutdown summaries of blkkin's services.

use anyhow::{Context, Result};

/// Returns the records that an agent lost.
pub(super) fn lost(log: &str) -> Result<u64> {
    number(log, "agent", "events delivered to", " records lost")
}

/// Returns the spans that an exporter delivered.
pub(super) fn exported(log: &str) -> Result<u64> {
    number(log, "exporter", "spans delivered to", " spans delivered")
}

/// Parses the number before `unit` in the last line with `marker`; restarts of a service wrote earlier ones.
fn number(log: &str, service: &str, marker: &str, unit: &str) -> Result<u64> {
    let line = log.lines().rev().find(|line| line.contains(marker));
    let line = line.with_context(|| format!("the {service}'s log has no shutdown summary: {log}"))?;
    number_before(line, unit)
}

/// Parses the number before `unit`.
pub(super) fn number_before(line: &str, unit: &str) -> Result<u64> {
    let number = line.split(unit).next().and_then(|start| start.rsplit(' ').next());
    let number = number.filter(|_| line.contains(unit)).and_then(|number| number.parse().ok());
    number.with_context(|| format!("no number before `{unit}` in: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_shutdown_summaries_are_parsed() {
        assert_eq!(
            lost("x\nblkkin: 7 events delivered to t; 2 records lost before the agent").expect("a summary"),
            2
        );
        assert_eq!(exported("blkkin: 18 spans delivered to z; 0 records left").expect("a summary"), 18);
    }
}
