//! Bodies from blobs: read in place what the page cache holds, and the rest on threads that may block; never ahead of the
//! client by more than a chunk.

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_compression::tokio::bufread::ZstdDecoder;
use async_compression::zstd::DParameter;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http_body::{Body, Frame, SizeHint};
use prometheus::IntCounter;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;
use tokio_util::io::StreamReader;
use weir_shared::process::serve::BoxError;

use super::decoders::Decoding;
use super::store::Blob;

/// Bytes that are read at a time of what is sent as it is stored.
pub(super) const CHUNK: u64 = 128 << 10;

/// Bytes that are read at a time to be decoded, and that are decoded at a time: an async worker is not held for longer
/// than they take.
pub(super) const DECODED_CHUNK: u64 = 64 << 10;

/// The largest window of a zstd frame that is decoded, as a power of two: 8 MiB, as the protocol promises.
pub(super) const MAX_WINDOW_LOG: u32 = 23;

/// Part of a blob of `length` bytes, as it is stored.
pub(super) fn stored(chunks: Chunks, length: u64, sent: IntCounter) -> BlobBody {
    BlobBody { source: Source::Stored(chunks), left: length, sent }
}

/// A whole blob, decoded from zstd on the way; it must give exactly `length` bytes. `decoding` is given back with the
/// body.
pub(super) fn decoded(chunks: Chunks, length: u64, decoding: Decoding, sent: IntCounter) -> BlobBody {
    let coded = StreamReader::new(chunks);
    let mut decoder = Decoder::with_params(coded, &[DParameter::window_log_max(MAX_WINDOW_LOG)]);
    // One frame after the other until the input ends.
    decoder.multiple_members(true);
    let next = Box::pin(decode(decoder, length));
    BlobBody { source: Source::Decoded { next: Some(next), _decoding: decoding }, left: length, sent }
}

/// A body of a known length. When its source gives more or less it ends in an error: never in a clean end.
pub(crate) struct BlobBody {
    source: Source,
    /// Bytes that are still to be sent.
    left: u64,
    sent: IntCounter,
}

enum Source {
    Stored(Chunks),
    Decoded { next: Option<Next>, _decoding: Decoding },
    Ended,
}

type Next = Pin<Box<dyn Future<Output = io::Result<(Decoder, Bytes)>> + Send>>;

pub(super) type Chunks = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

type Decoder = ZstdDecoder<StreamReader<Chunks, Bytes>>;

/// The next chunk of `left` bytes; the last one only once the end was seen behind it.
async fn decode(mut decoder: Decoder, left: u64) -> io::Result<(Decoder, Bytes)> {
    let mut chunk = vec![0; usize::try_from(left.min(DECODED_CHUNK)).expect("a chunk fits in memory")];
    decoder.read_exact(&mut chunk).await?;
    if left <= DECODED_CHUNK && decoder.read(&mut [0]).await? != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the blob holds more than its descriptor says"));
    }
    Ok((decoder, chunk.into()))
}

impl BlobBody {
    /// Whether a chunk is no more than is still to be sent, and brings it on.
    fn takes(&self, chunk: &Bytes) -> bool {
        chunk.len() as u64 <= self.left && (self.left == 0 || !chunk.is_empty())
    }
}

