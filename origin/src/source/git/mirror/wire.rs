//! A socket as gix wants it, blocking; whoever reads or writes waits as the attempt allows.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::MirrorError;
use super::attempt::Attempt;

/// What is read of a socket at a time.
const READ_BYTES: usize = 64 << 10;

/// The receiving half of a socket, buffered.
pub(super) struct Incoming<'a, S> {
    socket: S,
    attempt: &'a Attempt<'a>,
    buffer: Vec<u8>,
    at: usize,
}

/// The sending half of a socket.
pub(super) struct Outgoing<'a, S> {
    socket: S,
    attempt: &'a Attempt<'a>,
}

impl<'a, S: AsyncRead + Unpin> Incoming<'a, S> {
    pub(super) fn new(socket: S, attempt: &'a Attempt<'a>) -> Self {
        Self { socket, attempt, buffer: Vec::new(), at: 0 }
    }

    fn fill(&mut self) -> Result<(), MirrorError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.at = 0;
        buffer.resize(READ_BYTES, 0);
        let read = self.attempt.wait(self.socket.read(&mut buffer))?;
        buffer.truncate(read.map_err(|error| broken(self.attempt, &error))?);
        self.buffer = buffer;
        self.attempt.received(self.buffer.len())
    }
}

impl<S: AsyncRead + Unpin> Read for Incoming<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len() {
            self.fill().map_err(|error| self.attempt.fail(error))?;
        }
        let rest = &self.buffer[self.at..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        Ok(length)
    }
}

impl<'a, S: AsyncWrite + Unpin> Outgoing<'a, S> {
    pub(super) fn new(socket: S, attempt: &'a Attempt<'a>) -> Self {
        Self { socket, attempt }
    }
}

impl<S: AsyncWrite + Unpin> Write for Outgoing<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.attempt.wait(self.socket.write(bytes)).map_err(|error| self.attempt.fail(error))?;
        written.map_err(|error| self.attempt.fail(broken(self.attempt, &error)))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.attempt.wait(self.socket.flush()).map_err(|error| self.attempt.fail(error))?;
        flushed.map_err(|error| self.attempt.fail(broken(self.attempt, &error)))
    }
}

fn broken(attempt: &Attempt, error: &io::Error) -> MirrorError {
    MirrorError::Upstream { step: attempt.step(), cause: format!("the connection broke: {error}") }
}
