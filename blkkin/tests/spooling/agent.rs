//! The agent with a spool, as a service manager has it: by what it says and by its metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use super::caller::Caller;
use crate::PATIENCE;
use crate::support::live::eventually;
use crate::support::metrics::{address, value};
use crate::support::service::Service;

/// The agent; killed with the test, however that ends.
pub(crate) struct Agent(Service);

impl Agent {
    pub(crate) fn start(home: &Path, brokers: &str, caller: &Caller, more: &[&str]) -> Agent {
        Agent::start_by(home, brokers, caller, more, |command| command)
    }

    pub(crate) fn start_by(
        home: &Path,
        brokers: &str,
        caller: &Caller,
        more: &[&str],
        by: impl FnOnce(Command) -> Command,
    ) -> Agent {
        let tid = caller.tid.to_string();
        let spool = home.join("spool");
        let words = ["agent", "--brokers", brokers, "--tid", &tid, "--syscall", "pread64"];
        let words =
            [&words[..], &["--metrics", "127.0.0.1:0", "--spool", spool.to_str().unwrap()], more].concat();
        let agent = Agent(Service::start_by(home, "agent", &words, by));
        agent.0.says("tracing; events go", PATIENCE);
        agent
    }

    pub(crate) fn said(&self) -> String {
        self.0.said()
    }

    /// On a machine that has too much to do a connection may be given up before it is served.
    pub(crate) fn metrics(&self) -> String {
        let (said, mut metrics) = (self.said(), String::new());
        let address = address(&said);
        assert!(
            eventually(|| {
                metrics = ask(address).unwrap_or_default();
                metrics.ends_with("# EOF\n")
            }),
            "{}",
            self.said()
        );
        metrics
    }

    pub(crate) fn figure(&self, series: &str) -> f64 {
        value(&self.metrics(), &format!("blkkin_{series}"))
    }

    pub(crate) fn kill(mut self) -> String {
        assert!(self.0.kill());
        self.said()
    }

    pub(crate) fn finish(self) -> (Option<i32>, String) {
        self.0.finish()
    }
}

fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(stream, "{head}Accept: application/openmetrics-text; version=1.0.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
