//! Secrets of an exporter's destinations: where they may be stored, and where they never appear.
//!
//! *Input*: a real broker, and a server that refuses each request and quotes the token in it.
//! *Output*: the exporter's log, its pages, and what `/proc` shows of it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::broker::Broker;
use crate::common;
use crate::support::metrics::{address, get};
use crate::support::service::Service;
use crate::support::{needs, or_skip};
use blkkin_bus::kafka::TRACES;

const TOKEN: &str = "s3cret-t0ken-of-a-tenant";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the server, and returns its address. Its thread ends with the test.
fn refusing_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let (mut token, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                let value = line.to_lowercase().strip_prefix("api-key:").map(str::trim).map(str::to_owned);
                token = value.unwrap_or(token);
                line.clear();
            }
            let body = format!("no tenant has the key {token}");
            let head =
                format!("HTTP/1.1 401 Unauthorized\r\ncontent-length: {}\r\nconnection: close", body.len());
            let _ = write!(reader.get_mut(), "{head}\r\n\r\n{body}");
        }
    });
    address
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) -> String {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn no_token_or_key_is_in_a_log_an_argument_or_a_page() {
    needs!("openssl");
    let broker = or_skip!(Broker::start());
    broker.settings().create_topic(TRACES, 1, Some(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=client";
    let args = new.split(' ').chain(["-keyout", "key.pem", "-out", "certificate.pem"]);
    assert!(Command::new("openssl").args(args).current_dir(folder.path()).output().unwrap().status.success());
    let [certificate, key] =
        ["certificate.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let headers = write(folder.path(), "headers", &format!("Api-Key: {TOKEN}\n"), 0o640);
    let server = refusing_server();
    let (plain, tls) = (format!("otlp=http://{server}"), format!("otlp=https://{server}"));
    let args = ["exporter", "--brokers", &broker.settings().brokers, "--to", &plain, "--to", &tls];
    let secrets = ["--otlp-headers", &headers, "--tls-certificate", &certificate, "--tls-key", &key];
    let more = ["--metrics", "127.0.0.1:0"];
    let exporter = Service::start(folder.path(), "exporter", &[&args[..], &secrets, &more].concat());
    exporter.wait_for_output("no tenant has the key [redacted]", TIMEOUT);

    let of_process = |name: &str| {
        let bytes = fs::read(format!("/proc/{}/{name}", exporter.id())).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let page = |path: &str| get(address(&exporter.output()), path);
    let mut places =
        [of_process("cmdline"), of_process("environ"), page("/metrics"), page("/health")].to_vec();
    places.push(exporter.finish().1);
    let key = fs::read_to_string(folder.path().join("key.pem")).unwrap();
    let key = key.lines().nth(1).unwrap();
    for place in places {
        assert!(!place.contains(TOKEN) && !place.contains(key), "{place}");
    }
}

#[test]
fn a_secret_that_every_user_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let headers = write(folder.path(), "headers", &format!("Api-Key: {TOKEN}\n"), 0o644);
    let certificate = write(folder.path(), "certificate.pem", "", 0o644);
    let to = ["--to", "otlp=https://127.0.0.1:1"];
    let exporter = [&["exporter", "--brokers", "127.0.0.1:1"], &to[..]].concat();
    let run = common::run(&[&exporter[..], &["--otlp-headers", &headers]].concat());
    run.assert_refused(2, &format!("cannot use the headers in {headers}"), "chmod o-r");
    assert!(!run.stderr.contains(TOKEN), "{run:?}");
    let one = common::run(&[&exporter[..], &["--tls-certificate", &certificate]].concat());
    assert!(one.code == Some(2) && one.stderr.contains("--tls-key"), "{one:?}");
}
