//! Fetches one blob from its origin, once, for all who want it: verified piece by piece, readable as it comes.
//!
//! [`Running`] knows which fills are under way, [`Progress`] how far each is, [`Transfer`] brings the pieces.

mod error;
mod progress;
mod running;
mod transfer;
mod verifier;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prometheus::IntGauge;
use tempfile::NamedTempFile;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, spawn_blocking};
use weir_shared::digest::BlobDigest;

use self::running::Announcer;
use self::transfer::Piece;
use self::verifier::is_one_piece;
use super::store::{Room, Store};
use crate::metrics::WriteDropped;
use crate::origin_client::OriginId;

pub(crate) use self::error::FillError;
pub(super) use self::progress::{Progress, Watcher};
pub(super) use self::running::{Bounds, Running};
pub(super) use self::transfer::{Transfer, Upstream};

/// How long a fill may take: an origin that sends a little now and then does not hold its place for ever.
const FILL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Which blob, and where it can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// The blob.
    pub(crate) digest: BlobDigest,
    /// Its bytes, as its descriptor says.
    pub(crate) size: u64,
    /// The origin of its service.
    pub(crate) origin: Option<OriginId>,
}

/// What fills blobs.
pub(super) struct Filler {
    pub(super) store: Arc<Store>,
    pub(super) upstream: Arc<Upstream>,
    /// Fills that are past their queue.
    pub(super) permits: Semaphore,
}

/// Why a fill ended before its time.
enum Stopped {
    Failed(FillError),
    /// It is not to be kept.
    NoRoom(WriteDropped),
    Disk(io::Error),
}

/// A blob that has come, and what it needs to be kept.
struct Received<'f> {
    form: Form,
    _permit: SemaphorePermit<'f>,
    _running: Counted,
}

/// Where a blob comes to, and what it can be read by meanwhile.
struct IncomingFile {
    named: NamedTempFile,
    readable: Arc<File>,
}

enum Form {
    InMemory(Bytes),
    InFile(NamedTempFile, Room),
}

impl Filler {
    /// Brings a blob and tells how far it is; then keeps it. What is on disk already is verified and not fetched.
    pub(super) async fn fill(&self, wanted: Wanted, announcer: Announcer) {
        let received = tokio::select! {
            received = self.receive(wanted, &announcer) => received,
            () = announcer.deserted() => return,
        };
        // From here on everything is there: it is kept, whoever still wants it.
        match received {
            Ok(None) => {}
            Ok(Some(received)) => self.keep(wanted, received).await,
            Err(Stopped::Failed(error)) => {
                tracing::warn!(blob = %wanted.digest, %error, "a blob could not be fetched");
                announcer.end(|written| Progress::Failed { error, written });
            }
            Err(Stopped::NoRoom(why)) => {
                self.upstream.metrics.write_dropped(why);
                announcer.end(|written| Progress::PastDisk { why, written });
            }
            Err(Stopped::Disk(error)) => {
                let why = WriteDropped::Disk(self.store.write_failed(&wanted.digest, &error));
                announcer.end(|written| Progress::PastDisk { why, written });
            }
        }
    }

