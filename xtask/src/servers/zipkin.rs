//! A Zipkin server with nothing in it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Process, free_port};
use crate::http;
use crate::setup;
use crate::workspace::Workspace;

pub(crate) struct Zipkin {
    process: Process,
    address: SocketAddr,
}

impl Zipkin {
    /// Starts it; it is not up yet.
    pub(crate) fn start(workspace: &Workspace, folder: &Path) -> Result<Self> {
        let address = free_port()?;
        let mut java = Command::new("java");
        // A span takes 1.6 KB of its heap.
        java.args(["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"]);
        java.arg("-jar").arg(setup::server_jar(workspace));
        java.args(["--armeria.ports[0].ip=127.0.0.1", "--armeria.ports[0].protocols[0]=http"]);
        java.arg(format!("--armeria.ports[0].port={}", address.port()));
        let process = Process::start("zipkin", &java, folder)?;
        Ok(Self { process, address })
    }

    /// Waits until it answers.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let health = || http::get_json(self.address, "/health");
        self.process.wait_until("/health", || health().is_ok_and(|health| health["status"] == "UP"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it says at `path`.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        http::get_json(self.address, path)
    }

    /// Spans that it has taken by HTTP, by its own count.
    pub(crate) fn spans(&self) -> Result<u64> {
        let metrics = self.get("/metrics")?;
        let count = &metrics["counter.zipkin_collector.spans.http"];
        // Absent until the first came.
        Ok(count.as_f64().unwrap_or_default() as u64)
    }

    /// Traces with spans of this service and name, each a list of spans.
    pub(crate) fn traces(&self, service: &str, name: &str, limit: u32) -> Result<Vec<Vec<Value>>> {
        let path =
            format!("/api/v2/traces?serviceName={service}&spanName={name}&limit={limit}&lookback=3600000");
        serde_json::from_value(self.get(&path)?).context("Zipkin's traces are no lists of spans")
    }
}
