//! A client that writes its HTTP/2 frames by hand (RFC 9113), and may violate the protocol.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::site::{PATIENCE, Site};

pub(crate) const DATA: u8 = 0x0;
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const RST_STREAM: u8 = 0x3;
pub(crate) const SETTINGS: u8 = 0x4;
pub(crate) const PING: u8 = 0x6;
pub(crate) const GOAWAY: u8 = 0x7;
pub(crate) const WINDOW_UPDATE: u8 = 0x8;
pub(crate) const CONTINUATION: u8 = 0x9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const ACK: u8 = 0x1;

pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a server may take of a flood, in bytes, before it is to close the connection or to read no further.
const MAX_TAKEN: usize = 24 << 20;

/// How long a server that takes no more of a flood is given to think better of it.
const HELD_BACK: Duration = Duration::from_millis(500);

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// A field that enters no table, none of it coded.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127 + 128 * 128, "that takes three bytes");
        match text.len() {
            length @ 0..127 => out.push(length as u8),
            length if length - 127 < 128 => out.extend([127, (length - 127) as u8]),
            length => out.extend([127, ((length - 127) % 128) as u8 | 128, ((length - 127) / 128) as u8]),
        }
        out.extend_from_slice(text.as_bytes());
    }
    out
}

pub(crate) fn section(method: &str, path: &str) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// A whole request without a body.
pub(crate) fn request(method: &str, path: &str, stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &section(method, path))
}

pub(crate) struct Http2Peer {
    reader: ReadHalf<TlsStream<TcpStream>>,
    writer: WriteHalf<TlsStream<TcpStream>>,
}

impl Http2Peer {
    /// Connects, with these settings.
    pub(crate) async fn connect(site: &Site, settings: &[(u16, u32)]) -> Self {
        Self::over(site.tls(&[b"h2"]).await, settings).await
    }

    /// The same over a connection that is there.
    pub(crate) async fn over(stream: TlsStream<TcpStream>, settings: &[(u16, u32)]) -> Self {
        let (reader, mut writer) = tokio::io::split(stream);
        let settings: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        writer.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()).await.unwrap();
        Self { reader, writer }
    }

    /// Connects, and knows when this returns what the server allows: its settings are acknowledged, and the connection's
    /// window is as large as it is going to be.
    pub(crate) async fn polite(site: &Site) -> Self {
        let mut peer = Self::connect(site, &[]).await;
        let (mut has_settings, mut has_window) = (false, false);
        while !(has_settings && has_window) {
            let frame = peer.frame().await.expect("the server says what it allows");
            has_window |= (frame.kind, frame.stream) == (WINDOW_UPDATE, 0);
            // The acknowledgement of this end's own has nothing in it.
            if frame.kind == SETTINGS && !frame.payload.is_empty() {
                peer.send(&self::frame(SETTINGS, ACK, 0, &[])).await;
                has_settings = true;
            }
        }
        // Read before this answer is sent, so is the acknowledgement.
        peer.send(&self::frame(PING, 0, 0, &[7; 8])).await;
        peer.next(PING).await.expect("the server answers");
        peer
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        timeout(PATIENCE, self.writer.write_all(bytes)).await.expect("the server reads").expect("the server is there");
        self.writer.flush().await.unwrap();
    }

    /// Writes without end, and reads nothing, until the server takes no more or has gone.
    pub(crate) async fn flood(&mut self, what: &str, mut next: impl FnMut() -> Vec<u8>) {
        let mut taken = 0;
        loop {
            let mut some = Vec::new();
            while some.len() < 32 << 10 {
                some.extend(next());
            }
            match timeout(HELD_BACK, self.writer.write_all(&some)).await {
                Err(_) | Ok(Err(_)) => return,
                Ok(Ok(())) => taken += some.len(),
            }
            assert!(taken < MAX_TAKEN, "the server takes {what} for ever");
        }
    }

    /// The next frame; `None` when the server has gone.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        timeout(PATIENCE, async {
            let mut head = [0; 9];
            self.reader.read_exact(&mut head).await.ok()?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.reader.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Some(Frame { kind: head[3], stream, payload })
        })
        .await
        .expect("the server says something, or goes")
    }

    /// The next frame of a kind, whatever comes before it.
    pub(crate) async fn next(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    /// The status of the next answer.
    pub(crate) async fn status(&mut self) -> u16 {
        match self.next(HEADERS).await.expect("an answer").payload[..] {
            [0x88, ..] => 200,
            // A name from the table and a value in Huffman's code.
            [0x48, 0x83, 0x68, 0x2d, 0x7f, ..] => 414,
            [0x48, 0x83, 0x69, 0x90, 0xff, ..] => 431,
            ref other => panic!("a status of another form: {other:02x?}"),
        }
    }

    /// The code with which the server ends the connection; `None` when it sent none.
    pub(crate) async fn closed(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.frame().await {
            if frame.kind == GOAWAY {
                code = Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        code
    }
}
