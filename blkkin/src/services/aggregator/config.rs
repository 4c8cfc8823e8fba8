//! Configuration of the aggregator.

use std::time::Duration;

use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_bus::kafka::Group;
use blkkin_bus::kafka::stage::RunnerConfig;

use crate::cli::{AggregatorArgs, units};
use crate::error::CliError;

/// Ticks of an inactive partition within the idle timeout of a source: the last one is at most that
/// much late.
const TICKS_PER_IDLE: u32 = 3;
/// Ticks of an inactive partition within the wait for a client. A server's trace waits for the
/// answer of the link stage, so a late tick there is a late trace: 10 % of the wait.
const TICKS_PER_WAIT: u32 = 10;

/// The parsed configuration.
pub(super) struct AggregatorConfig {
    pub(super) rules: SamplingRules,
    pub(super) idle_after: Duration,
    pub(super) await_client: Duration,
    pub(super) await_link: Duration,
    save_every: Duration,
    instance: Option<String>,
    forget: bool,
}

impl AggregatorConfig {
    /// Parses the options.
    pub(super) fn parse(args: &AggregatorArgs) -> Result<AggregatorConfig, CliError> {
        let slower = args.slower_than.as_deref().map(|value| units::duration("--slower-than", value));
        let rules = SamplingRules {
            one_in: args.sample.as_deref().map_or(Ok(1), one_in)?,
            errors: args.errors,
            slower_than: slower.transpose()?,
            by_application: args.sampled_by_program.is_on(),
        };
        if rules.one_in == 1 && (rules.errors || rules.slower_than.is_some()) {
            return Err(CliError::usage(
                "--errors and --slower-than without --sample",
                "they keep traces that sampling drops, and without --sample no trace is dropped",
                "add --sample 1/100",
            ));
        }
        Ok(AggregatorConfig {
            rules,
            idle_after: units::std_duration("--idle-after", &args.idle_after)?,
            await_client: units::std_duration("--await-client", &args.await_client)?,
            await_link: units::std_duration("--await-link", &args.await_link)?,
            save_every: units::std_duration("--save-every", &args.save_every)?,
            instance: args.instance.clone(),
            forget: args.forget,
        })
    }

    /// Returns the runner configuration of a stage.
    pub(super) fn runner(&self, [input, output, side_output]: [&str; 3], group: &str) -> RunnerConfig {
        let tick_after = (self.idle_after / TICKS_PER_IDLE).min(self.await_client / TICKS_PER_WAIT);
        RunnerConfig {
            input: input.to_owned(),
            output: output.to_owned(),
            side_output: side_output.to_owned(),
            group: Group { name: group.to_owned(), member: self.instance.clone() },
            save_every: self.save_every,
            tick_after,
            forget: self.forget,
        }
    }
}

/// Parses `1/100`, or `100`.
fn one_in(value: &str) -> Result<u32, CliError> {
    let number = value.strip_prefix("1/").unwrap_or(value);
    let n = number.parse().ok().filter(|&n: &u32| n > 0);
    n.ok_or_else(|| {
        CliError::usage(
            format!("bad share `{value}`"),
            "the form is 1/N, to keep one trace in N, with N from 1",
            "--sample 1/100",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_rate_is_parsed() {
        assert_eq!((one_in("1/100"), one_in("7")), (Ok(100), Ok(7)));
        for bad in ["0", "1/0", "2/3", "", "0.1"] {
            assert!(one_in(bad).is_err(), "{bad}");
        }
    }
}
