//! A blob on its way in: bytes are written and hashed on a thread of their own, in the order in which they come.
//!
//! Whoever fetches hands over frames and learns nothing of files; a reader that wants to follow the bytes as they come
//! would be told here how far they are.

use std::io::{self, Seek, Write};

use bytes::Bytes;
use tempfile::NamedTempFile;
use tokio::sync::{mpsc, oneshot};
use weir_shared::digest::BlobDigest;

use super::directory::Directory;

/// Frames that wait to be written: beyond them, the origin is read no further.
const QUEUE: usize = 16;

/// The writing end.
pub(super) struct Incoming {
    orders: mpsc::Sender<Order>,
    written: u64,
}

enum Order {
    Write(Bytes),
    StartOver,
    Finish(oneshot::Sender<io::Result<Received>>),
}

/// All bytes of a blob, in a file that goes away when this is dropped.
pub(super) struct Received {
    pub(super) file: NamedTempFile,
    pub(super) digest: BlobDigest,
}

impl Incoming {
    /// An empty file that waits for bytes.
    pub(super) fn begin(directory: &Directory) -> Self {
        let (orders, queue) = mpsc::channel(QUEUE);
        let directory = directory.clone();
        tokio::task::spawn_blocking(move || write(&directory, queue));
        Self { orders, written: 0 }
    }

    /// Bytes that were handed over.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Appends bytes; waits while the disk is slower than the origin.
    ///
    /// A failure of the disk shows at [`Incoming::finish`].
    pub(super) async fn write(&mut self, bytes: Bytes) {
        self.written += bytes.len() as u64;
        let _ = self.orders.send(Order::Write(bytes)).await;
    }

    /// Forgets all bytes.
    pub(super) async fn start_over(&mut self) {
        self.written = 0;
        let _ = self.orders.send(Order::StartOver).await;
    }

    /// The file and what its bytes hash to. More can be written after [`Incoming::start_over`] only.
    pub(super) async fn finish(self) -> io::Result<Received> {
        let (answer, received) = oneshot::channel();
        let _ = self.orders.send(Order::Finish(answer)).await;
        received.await.map_err(|_| io::Error::other("the thread that writes a blob has ended"))?
    }
}

fn write(directory: &Directory, mut orders: mpsc::Receiver<Order>) {
    let mut file = directory.incoming();
    let mut hasher = blake3::Hasher::new();
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Finish(answer) => {
                let digest = BlobDigest::from(hasher.finalize());
                let _ = answer.send(file.map(|file| Received { file, digest }));
                return;
            }
            // After a failure the rest is taken and thrown away: whoever sends hears of it at the end.
            Order::Write(bytes) => {
                hasher.update(&bytes);
                file = file.and_then(|mut file| file.write_all(&bytes).map(|()| file));
            }
            Order::StartOver => {
                hasher.reset();
                file = file.and_then(|mut file| {
                    file.as_file().set_len(0)?;
                    file.rewind()?;
                    Ok(file)
                });
            }
        }
    }
}
