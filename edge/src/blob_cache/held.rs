//! Reads a blob that is held in a file. When the disk fails its reader goes on past it, from where it is, and the blob is
//! verified before its next use.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};

use super::fill::Wanted;
use super::followed::Passing;
use super::past_disk::PastDisk;
use super::reader::{self, Chunks};
use super::store::{Blob, DiskTrouble, Store};
use crate::metrics::WriteDropped;

/// A blob that is held in a file.
pub(crate) struct Held {
    pub(super) wanted: Wanted,
    pub(super) blob: Blob,
    pub(super) store: Arc<Store>,
    pub(super) past_disk: Arc<PastDisk>,
}

/// A part of it that is read from wherever it can be had.
struct Reading {
    wanted: Wanted,
    chunks: Chunks,
    /// What is still to be read.
    part: Range<u64>,
    chunk: u64,
    /// Where to turn when the file cannot be read; taken by the one who does.
    aside: Option<(Arc<Store>, Arc<PastDisk>)>,
}

impl Held {
    /// The bytes of a part, `chunk` at a time.
    pub(super) fn chunks(self, part: Range<u64>, chunk: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let chunks = reader::chunks(&self.blob, part.clone(), chunk);
        let reading = Reading { wanted: self.wanted, chunks, part, chunk, aside: Some((self.store, self.past_disk)) };
        stream::try_unfold(reading, |mut reading| async move {
            let bytes = reading.next().await?;
            Ok(bytes.map(|bytes| (bytes, reading)))
        })
    }
}

impl Reading {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut next = self.chunks.next().await.transpose();
        if let Err(error) = &next
            && let Some((store, past_disk)) = self.aside.take()
        {
            store.cannot_read(&self.wanted.digest, error);
            let why = WriteDropped::Disk(DiskTrouble::from(error));
            let through = past_disk.serve(self.wanted, self.part.start, why).await;
            let through = Box::new(through.map_err(io::Error::other)?);
            let passing = Passing { wanted: self.wanted, through, past_disk };
            self.chunks = Box::pin(passing.chunks(self.part.clone(), self.chunk));
            next = self.chunks.next().await.transpose();
        }
        self.part.start += next.as_ref().map_or(0, |bytes| bytes.as_ref().map_or(0, |bytes| bytes.len() as u64));
        next
    }
}
