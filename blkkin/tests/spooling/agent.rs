//! A running agent with a spool; tests read its output and its metrics.

use std::path::Path;
use std::process::Command;

use super::TIMEOUT;
use super::caller::Caller;
use crate::support::live::eventually;
use crate::support::metrics::{address, get_as, value};
use crate::support::service::Service;

/// The agent process, killed when dropped.
pub(crate) struct Agent(Service);

impl Agent {
    pub(crate) fn start(home: &Path, brokers: &str, caller: &Caller, more_args: &[&str]) -> Agent {
        Agent::start_with(home, brokers, caller, more_args, |command| command)
    }

    pub(crate) fn start_with(
        home: &Path,
        brokers: &str,
        caller: &Caller,
        more_args: &[&str],
        change: impl FnOnce(Command) -> Command,
    ) -> Agent {
        let tid = caller.tid.to_string();
        let spool = home.join("spool");
        let args = ["agent", "--brokers", brokers, "--tid", &tid, "--syscall", "pread64"];
        let args = [&args[..], &["--metrics", "127.0.0.1:0", "--spool", spool.to_str().unwrap()], more_args]
            .concat();
        let agent = Agent(Service::start_with(home, "agent", &args, change));
        agent.0.wait_for_output("tracing; events go", TIMEOUT);
        agent
    }

    pub(crate) fn output(&self) -> String {
        self.0.output()
    }

    /// Retries, because a busy machine may drop a connection before it is served.
    pub(crate) fn metrics(&self) -> String {
        let (output, mut metrics) = (self.output(), String::new());
        let address = address(&output);
        assert!(
            eventually(|| {
                metrics = get_as(address, "/metrics", "*/*").unwrap_or_default();
                metrics.ends_with("# EOF\n")
            }),
            "{}",
            self.output()
        );
        metrics
    }

    pub(crate) fn metric(&self, series: &str) -> f64 {
        value(&self.metrics(), &format!("blkkin_{series}"))
    }

    pub(crate) fn kill(mut self) -> String {
        assert!(self.0.kill());
        self.output()
    }

    #[track_caller]
    pub(crate) fn finish_without_error(self) -> String {
        self.0.finish_without_error()
    }
}
