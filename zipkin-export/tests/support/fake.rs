//! A fake server with programmed responses, which records its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Action for a post.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    /// Answers with this status line and body.
    Answer(&'static str, &'static str),
    /// Closes the connection without a word.
    HangUp,
}

/// Recorded post.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// Request line and headers, in lower case.
    pub(crate) head: String,
    /// Body.
    pub(crate) body: Vec<u8>,
}

/// The server. It responds 202 once its actions are used up, and always to an empty list.
pub(crate) struct FakeServer {
    /// Address.
    pub(crate) url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeServer {
    /// Starts it on a free port. Its thread ends with the test.
    pub(crate) fn start(acts: Vec<Act>) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&received);
        thread::spawn(move || {
            let mut acts = acts.into_iter();
            for stream in listener.incoming() {
                serve(stream.unwrap(), &mut acts, &ours);
            }
        });
        FakeServer { url, received }
    }

    /// Returns the posts so far, without empty lists.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

/// Serves one post per connection.
fn serve(stream: TcpStream, acts: &mut impl Iterator<Item = Act>, received: &Mutex<Vec<Received>>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return;
        }
    }
    let head = head.to_lowercase();
    // Connections with another protocol are ignored.
    let Some(length) = head.lines().find_map(|l| l.strip_prefix("content-length: ")) else { return };
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let mut act = Act::Answer("202 Accepted", "");
    if body != b"[]" {
        act = acts.next().unwrap_or(act);
        received.lock().unwrap().push(Received { head, body });
    }
    if let Act::Answer(status, words) = act {
        let length = words.len();
        // A client that follows redirects reaches a page that accepts everything.
        let head =
            format!("HTTP/1.1 {status}\r\nlocation: /\r\ncontent-length: {length}\r\nconnection: close");
        let _ = write!(reader.get_mut(), "{head}\r\n\r\n{words}");
    }
}
