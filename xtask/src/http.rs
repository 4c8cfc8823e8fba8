//! HTTP client for servers on this machine.
//!
//! *In*: a request. *Out*: the body of the response, or an error if its status is not 200.
//! *Invariant*: every request has its own connection, and none passes a proxy.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;

/// Time limit of a request; a browser may take some seconds for a page.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Requests `path`.
pub(crate) fn get(server: SocketAddr, path: &str) -> Result<String> {
    request(server, "GET", path, "")
}

/// Requests `path` and parses the response as JSON.
pub(crate) fn get_json(server: SocketAddr, path: &str) -> Result<Value> {
    json(&get(server, path)?)
}

/// Posts JSON and parses the response as JSON.
pub(crate) fn post_json(server: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    json(&request(server, "POST", path, &body.to_string())?)
}

/// Sends a DELETE request without a body.
pub(crate) fn delete(server: SocketAddr, path: &str) -> Result<()> {
    request(server, "DELETE", path, "").map(drop)
}

fn json(body: &str) -> Result<Value> {
    serde_json::from_str(body).context("the response is not JSON")
}

fn request(server: SocketAddr, method: &str, path: &str, body: &str) -> Result<String> {
    let url = format!("http://{server}{path}");
    let (status, body) = exchange(method, &url, body).with_context(|| format!("{method} {url}"))?;
    if status != 200 {
        bail!("{method} {url}: {status}: {body}");
    }
    Ok(body)
}

fn exchange(method: &str, url: &str, body: &str) -> Result<(u16, String)> {
    let config = Agent::config_builder().proxy(None).http_status_as_error(false);
    let agent: Agent = config.timeout_global(Some(TIMEOUT)).build().into();
    let request = Request::builder().method(method).uri(url).header("content-type", "application/json");
    let mut response = agent.run(request.body(body)?)?;
    // Zipkin's traces may exceed the default limit of 10 MB.
    let body = response.body_mut().with_config().limit(u64::MAX).read_to_string()?;
    Ok((response.status().as_u16(), body))
}
