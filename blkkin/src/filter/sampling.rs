//! Head sampling: the options `--sample` and `--budget` of a tracer, and what they exclude.

use blkkin_tracer::selection::budget::Budget;
use blkkin_wire::head_sampling::HeadSampling;

use crate::cli::{LttngArgs, UsdtArgs};
use crate::error::CliError;

/// Parses `1/N`.
pub(crate) fn ratio(value: &str) -> Result<HeadSampling, CliError> {
    let n = value.strip_prefix("1/").and_then(|n| n.parse::<u64>().ok());
    if let Some(ratio) = n.and_then(HeadSampling::from_one_in) {
        return Ok(ratio);
    }
    let max = HeadSampling::MIN_RATIO.one_in();
    let (why, remedy) = match n.filter(|n| (1..max).contains(n)) {
        Some(n) => (
            "the kernel side compares leading bits of a trace's id, so N is a power of two".to_owned(),
            format!("--sample 1/{} or --sample 1/{}", n.next_power_of_two() / 2, n.next_power_of_two()),
        ),
        None => (
            format!("the form is 1/N, to record one operation in N, a power of two up to {max}"),
            "--sample 1/64".to_owned(),
        ),
    };
    Err(CliError::usage(format!("invalid value `{value}` for --sample"), why, remedy))
}

/// Parses a share of the machine's CPUs: `1%`, `0.5%`.
pub(crate) fn budget(value: &str) -> Result<Budget, CliError> {
    let percent = value.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let ppm =
        percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent| (percent * 1e4).round());
    ppm.and_then(|ppm| Budget::from_ppm(ppm as u32)).ok_or_else(|| {
        CliError::usage(
            format!("invalid value `{value}` for --budget"),
            format!(
                "the form is N%, a share of all CPUs of this machine from {}% to {}%",
                Budget::MIN.share() * 100.0,
                Budget::MAX.share() * 100.0
            ),
            "--budget 1%",
        )
    })
}

/// Refuses head sampling where guests' requests are linked to the operations that serve them.
pub(crate) fn check_guests(sampling: Option<HeadSampling>, guests: bool) -> Result<(), CliError> {
    if sampling.is_none() || !guests {
        return Ok(());
    }
    Err(CliError::usage(
        "--sample, --budget, --ctl and --ctl-topic do not work with --guests",
        "a request of a guest would seldom find QEMU's operation, which this machine samples independently",
        "blkkin aggregator --sample, which chooses whole traces",
    ))
}

/// Refuses sources of spans that have calls below them: they would be there without their calls.
pub(crate) fn check_sources(
    sampling: Option<HeadSampling>,
    lttng: &LttngArgs,
    usdt: &UsdtArgs,
) -> Result<(), CliError> {
    let options = [("--ust", lttng.ust), ("--nbd", lttng.nbd), ("--probes", !usdt.probes.is_empty())];
    match options.into_iter().find(|(_, given)| *given && sampling.is_some()) {
        None => Ok(()),
        Some((option, _)) => Err(CliError::usage(
            format!("--sample, --budget, --ctl and --ctl-topic do not work with {option}"),
            "they choose system calls before a daemon's span is known, so a span would be shown without its calls",
            "blkkin aggregator --sample, which chooses whole traces",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn ratios_are_parsed() {
        assert_eq!(ratio("1/1").unwrap(), HeadSampling::ALL);
        assert_eq!(ratio("1/64").unwrap().one_in(), 64);
        assert_eq!(ratio("1/100").unwrap_err().remedy, "--sample 1/64 or --sample 1/128");
        for bad in ["", "64", "1/0", "1/x", "2/64", "1/2097152", "1/-2", "1/ 2"] {
            assert_eq!(ratio(bad).unwrap_err().remedy, "--sample 1/64", "{bad}");
        }
    }

    #[test]
    fn budgets_are_shares_of_the_machine() {
        let share = |value: &str| budget(value).map(|budget| budget.share());
        assert_eq!((share("1%").unwrap(), share("0.5%").unwrap(), share("50%").unwrap()), (0.01, 0.005, 0.5));
        for bad in ["", "1", "%", "0%", "0.001%", "51%", "200%", "-1%", "NaN%", "inf%", "1e9%", "1 %"] {
            let error = budget(bad).unwrap_err();
            assert_eq!(
                error.why, "the form is N%, a share of all CPUs of this machine from 0.01% to 50%",
                "{bad}"
            );
        }
        let sampled = HeadSampling::from_one_in(2);
        assert!(check_guests(sampled, true).is_err() && check_guests(None, true).is_ok());
    }

    #[test]
    fn sources_with_calls_below_them_are_refused() {
        let sampled = HeadSampling::from_one_in(2);
        let (none, ust) = (LttngArgs::default(), LttngArgs { ust: true, ..LttngArgs::default() });
        assert!(check_sources(sampled, &none, &UsdtArgs::default()).is_ok());
        assert!(check_sources(None, &ust, &UsdtArgs::default()).is_ok());
        assert!(check_sources(sampled, &ust, &UsdtArgs::default()).unwrap_err().what.contains("--ust"));
    }
}
