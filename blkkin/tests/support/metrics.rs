//! What a service answers where it is asked for metrics and health.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Where it is asked, by what it has said.
pub(crate) fn address(said: &str) -> &str {
    let found = said.lines().find_map(|line| line.split("metrics at http://").nth(1)?.split('/').next());
    found.unwrap_or_else(|| panic!("{said}"))
}

/// The whole answer, head and body.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A family's value, with these labels.
pub(crate) fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap()
}
