//! A Git server over HTTP whose responses a test writes: wrong lengths, endless responses and worse.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::prelude::*;

/// The media types of Git's first and later responses.
pub(crate) const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
pub(crate) const RESULT: &str = "application/x-git-upload-pack-result";

/// Answers one request, given its first line and its body. The connection is closed afterwards.
type Script = dyn Fn(&str, &[u8], &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A running server, until the process ends.
pub(crate) struct ScriptedServer {
    address: SocketAddr,
}

impl ScriptedServer {
    pub(crate) fn start(
        script: impl Fn(&str, &[u8], &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1", script)
    }

    /// At another address of this machine, which counts as another host.
    pub(crate) fn start_at(
        host: &str,
        script: impl Fn(&str, &[u8], &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let server = Self { address: listener.local_addr().unwrap() };
        let script: Arc<Script> = Arc::new(script);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (mut socket, script) = (socket.unwrap(), script.clone());
                // These tests close their connections.
                std::thread::spawn(move || answer(&mut socket, &*script));
            }
        });
        server
    }

    /// A server with fixed refs, which answers each fetch with `pack`.
    pub(crate) fn of(refs: Vec<u8>, pack: Vec<u8>) -> Self {
        Self::of_refs("127.0.0.1", move || refs.clone(), move |socket| say(socket, RESULT, &pack))
    }

    /// A server with variable refs, which answers a fetch as the test says.
    pub(crate) fn of_refs(
        host: &str,
        refs: impl Fn() -> Vec<u8> + Send + Sync + 'static,
        fetch: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(host, move |request, body, socket| {
            if request.starts_with("GET") {
                say(socket, ADVERTISEMENT, &advertisement())
            } else if body.windows(7).any(|word| word == b"ls-refs") {
                say(socket, RESULT, &refs())
            } else {
                fetch(socket)
            }
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/x", self.address)
    }
}

/// A small part of a flood: more than all limits and socket buffers.
pub(crate) const LITTLE_OF_A_FLOOD: u64 = 200_000_000;

/// Writes until the client closes the connection, and counts bytes.
pub(crate) fn pour(sent: &AtomicU64, socket: &mut TcpStream, piece: &[u8], times: usize) -> std::io::Result<()> {
    for _ in 0..times {
        socket.write_all(piece)?;
        sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn answer(socket: &mut TcpStream, script: &Script) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.to_ascii_lowercase();
    let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
    script(head.lines().next().unwrap_or_default(), &body, socket)
}

/// A complete response.
pub(crate) fn say(socket: &mut TcpStream, kind: &str, body: &[u8]) -> std::io::Result<()> {
    begin(socket, kind, body.len() as u64)?;
    socket.write_all(body)
}

/// The head of a response that declares this length.
pub(crate) fn begin(socket: &mut TcpStream, kind: &str, length: u64) -> std::io::Result<()> {
    write!(socket, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
}

/// A line of Git's protocol.
pub(crate) fn line(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [format!("{:04x}", text.len() + 4).as_bytes(), text].concat()
}

/// The first response of a server with protocol version 2.
pub(crate) fn advertisement() -> Vec<u8> {
    let lines = ["version 2\n", "agent=git/test\n", "ls-refs=unborn\n", "fetch=shallow\n", "object-format=sha1\n"];
    [line("# service=git-upload-pack\n"), b"0000".to_vec(), lines.map(line).concat(), b"0000".to_vec()].concat()
}

/// A listing of refs.
pub(crate) fn listing<'a>(refs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut lines: Vec<u8> = refs.into_iter().flat_map(|(id, name)| line(format!("{id} {name}\n"))).collect();
    lines.extend(b"0000");
    lines
}

/// The response to a fetch, with a pack.
pub(crate) fn packfile(pack: &[u8]) -> Vec<u8> {
    let mut answer = line("packfile\n");
    for piece in pack.chunks(60_000) {
        answer.extend(line([&[1], piece].concat()));
    }
    answer.extend(b"0000");
    answer
}
