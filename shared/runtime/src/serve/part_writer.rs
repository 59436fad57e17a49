//! Bodies that a task writes in parts, at the pace of the reader: event streams.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::body::{Body, BoxError, Parts};
use crate::shutdown::Drain;

/// How long a reader may take no part while one waits for it.
pub const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// The writing end of a body. Dropping it ends the body with an error: only [`PartWriter::finish`] is a clean end.
#[derive(Debug)]
pub struct PartWriter {
    parts: mpsc::Sender<Result<Bytes, BoxError>>,
    /// Sends when the end is clean.
    clean: oneshot::Sender<()>,
    drain: Drain,
}

/// Why a part was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The reader is gone.
    #[error("the reader disconnected")]
    Disconnected,
    /// The reader took nothing for [`PART_TIMEOUT`].
    #[error("the reader took no data for too long")]
    Stalled,
    /// The drain has begun.
    #[error("the node is draining")]
    Drained,
}

impl NotTaken {
    /// The value of a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            NotTaken::Disconnected => "reader_gone",
            NotTaken::Stalled => "stalled",
            NotTaken::Drained => "drained",
        }
    }
}

impl PartWriter {
    /// A body and its writer. One part waits for the reader at a time.
    pub fn new(drain: &Drain) -> (Self, Body) {
        let (parts, received) = mpsc::channel(1);
        let (clean, is_clean) = oneshot::channel();
        (Self { parts, clean, drain: drain.clone() }, Body::Parts(Parts::new(received, is_clean)))
    }

    /// Writes a part once the reader has taken the previous one.
    ///
    /// # Errors
    /// It is not taken in time, the reader is gone, or the drain has begun.
    pub async fn send(&self, part: Bytes) -> Result<(), NotTaken> {
        let sent = tokio::time::timeout(PART_TIMEOUT, self.parts.send(Ok(part)));
        tokio::select! {
            biased;
            sent = sent => match sent {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err(NotTaken::Disconnected),
                Err(_) => Err(NotTaken::Stalled),
            },
            () = self.drain.begun() => Err(NotTaken::Drained),
        }
    }

    /// Waits until the reader is gone.
    pub async fn closed(&self) {
        self.parts.closed().await;
    }

    /// Ends the body cleanly.
    pub fn finish(self) {
        // An empty part marks the end. Without room for it the end is an error, as the reader has not taken all.
        drop(self.parts.try_send(Ok(Bytes::new())));
        let _ = self.clean.send(());
    }

    /// Ends the body with an error, which does not wait for a reader that takes nothing.
    pub fn fail(self, error: impl Into<BoxError>) {
        // Without room for it the closed channel is an error of the body too.
        drop(self.parts.try_send(Err(error.into())));
    }
}
