//! Empty Zipkin server.

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
    /// Starts the server, without waiting for it.
    pub(crate) fn start(workspace: &Workspace, folder: &Path) -> Result<Self> {
        let address = free_port()?;
        let mut java = Command::new("java");
        // A span uses 1.6 KB of heap.
        java.args(["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"]);
        java.arg("-jar").arg(setup::server_jar(workspace));
        java.args(["--armeria.ports[0].ip=127.0.0.1", "--armeria.ports[0].protocols[0]=http"]);
        java.arg(format!("--armeria.ports[0].port={}", address.port()));
        let process = Process::start("zipkin", &java, folder)?;
        Ok(Self { process, address })
    }

    /// Waits until the server is healthy.
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

    /// Requests JSON from `path`.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        http::get_json(self.address, path)
    }

    /// Returns Zipkin's counter of spans received over HTTP.
    pub(crate) fn spans(&self) -> Result<u64> {
        let metrics = self.get("/metrics")?;
        let count = &metrics["counter.zipkin_collector.spans.http"];
        // Absent until the first span arrives.
        Ok(count.as_f64().unwrap_or_default() as u64)
    }

    /// Queries traces that contain spans of this service with this name; each is a list of spans.
    pub(crate) fn traces(&self, service: &str, name: &str, limit: u32) -> Result<Vec<Vec<Value>>> {
        let path =
            format!("/api/v2/traces?serviceName={service}&spanName={name}&limit={limit}&lookback=3600000");
        serde_json::from_value(self.get(&path)?).context("Zipkin's traces are not lists of spans")
    }
}
