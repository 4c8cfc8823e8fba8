//! A real OpenTelemetry Collector for the duration of a test.
//!
//! `cargo xtask test` or `cargo xtask setup --tests` provides it. Nothing is downloaded here.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::child::{KillOnDrop, end_with_test};

const COLLECTOR: &str = "otelcol-0.150.0";
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The Collector, which writes its input to a file; it ends with the test.
pub(crate) struct Collector {
    _process: KillOnDrop,
    folder: tempfile::TempDir,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
}

impl Collector {
    /// Starts it without TLS.
    pub(crate) fn start() -> Result<Collector, String> {
        Collector::start_with(None)
    }

    /// Starts it, with TLS if there is a certificate with its key.
    pub(crate) fn start_with(certificate_and_key: Option<[&Path; 2]>) -> Result<Collector, String> {
        Collector::start_for_clients(certificate_and_key, None)
    }

    /// Starts it, with TLS if there is a certificate with its key. It accepts only clients with a
    /// certificate of the authority, if there is one.
    pub(crate) fn start_for_clients(
        certificate_and_key: Option<[&Path; 2]>,
        client_authority: Option<&Path>,
    ) -> Result<Collector, String> {
        let output = std::env::var_os("BLKKIN_OTELCOL").map(PathBuf::from);
        let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(COLLECTOR);
        let found = output.into_iter().chain([made]).find(|file| file.is_file());
        let binary =
            found.ok_or("no OpenTelemetry Collector: cargo xtask setup --tests builds it, where Go is")?;
        let folder = tempfile::tempdir().unwrap();
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ports = [free(), free()].map(|listener| listener.local_addr().unwrap().port());
        let [http, grpc] = ports;
        let config = folder.path().join("config.yaml");
        let tls = certificate_and_key.map_or_else(String::new, |[certificate, key]| {
            let clients = client_authority
                .map_or_else(String::new, |file| format!(", client_ca_file: '{}'", file.display()));
            format!(
                ", tls: {{cert_file: '{}', key_file: '{}'{clients}}}",
                certificate.display(),
                key.display()
            )
        });
        fs::write(
            &config,
            format!(
                "receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{http}'{tls}}}, grpc: {{endpoint: '127.0.0.1:{grpc}'{tls}}}}}}}}}\n\
                 exporters: {{debug: {{verbosity: detailed}}}}\n\
                 service: {{telemetry: {{metrics: {{level: none}}}}, pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}}}\n"
            ),
        )
        .unwrap();
        let output = File::create(folder.path().join("output")).unwrap();
        let mut command = Command::new(binary);
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let process = KillOnDrop(end_with_test(&mut command).spawn().unwrap());
        let collector = Collector { _process: process, folder, http, grpc };
        collector
            .until("it is up", || ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()));
        Ok(collector)
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap()
    }

    pub(crate) fn until(&self, what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !so() {
            assert!(Instant::now() < deadline, "waited {LONG:?} until {what}: {}", self.output());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
