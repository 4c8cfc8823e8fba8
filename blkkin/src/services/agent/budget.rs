//! Budget of the agent: its metrics, and log lines when the share of recorded operations changes.
//!
//! *In*: the tracer's [`BudgetStatus`], at each batch. *Out*: metric families, and a log line when the budget
//! is exceeded or no longer, and for another ratio at most one in [`LOG_EVERY`].

use std::sync::Mutex;
use std::time::{Duration, Instant};

use blkkin_tracer::selection::budget::BudgetStatus;
use tracing::{info, warn};

use crate::service::{MetricFamily, MetricKind};

/// Minimum time between two log lines about the ratio.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Last logged state.
#[derive(Debug)]
struct Logged {
    at: Option<Instant>,
    one_in: u64,
    is_exceeded: bool,
    keep_suspended: bool,
}

/// Reports what the budget does.
#[derive(Debug)]
pub(super) struct BudgetReport {
    status: BudgetStatus,
    logged: Mutex<Logged>,
}

impl BudgetReport {
    pub(super) fn new(status: BudgetStatus) -> BudgetReport {
        let logged = Logged { at: None, one_in: status.one_in(), is_exceeded: false, keep_suspended: false };
        BudgetReport { status, logged: logged.into() }
    }

    /// Logs a change.
    pub(super) fn log_change(&self) {
        let Ok(mut logged) = self.logged.lock() else { return };
        let (one_in, is_exceeded) = (self.status.one_in(), self.status.is_exceeded());
        let keep_suspended = self.status.keep_suspended();
        let is_late = logged.at.is_none_or(|at| at.elapsed() >= LOG_EVERY);
        let same_state = (is_exceeded, keep_suspended) == (logged.is_exceeded, logged.keep_suspended);
        if same_state && (one_in == logged.one_in || !is_late) {
            return;
        }
        let was_suspended = logged.keep_suspended;
        *logged = Logged { at: Some(Instant::now()), one_in, is_exceeded, keep_suspended };
        let percent = |share: f64| share * 100.0;
        let (spent, budget) = (percent(self.status.spent().iter().sum()), percent(self.status.budget()));
        if keep_suspended != was_suspended {
            match keep_suspended {
                true => warn!(
                    "--keep is suspended: the cost is above the budget of {budget} % though nearly nothing is sampled"
                ),
                false => info!("--keep has an effect again"),
            }
        }
        if is_exceeded {
            warn!(
                one_in,
                "tracing takes {spent:.2} % of the CPUs, above its budget of {budget} %, though one operation in {one_in} is recorded: \
                 the probes themselves are too dear for it; a greater --budget, or fewer tasks (--cgroup, --comm)"
            );
        } else {
            info!(
                one_in,
                "one operation in {one_in} is recorded: tracing took {spent:.2} % of the CPUs, of a budget of {budget} %"
            );
        }
    }

    pub(super) fn metric_families(&self) -> Vec<MetricFamily> {
        let [kernel, user] = self.status.spent();
        let gauge = |name, help, value| MetricFamily::single(MetricKind::Gauge, name, help, value);
        vec![
            gauge("budget_ratio", "Share of the machine's CPUs that tracing may take", self.status.budget()),
            gauge(
                "budget_kernel_ratio",
                "Share of the machine's CPUs that the probes took in the last ten seconds",
                kernel,
            ),
            gauge(
                "budget_agent_ratio",
                "Share of the machine's CPUs that the agent took in the last ten seconds",
                user,
            ),
            gauge(
                "budget_run_seconds",
                "Time that the kernel takes for each run of a program, without the program's own, measured at the start",
                self.status.run_cost().as_secs_f64(),
            ),
            gauge(
                "budget_recorded_one_in",
                "N, where one storage operation in N is recorded",
                self.status.one_in() as f64,
            ),
            gauge(
                "budget_exceeded",
                "1 while the cost exceeds the budget though nearly nothing is recorded",
                f64::from(u8::from(self.status.is_exceeded())),
            ),
            gauge(
                "budget_keep_suspended",
                "1 while --keep has no effect, because the budget has no room for deferring operations",
                f64::from(u8::from(self.status.keep_suspended())),
            ),
            MetricFamily::single(
                MetricKind::Counter,
                "budget_changes",
                "Changes of the share of recorded operations",
                self.status.changes() as f64,
            ),
        ]
    }
}
