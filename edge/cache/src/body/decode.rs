//! Transcodes frames: decodes zstd, and compresses gzip.

use std::io;

use async_compression::tokio::bufread::GzipEncoder;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use tokio::task::spawn_blocking;
use tokio_util::io::{ReaderStream, StreamReader};

use super::frames::{FrameReader, ReadFrame, part};
use crate::slots::ClientSlot;

/// Bytes per compression step: it keeps an async worker busy only briefly.
const GZIP_CHUNK: usize = 16 << 10;

/// The tar of the frames, each decoded on a blocking thread. `slot` is released at the end.
pub(super) fn decoded(frames: FrameReader, slot: Option<ClientSlot>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    frames.stream().then(move |read| {
        let _held = &slot;
        async move {
            let read = read?;
            spawn_blocking(move || decode(&read)).await.map_err(io::Error::other)?
        }
    })
}

/// Decodes a frame and takes the slice.
fn decode(read: &ReadFrame) -> io::Result<Bytes> {
    part(&read.frame.decode(&read.bytes)?.into(), &read.range())
}

/// The tar of the frames, compressed with gzip.
pub(super) fn gzipped(frames: FrameReader, slot: Option<ClientSlot>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let small = |tar: Bytes| {
        let chunks = (0..tar.len()).step_by(GZIP_CHUNK);
        stream::iter(chunks.map(move |at| Ok(tar.slice(at..tar.len().min(at + GZIP_CHUNK)))))
    };
    let tar = decoded(frames, slot).flat_map(move |tar| match tar {
        Ok(tar) => small(tar).left_stream(),
        Err(error) => stream::iter([Err(error)]).right_stream(),
    });
    ReaderStream::with_capacity(GzipEncoder::new(StreamReader::new(Box::pin(tar))), GZIP_CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::digest::ObjectDigest;
    use weir_protocol::manifest::{Frame, Slice};

    fn read(coded: Vec<u8>, tar_size: u64) -> io::Result<Bytes> {
        let frame = Frame { digest: ObjectDigest::of(&coded), size: coded.len() as u64, tar_size };
        decode(&ReadFrame { frame, bytes: coded.into(), slice: Slice { index: 0, start: 1, end: tar_size - 1 } })
    }

    #[test]
    fn a_frame_decodes_to_exactly_its_tar_or_not_at_all() {
        let tar: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let length = tar.len() as u64;
        let coded = zstd::encode_all(&tar[..], 3).unwrap();
        assert_eq!(read(coded.clone(), length).unwrap(), &tar[1..tar.len() - 1]);
        assert!(read(coded.clone(), length - 1).is_err() && read(coded.clone(), length + 1).is_err());
        assert!(read(coded[..coded.len() - 1].to_vec(), length).is_err());
        assert!(read([&coded[..], b"more"].concat(), length).is_err(), "nothing follows the frame");
    }
}
