//! Headless Chromium, controlled over WebDriver (w3.org/TR/webdriver2): opens a page, evaluates
//! scripts and takes screenshots.
//!
//! *Rejected*: `chromium --screenshot`, whose virtual time does not wait for a canvas that is drawn
//! frame by frame, so that the dependency graph is missing at random. Also rejected: an npm driver,
//! which brings a package manager and a lock file for five requests.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::http;
use crate::servers::{Process, free_port};

/// Time limit for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Chromium's flags. As root it runs only without its sandbox; it loads only pages of a server on
/// this machine.
const FLAGS: &[&str] = &[
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--lang=en-US",
];

pub(super) struct Browser {
    // Dropped last: the session is closed before.
    _driver: Process,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// Opens a browser with a window of this size in pixels. Its log goes to `folder`.
    pub(super) fn open(folder: &Path, (width, height): (u32, u32)) -> Result<Self> {
        let address = free_port()?;
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port()));
        let mut driver = Process::start("chromedriver", &command, folder)?;
        driver.wait_until("/status", || {
            http::get_json(address, "/status").is_ok_and(|status| status["value"]["ready"] == true)
        })?;
        let window = format!("--window-size={width},{height}");
        let flags: Vec<&str> = FLAGS.iter().copied().chain([window.as_str()]).collect();
        let options = json!({ "args": flags });
        let request = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let response = http::post_json(address, "/session", &request).context("no browser")?;
        let session = response["value"]["sessionId"].as_str().context("the driver returned no session")?;
        let browser = Self { _driver: driver, address, session: format!("/session/{session}") };
        // The screenshot has the window's inner size, without a tool bar.
        let size = json!({ "width": width, "height": height });
        browser.post("/goog/cdp/execute", &cdp("Emulation.setDeviceMetricsOverride", size))?;
        Ok(browser)
    }

    pub(super) fn go(&self, url: &str) -> Result<()> {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// Runs a script in the page and returns its result.
    pub(super) fn run(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until this expression is true in the page.
    pub(super) fn wait_until(&self, expression: &str) -> Result<()> {
        let deadline = Instant::now() + PAGE_TIMEOUT;
        let script = format!("return Boolean({expression})");
        while self.run(&script)? != true {
            if Instant::now() > deadline {
                let shown = self.run("return document.body.innerText")?;
                bail!("the page does not reach `{expression}`; it shows: {shown}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Takes a screenshot of the window as PNG.
    pub(super) fn screenshot(&self) -> Result<Vec<u8>> {
        let response = http::get_json(self.address, &format!("{}/screenshot", self.session))?;
        decode_base64(response["value"].as_str().unwrap_or_default()).context("the screenshot is not base64")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let response = http::post_json(self.address, &format!("{}{path}", self.session), body)?;
        Ok(response["value"].clone())
    }
}

/// Decodes by coreutils.
fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut command = Command::new("base64");
    let mut child = command.arg("--decode").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("invariant: it was piped")?;
    // The program writes while it reads: a thread feeds it.
    let text = text.to_owned();
    let feeder = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    if !feeder.join().is_ok_and(|written| written.is_ok()) || !output.status.success() {
        bail!("base64 failed ({})", output.status);
    }
    Ok(output.stdout)
}

fn cdp(command: &str, size: Value) -> Value {
    let mut params = size;
    params["deviceScaleFactor"] = json!(1);
    params["mobile"] = json!(false);
    json!({ "cmd": command, "params": params })
}

impl Drop for Browser {
    fn drop(&mut self) {
        // chromedriver ends its browser when it ends.
        if let Err(error) = http::delete(self.address, &self.session) {
            eprintln!("screenshots: the browser was not closed: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::decode_base64;

    /// Test vectors of RFC 4648, section 10.
    #[test]
    fn test_vectors_are_decoded() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(decode_base64(text).expect("valid"), bytes.as_bytes(), "{text}");
        }
        assert!(decode_base64("Zm9v!").is_err());
    }
}