impl Body for BlobBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        let read = match &mut body.source {
            Source::Stored(chunks) => ready!(Pin::new(chunks).poll_next(cx)),
            Source::Decoded { next, .. } => match next {
                Some(reading) => {
                    let read = ready!(reading.as_mut().poll(cx));
                    *next = None;
                    Some(read.map(|(decoder, chunk)| {
                        let left = body.left - chunk.len() as u64;
                        if left > 0 {
                            *next = Some(Box::pin(decode(decoder, left)));
                        }
                        chunk
                    }))
                }
                None => None,
            },
            Source::Ended => return Poll::Ready(None),
        };
        let error = match read {
            Some(Ok(chunk)) if body.takes(&chunk) => {
                body.left -= chunk.len() as u64;
                body.sent.inc_by(chunk.len() as u64);
                if body.left == 0 {
                    body.source = Source::Ended;
                }
                return Poll::Ready((!chunk.is_empty()).then(|| Ok(Frame::data(chunk))));
            }
            None if body.left == 0 => return Poll::Ready(None),
            Some(Ok(_)) | None => io::Error::new(io::ErrorKind::InvalidData, "the blob has another length"),
            Some(Err(error)) => error,
        };
        body.source = Source::Ended;
        tracing::warn!(%error, left = body.left, "a body breaks off: its blob cannot be read");
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The bytes of a part: at once when they are in memory, else up to `size` at a time. An error when there are fewer.
pub(super) fn chunks(blob: &Blob, part: Range<u64>, size: u64) -> Chunks {
    match blob {
        Blob::File { file, .. } => Box::pin(FileChunks { file: file.clone(), part, size, reading: None }),
        Blob::Memory(bytes) => {
            let slice = slice(bytes, &part).ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
            Box::pin(stream::once(std::future::ready(slice)))
        }
    }
}

/// A part of what is in memory; `None` when there is less.
pub(super) fn slice(bytes: &Bytes, part: &Range<u64>) -> Option<Bytes> {
    let place = |at: u64| usize::try_from(at).ok().filter(|at| *at <= bytes.len());
    place(part.start).zip(place(part.end)).map(|(start, end)| bytes.slice(start..end))
}

/// The bytes of a part of a file.
struct FileChunks {
    file: Arc<File>,
    part: Range<u64>,
    size: u64,
    /// A chunk that the page cache had not.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileChunks {
    fn buffer(&self) -> Vec<u8> {
        vec![0; usize::try_from(self.size.min(self.part.end - self.part.start)).expect("a chunk fits in memory")]
    }

    /// What the page cache holds of the next chunk. To ask a thread for it would cost more than to copy it here.
    fn cached(&self) -> io::Result<Option<Bytes>> {
        let mut chunk = self.buffer();
        match preadv2(&self.file, &mut [IoSliceMut::new(&mut chunk)], self.part.start, ReadWriteFlags::NOWAIT) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                chunk.truncate(length);
                Ok(Some(chunk.into()))
            }
            // It has to be fetched from the disk, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self) -> JoinHandle<io::Result<Bytes>> {
        let (file, at, mut chunk) = (self.file.clone(), self.part.start, self.buffer());
        tokio::task::spawn_blocking(move || {
            file.read_exact_at(&mut chunk, at)?;
            Ok(chunk.into())
        })
    }
}

