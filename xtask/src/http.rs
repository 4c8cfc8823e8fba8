//! As much of HTTP as it takes to talk to servers on this machine.
//!
//! *In*: a question. *Out*: the answer's body, or why there is none. *Invariant*: one connection a question, closed behind it;
//! no answer is waited for longer than [`PATIENCE`].
//!
//! *Rejected*: a client of crates.io: four tasks ask four local servers, and none of them needs TLS, redirects or a pool.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A browser may take some seconds for a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks for `path`; an answer other than 200 is an error.
pub(crate) fn get(server: SocketAddr, path: &str) -> Result<Vec<u8>> {
    ask(server, "GET", path, b"")
}

/// The same, as JSON.
pub(crate) fn get_json(server: SocketAddr, path: &str) -> Result<Value> {
    json(&get(server, path)?)
}

/// Sends JSON, and has an answer in JSON.
pub(crate) fn post_json(server: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    json(&ask(server, "POST", path, body.to_string().as_bytes())?)
}

/// Sends nothing but the word DELETE.
pub(crate) fn delete(server: SocketAddr, path: &str) -> Result<()> {
    ask(server, "DELETE", path, b"").map(drop)
}

fn json(body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).context("the answer is no JSON")
}

fn ask(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
    let answer = converse(server, method, path, body).with_context(|| format!("{method} {server}{path}"))?;
    let (status, body) = answer;
    if status != 200 {
        bail!("{method} {server}{path}: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(body)
}

fn converse(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )?;
    stream.write_all(body)?;
    // Until the answer is whole: not every server closes the connection at once.
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let length = match stream.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        answer.extend(&part[..length]);
        match parse(&answer, length == 0) {
            Some(whole) => return Ok(whole),
            None if length == 0 => bail!("the answer ended in its middle"),
            None => {}
        }
    }
}

/// Status and body; none until all of it has come.
fn parse(answer: &[u8], ended: bool) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?.to_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &answer[end + 4..];
    let header =
        |name| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    match header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => Some((status, body.get(..length)?.to_vec())),
        None if header("transfer-encoding") == Some("chunked") => Some((status, unchunked(body)?)),
        None => ended.then(|| (status, body.to_vec())),
    }
}

fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        let start = end + 2;
        whole.extend(body.get(start..start + length)?);
        body = body.get(start + length + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_length_says_so_or_its_last_piece_came() {
        let known = b"HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\nok";
        assert_eq!(parse(known, false), Some((200, b"ok".to_vec())));
        assert_eq!(parse(&known[..known.len() - 1], false), None);
        let pieces = b"HTTP/1.1 404 no\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(parse(pieces, false), Some((404, b"abc".to_vec())));
        assert_eq!(parse(&pieces[..pieces.len() - 6], false), None);
        let open = b"HTTP/1.1 200 OK\r\n\r\nall";
        assert_eq!((parse(open, false), parse(open, true)), (None, Some((200, b"all".to_vec()))));
    }
}
