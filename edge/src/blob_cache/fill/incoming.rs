//! A blob on its way in: bytes are written and hashed on a thread of their own, in the order in which they come.
//!
//! Whoever fetches hands over frames and learns nothing of files; a reader that wants to follow the bytes as they come
//! would be told here how far they are.

use std::io::{self, Seek, Write};
use std::sync::Arc;

use bytes::Bytes;
use tempfile::NamedTempFile;
use tokio::sync::{mpsc, oneshot};
use weir_shared::digest::BlobDigest;

use crate::blob_cache::store::Store;

/// Frames that wait to be written: beyond them, the origin is read no further.
const QUEUE: usize = 16;

/// The writing end.
pub(super) struct Incoming {
    orders: mpsc::Sender<Order>,
    failure: oneshot::Receiver<io::Error>,
    written: u64,
}

enum Order {
    Write(Bytes),
    StartOver,
    Finish(oneshot::Sender<Received>),
}

/// All bytes of a blob, in a file that goes away when this is dropped.
pub(in crate::blob_cache) struct Received {
    pub(in crate::blob_cache) file: NamedTempFile,
    pub(in crate::blob_cache) digest: BlobDigest,
}

impl Incoming {
    /// An empty file that waits for bytes.
    pub(super) fn begin(store: &Arc<Store>) -> Self {
        let (orders, queue) = mpsc::channel(QUEUE);
        let (failed, failure) = oneshot::channel();
        let store = store.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = write(&store, queue) {
                // Whoever sends finds that nobody takes it any more, and looks here.
                let _ = failed.send(error);
            }
        });
        Self { orders, failure, written: 0 }
    }

    /// Bytes that were handed over.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Appends bytes; waits while the disk is slower than the origin.
    ///
    /// # Errors
    /// The disk failed, at these bytes or before them.
    pub(super) async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.order(Order::Write(bytes)).await
    }

    /// Forgets all bytes.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) async fn start_over(&mut self) -> io::Result<()> {
        self.written = 0;
        self.order(Order::StartOver).await
    }

    /// The file and what its bytes hash to.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) async fn finish(mut self) -> io::Result<Received> {
        let (answer, received) = oneshot::channel();
        self.order(Order::Finish(answer)).await?;
        match received.await {
            Ok(received) => Ok(received),
            Err(_) => Err(self.failure().await),
        }
    }

    async fn order(&mut self, order: Order) -> io::Result<()> {
        match self.orders.send(order).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    async fn failure(&mut self) -> io::Error {
        let ended = |_| io::Error::other("the thread that writes a blob has ended");
        (&mut self.failure).await.unwrap_or_else(ended)
    }
}

fn write(store: &Store, mut orders: mpsc::Receiver<Order>) -> io::Result<()> {
    let mut file = store.incoming()?;
    let mut hasher = blake3::Hasher::new();
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Finish(answer) => {
                let digest = BlobDigest::from(hasher.finalize());
                let _ = answer.send(Received { file, digest });
                break;
            }
            Order::Write(bytes) => {
                hasher.update(&bytes);
                file.write_all(&bytes)?;
            }
            Order::StartOver => {
                hasher.reset();
                file.as_file().set_len(0)?;
                file.rewind()?;
            }
        }
    }
    Ok(())
}
