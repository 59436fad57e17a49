//! An HTTP server for unit tests.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use reqwest::Url;

use super::super::upstream::Upstream;
use super::{Client, USER_AGENT, UpstreamSession};

/// The answer to a conditional request for what has not changed.
pub const NOT_MODIFIED: &str = "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n";

/// A server that sends these responses, one a connection, and passes on the requests.
pub fn server(responses: Vec<String>) -> (Url, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/charts", listener.local_addr().unwrap())).unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for response in responses {
            let (mut socket, mut request) = (listener.accept().unwrap().0, Vec::new());
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            sender.send(String::from_utf8(request).unwrap().to_ascii_lowercase()).unwrap();
            socket.write_all(response.as_bytes()).unwrap();
        }
    });
    (url, requests)
}

/// A response with these further headers, each with its line end.
pub fn response(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// Runs with a client for the upstream.
pub fn with_client<T>(upstream: &Upstream, work: impl FnOnce(&Client<'_>) -> T) -> T {
    let stop = AtomicBool::new(false);
    let session = UpstreamSession::new(upstream, "list", &stop).unwrap();
    work(&Client::new(&session, USER_AGENT).unwrap())
}
