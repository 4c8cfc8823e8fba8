//! A headless Chromium, driven by WebDriver (w3.org/TR/webdriver2): open a page, ask it, take its picture.
//!
//! *Rejected*: `chromium --screenshot`, whose virtual time does not wait for a canvas that is drawn frame by frame, so that
//! the graph of dependencies is there or not as it happens; a driver of npm's, which brings a package manager and its lock
//! file for five questions.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::base64;
use crate::http;
use crate::servers::{Process, free_port};

/// A page that is not ready by then will not be.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// As root Chromium runs without its own sandbox only; it sees nothing but pages of a server on this machine.
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
    // Ended last: the session is closed before.
    _driver: Process,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// One with a window of so many pixels. What it says goes to `folder`.
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
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let answer = http::post_json(address, "/session", &wanted).context("no browser")?;
        let session = answer["value"]["sessionId"].as_str().context("the driver names no session")?;
        let browser = Self { _driver: driver, address, session: format!("/session/{session}") };
        // The picture has the window's inner size: no tool bar is counted.
        let size = json!({ "width": width, "height": height });
        browser.post("/goog/cdp/execute", &cdp("Emulation.setDeviceMetricsOverride", size))?;
        Ok(browser)
    }

    pub(super) fn go(&self, url: &str) -> Result<()> {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// What this script returns in the page.
    pub(super) fn run(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Until this expression is true in the page.
    pub(super) fn wait_until(&self, expression: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let script = format!("return Boolean({expression})");
        while self.run(&script)? != true {
            if Instant::now() > deadline {
                let shown = self.run("return document.body.innerText")?;
                bail!("the page does not come to `{expression}`; it shows: {shown}");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The window as PNG.
    pub(super) fn picture(&self) -> Result<Vec<u8>> {
        let answer = http::get_json(self.address, &format!("{}/screenshot", self.session))?;
        base64::decode(answer["value"].as_str().unwrap_or_default()).context("the picture is no base64")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = http::post_json(self.address, &format!("{}{path}", self.session), body)?;
        Ok(answer["value"].clone())
    }
}

fn cdp(command: &str, size: Value) -> Value {
    let mut params = size;
    params["deviceScaleFactor"] = json!(1);
    params["mobile"] = json!(false);
    json!({ "cmd": command, "params": params })
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser too when it is asked to end.
        if let Err(error) = http::delete(self.address, &self.session) {
            eprintln!("screenshots: the browser was not closed: {error:#}");
        }
    }
}