    /// A blob that was not there, once all of it has come.
    async fn receive(&self, wanted: Wanted, announcer: &Announcer) -> Result<Option<Received<'_>>, Stopped> {
        if let Some((blob, tier)) = self.store.verify(wanted.digest, wanted.size).await {
            announcer.tell(Progress::Held(blob, tier));
            return Ok(None);
        }
        let permit = self.permits.acquire().await.map_err(|_| FillError::Abandoned)?;
        let running = Counted::new(&self.upstream.metrics.fills_running);
        let begun = Instant::now();
        let brought = tokio::time::timeout(FILL_DEADLINE, self.bring(wanted, announcer, begun)).await;
        let brought = brought.unwrap_or_else(|_| Err(FillError::Broken("it took too long".to_owned()).into()));
        let result = match &brought {
            Ok(_) => "ok",
            Err(Stopped::Failed(error)) => error.label(),
            Err(Stopped::NoRoom(_)) => "no_room",
            Err(Stopped::Disk(_)) => "disk_failed",
        };
        self.upstream.metrics.filled(result, begun.elapsed());
        let form = brought?;
        tracing::debug!(blob = %wanted.digest, bytes = wanted.size, "a blob was fetched");
        Ok(Some(Received { form, _permit: permit, _running: running }))
    }

    async fn bring(&self, wanted: Wanted, announcer: &Announcer, begun: Instant) -> Result<Form, Stopped> {
        // While readers have all of the memory what is one piece comes through a file like the others.
        let place = is_one_piece(wanted.size).then(|| self.store.place(wanted.size)).flatten();
        if let Some(place) = place {
            let mut transfer = self.ask(wanted, announcer).await;
            let piece = transfer.next().await?.ok_or(FillError::Abandoned)?;
            self.upstream.metrics.first_piece_verified(begun.elapsed());
            let (bytes, stored) = (place.put(piece.bytes.clone()), self.store.keeps(wanted.size));
            announcer.tell(Progress::InMemory { bytes, stored });
            return Ok(Form::InMemory(piece.bytes));
        }
        let mut room = self.store.claim(wanted.size).await.map_err(Stopped::NoRoom)?;
        let incoming = self.incoming().await?;
        let mut transfer = self.ask(wanted, announcer).await;
        let mut next = transfer.next().await?;
        let mut verified = 0;
        while let Some(piece) = next {
            let is_first = verified == 0 && piece.verified > 0;
            verified = piece.verified;
            if verified > 0 {
                let (file, latest) = (incoming.readable.clone(), piece.bytes.clone());
                announcer.tell(Progress::Arriving { file, written: piece.start, latest, size: wanted.size });
            }
            if is_first {
                self.upstream.metrics.first_piece_verified(begun.elapsed());
                // Those who wait for it go first, and only then what nobody waits for.
                tokio::task::yield_now().await;
            }
            // While it is written the next one comes. What becomes of the write is told at once: the origin may be slow.
            let mut writing = pin!(write(incoming.readable.clone(), piece, room));
            let mut following = pin!(transfer.next());
            let came_first = tokio::select! {
                biased;
                written = writing.as_mut() => {
                    room = written?;
                    None
                }
                following = following.as_mut() => {
                    room = writing.await?;
                    Some(following)
                }
            };
            announcer.written();
            next = match came_first {
                Some(following) => following?,
                None => following.await?,
            };
        }
        Ok(Form::InFile(incoming.named, room))
    }

    async fn ask(&self, wanted: Wanted, announcer: &Announcer) -> Transfer {
        announcer.tell(Progress::Asked);
        Transfer::begin(self.upstream.clone(), wanted, announcer.moved.clone()).await
    }

    async fn incoming(&self) -> Result<IncomingFile, Stopped> {
        let store = self.store.clone();
        let made = spawn_blocking(move || {
            let named = store.incoming()?;
            let readable = Arc::new(named.as_file().try_clone()?);
            Ok(IncomingFile { named, readable })
        });
        made.await?.map_err(Stopped::Disk)
    }

    /// Gives a blob its name. A disk that fails now takes nothing from those who read.
    async fn keep(&self, wanted: Wanted, received: Received<'_>) {
        let Received { form, .. } = received;
        let (store, digest) = (self.store.clone(), wanted.digest);
        if let Form::InMemory(bytes) = &form
            && store.is_small(wanted.size)
        {
            let (store, bytes) = (store.clone(), bytes.clone());
            if spawn_blocking(move || store.keep_small(digest, bytes)).await.unwrap_or(true) {
                return;
            }
        }
        let kept = match form {
            Form::InFile(file, room) => spawn_blocking(move || store.keep(digest, file, room)),
            Form::InMemory(bytes) => match store.claim(wanted.size).await {
                Ok(mut room) => spawn_blocking(move || {
                    room.make();
                    store.keep_bytes(digest, &bytes, room);
                }),
                Err(why) => return self.upstream.metrics.write_dropped(why),
            },
        };
        // What went wrong was told, and counted, where it did.
        let _ = kept.await;
    }
}

/// Writes a piece, once there is room for the blob: what is held is given up only for what comes.
async fn write(file: Arc<File>, piece: Piece, mut room: Room) -> Result<Room, Stopped> {
    let written = spawn_blocking(move || {
        room.make();
        file.write_all_at(&piece.bytes, piece.start).map(|()| room)
    });
    written.await?.map_err(Stopped::Disk)
}

impl From<FillError> for Stopped {
    fn from(error: FillError) -> Self {
        Stopped::Failed(error)
    }
}

impl From<JoinError> for Stopped {
    fn from(_: JoinError) -> Self {
        Stopped::Failed(FillError::Abandoned)
    }
}

/// Counts itself in a gauge until it is dropped.
pub(super) struct Counted(IntGauge);

impl Counted {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
