//! Minimal HTTP client for servers on this machine.
//!
//! *In*: a request. *Out*: the body of the response, or an error. *Invariant*: every request has
//! its own connection, which is closed after it. A read waits for at most [`READ_TIMEOUT`].
//!
//! *Rejected*: a client from crates.io. Four tasks use four local servers, and none needs TLS,
//! redirects or a pool.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Time limit of a read; a browser may take some seconds for a page.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests `path`. A status other than 200 is an error.
pub(crate) fn get(server: SocketAddr, path: &str) -> Result<Vec<u8>> {
    request(server, "GET", path, b"")
}

/// Requests `path` and parses the response as JSON.
pub(crate) fn get_json(server: SocketAddr, path: &str) -> Result<Value> {
    json(&get(server, path)?)
}

/// Posts JSON and parses the response as JSON.
pub(crate) fn post_json(server: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    json(&request(server, "POST", path, body.to_string().as_bytes())?)
}

/// Sends a DELETE request without a body.
pub(crate) fn delete(server: SocketAddr, path: &str) -> Result<()> {
    request(server, "DELETE", path, b"").map(drop)
}

fn json(body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).context("the response is not JSON")
}

fn request(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
    let response =
        exchange(server, method, path, body).with_context(|| format!("{method} {server}{path}"))?;
    let (status, body) = response;
    if status != 200 {
        bail!("{method} {server}{path}: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

fn exchange(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )?;
    stream.write_all(body)?;
    // Read until the response is complete: not every server closes the connection at once.
    let (mut response, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let length = match stream.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        response.extend(&part[..length]);
        match parse(&response, length == 0) {
            Some(complete) => return Ok(complete),
            None if length == 0 => bail!("the response is truncated"),
            None => {}
        }
    }
}

/// Parses status and body; `None` until the response is complete.
fn parse(response: &[u8], at_eof: bool) -> Option<(u16, Vec<u8>)> {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&response[..end]).ok()?.to_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &response[end + 4..];
    let header =
        |name| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    match header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => Some((status, body.get(..length)?.to_vec())),
        None if header("transfer-encoding") == Some("chunked") => Some((status, decode_chunked(body)?)),
        None => at_eof.then(|| (status, body.to_vec())),
    }
}

fn decode_chunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut complete = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        if length == 0 {
            return Some(complete);
        }
        let start = end + 2;
        complete.extend(body.get(start..start + length)?);
        body = body.get(start + length + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_ends_at_content_length_last_chunk_or_eof() {
        let known = b"HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\nok";
        assert_eq!(parse(known, false), Some((200, b"ok".to_vec())));
        assert_eq!(parse(&known[..known.len() - 1], false), None);
        let chunked = b"HTTP/1.1 404 no\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(parse(chunked, false), Some((404, b"abc".to_vec())));
        assert_eq!(parse(&chunked[..chunked.len() - 6], false), None);
        let until_eof = b"HTTP/1.1 200 OK\r\n\r\nall";
        assert_eq!((parse(until_eof, false), parse(until_eof, true)), (None, Some((200, b"all".to_vec()))));
    }
}
