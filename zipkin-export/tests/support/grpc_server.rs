//! A gRPC server that accepts calls with a token, and records them. It ends each connection after
//! one call (GOAWAY), as servers with a maximum connection age do.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::{Arc, Mutex};
use std::thread;

use h2::server::SendResponse;
use tokio::net::{TcpListener, TcpStream};
use ureq::http::{HeaderMap, Request, Response};

/// Header that the server checks.
pub(crate) const TOKEN_HEADER: &str = "api-key";

/// Recorded call.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedCall {
    /// Method and headers.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// Prefix and message.
    pub(crate) body: Vec<u8>,
}

/// The server. Its thread ends with the test.
pub(crate) struct GrpcServer {
    pub(crate) port: u16,
    received: Arc<Mutex<Vec<ReceivedCall>>>,
}

impl GrpcServer {
    /// Starts it on a free port. A call with another token gets status 16 and the token as message.
    pub(crate) fn start(token: &'static str) -> GrpcServer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&received);
        thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, token, Arc::clone(&ours)));
                }
            });
        });
        GrpcServer { port, received }
    }

    /// Returns the calls so far that have spans.
    pub(crate) fn received(&self) -> Vec<ReceivedCall> {
        let calls = self.received.lock().unwrap();
        // An empty message is 20 bytes with gzip; one with spans is longer.
        calls.iter().filter(|call| call.body.len() > 32).cloned().collect()
    }
}

async fn serve(stream: TcpStream, token: &str, received: Arc<Mutex<Vec<ReceivedCall>>>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    // The client may leave at any moment.
    while let Some(Ok((request, response))) = connection.accept().await {
        let received = Arc::clone(&received);
        let token = token.to_owned();
        // Data arrives only while the connection is polled.
        tokio::spawn(async move { reply(request, response, &token, &received).await });
        connection.graceful_shutdown();
    }
}

async fn reply(
    request: Request<h2::RecvStream>,
    mut response: SendResponse<bytes::Bytes>,
    token: &str,
    received: &Mutex<Vec<ReceivedCall>>,
) {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(Ok(chunk)) = stream.data().await {
        let _ = stream.flow_control().release_capacity(chunk.len());
        body.extend_from_slice(&chunk);
    }
    let given = head.headers.get(TOKEN_HEADER).map_or("", |value| value.to_str().unwrap()).to_owned();
    let path = head.uri.path().to_owned();
    received.lock().unwrap().push(ReceivedCall { path, headers: head.headers, body });
    let start = Response::builder().header("content-type", "application/grpc");
    if given != token {
        let end = start.header("grpc-status", "16").header("grpc-message", format!("unknown token {given}"));
        let _ = response.send_response(end.body(()).unwrap(), true);
        return;
    }
    let Ok(mut stream) = response.send_response(start.body(()).unwrap(), false) else { return };
    let _ = stream.send_data(bytes::Bytes::from_static(&[0; 5]), false);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let _ = stream.send_trailers(trailers);
}