impl Stream for FileChunks {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunks = self.get_mut();
        if chunks.part.is_empty() {
            return Poll::Ready(None);
        }
        if chunks.reading.is_none() {
            match chunks.cached() {
                Ok(None) => chunks.reading = Some(chunks.read()),
                cached => {
                    let chunk = cached?.expect("matched above");
                    chunks.part.start += chunk.len() as u64;
                    return Poll::Ready(Some(Ok(chunk)));
                }
            }
        }
        let reading = chunks.reading.as_mut().expect("begun above");
        let read = ready!(Pin::new(reading).poll(cx));
        chunks.reading = None;
        let chunk = read.map_err(io::Error::other)??;
        chunks.part.start += chunk.len() as u64;
        Poll::Ready(Some(Ok(chunk)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Write;

    fn blob(bytes: &[u8]) -> Blob {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Blob::of(file).unwrap()
    }

    fn sent() -> IntCounter {
        IntCounter::new("sent", "sent").unwrap()
    }

    fn decoding() -> Decoding {
        let gauge = || prometheus::IntGauge::new("decoders", "decoders").unwrap();
        crate::blob_cache::decoders::Decoders::new(1, gauge(), &gauge()).begin().unwrap()
    }

    fn stored(blob: &Blob, part: Range<u64>, sent: IntCounter) -> BlobBody {
        super::stored(chunks(blob, part.clone(), CHUNK), part.end - part.start, sent)
    }

    fn decoded(blob: &Blob, length: u64, decoding: Decoding, sent: IntCounter) -> BlobBody {
        super::decoded(chunks(blob, 0..blob.length(), DECODED_CHUNK), length, decoding, sent)
    }

    fn content() -> Vec<u8> {
        (0..400_000u32).flat_map(u32::to_le_bytes).collect()
    }

    #[tokio::test]
    async fn a_part_is_exactly_that_part() {
        let content = content();
        let counter = sent();
        for part in [0..content.len() as u64, 1..2, CHUNK - 1..CHUNK + 1, 5..300_000] {
            let body = stored(&blob(&content), part.clone(), counter.clone());
            let bytes = body.collect().await.unwrap().to_bytes();
            assert_eq!(bytes, content[part.start as usize..part.end as usize]);
        }
        assert_eq!(counter.get(), content.len() as u64 + 1 + 2 + 299_995);
    }

    #[tokio::test]
    async fn a_part_of_what_is_in_memory_is_not_copied() {
        let content = Bytes::from(content());
        let mut body = stored(&Blob::Memory(content.clone()), 5..300_000, sent());
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((frame.as_ptr(), frame.len()), (content[5..].as_ptr(), 299_995));
        assert!(body.is_end_stream());
        let none = stored(&Blob::Memory(content.clone()), 0..0, sent());
        assert_eq!(none.collect().await.unwrap().to_bytes(), "");
        let length = content.len() as u64;
        assert!(stored(&Blob::Memory(content), 0..length + 1, sent()).collect().await.is_err());
    }

    #[tokio::test]
    async fn what_gives_too_little_or_too_much_ends_in_an_error_and_not_cleanly() {
        for (chunks, length) in [(&["ab"][..], 3), (&["ab", "", "c"], 3), (&["ab", "cd"], 3), (&[], 1)] {
            let given = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes())));
            let mut body = super::stored(Box::pin(stream::iter(given.collect::<Vec<_>>())), length, sent());
            let mut read = 0;
            let end = loop {
                match body.frame().await {
                    Some(Ok(frame)) => read += frame.into_data().unwrap().len() as u64,
                    end => break end,
                }
            };
            assert!(matches!(end, Some(Err(_))) && read < length, "{chunks:?}");
            assert!(body.frame().await.is_none(), "{chunks:?}: it has ended");
        }
    }

    #[tokio::test]
    async fn several_frames_are_decoded_and_another_length_is_an_error() {
        let content = content();
        let mut coded = Vec::new();
        for frame in content.chunks(300_000) {
            coded.extend(zstd::encode_all(frame, 3).unwrap());
        }
        let length = content.len() as u64;
        let all = |length, coded: &[u8]| decoded(&blob(coded), length, decoding(), sent()).collect();
        assert_eq!(all(length, &coded).await.unwrap().to_bytes(), content);
        assert!(all(length - 1, &coded).await.is_err());
        assert!(all(length + 1, &coded).await.is_err());
        assert!(all(length, &coded[..coded.len() - 1]).await.is_err());
        assert_eq!(all(0, &zstd::encode_all(&b""[..], 3).unwrap()).await.unwrap().to_bytes(), "");
    }

    #[tokio::test]
    async fn a_file_that_turns_out_short_is_an_error() {
        let content = content();
        let blob = blob(&content);
        let Blob::File { file, .. } = &blob else { unreachable!() };
        file.set_len(content.len() as u64 - 1).unwrap();
        assert!(stored(&blob, 0..content.len() as u64, sent()).collect().await.is_err());
    }

    #[tokio::test]
    async fn a_window_beyond_the_protocol_s_is_refused_and_garbage_behind_a_frame_too() {
        let content = content();
        let length = content.len() as u64;
        let mut coder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        coder.window_log(MAX_WINDOW_LOG + 1).unwrap();
        coder.write_all(&content).unwrap();
        let coded = coder.finish().unwrap();
        assert!(decoded(&blob(&coded), length, decoding(), sent()).collect().await.is_err());
        let mut coded = zstd::encode_all(&content[..], 1).unwrap();
        assert!(decoded(&blob(&coded), length, decoding(), sent()).collect().await.is_ok());
        coded.extend(b"more");
        let mut body = decoded(&blob(&coded), length, decoding(), sent());
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { break };
            read += frame.into_data().unwrap().len() as u64;
        }
        assert!(read < length, "the last bytes are kept back until the end was seen");
    }
}
