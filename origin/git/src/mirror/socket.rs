//! Blocking I/O on asynchronous sockets, as gix needs it, with the timeouts of a session.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_upstream::UpstreamError;

use super::MirrorError;
use super::git_session::GitSession;

/// The size of a read.
const READ_BYTES: usize = 64 << 10;

/// The buffered reading half of a socket.
pub(super) struct SocketReader<'a, S> {
    socket: S,
    session: &'a GitSession<'a>,
    buffer: Vec<u8>,
    at: usize,
}

/// The writing half of a socket.
pub(super) struct SocketWriter<'a, S> {
    socket: S,
    session: &'a GitSession<'a>,
}

impl<'a, S: AsyncRead + Unpin> SocketReader<'a, S> {
    pub(super) fn new(socket: S, session: &'a GitSession<'a>) -> Self {
        Self { socket, session, buffer: Vec::new(), at: 0 }
    }

    fn fill(&mut self) -> Result<(), MirrorError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.at = 0;
        buffer.resize(READ_BYTES, 0);
        let read = self.session.network.wait(self.socket.read(&mut buffer))?;
        buffer.truncate(read.map_err(|error| broken(self.session, &error))?);
        self.buffer = buffer;
        self.session.received(&self.buffer)
    }
}

impl<S: AsyncRead + Unpin> Read for SocketReader<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() {
            self.fill().map_err(|error| self.session.record(error))?;
        }
        let rest = &self.buffer[self.at..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        Ok(length)
    }
}

impl<'a, S: AsyncWrite + Unpin> SocketWriter<'a, S> {
    pub(super) fn new(socket: S, session: &'a GitSession<'a>) -> Self {
        Self { socket, session }
    }
}

impl<S: AsyncWrite + Unpin> Write for SocketWriter<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written =
            self.session.network.wait(self.socket.write(bytes)).map_err(|error| self.session.record(error))?;
        written.map_err(|error| self.session.record(broken(self.session, &error)))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.session.network.wait(self.socket.flush()).map_err(|error| self.session.record(error))?;
        flushed.map_err(|error| self.session.record(broken(self.session, &error)))
    }
}

fn broken(session: &GitSession, error: &io::Error) -> UpstreamError {
    UpstreamError::Protocol { step: session.network.step(), cause: format!("the connection failed: {error}") }
}
