//! Bodies from blobs: read on threads that may block, at most one chunk ahead of the client.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use prometheus::IntCounter;
use tokio::task::JoinHandle;
use weir_shared::process::serve::BoxError;

use super::directory::Blob;

/// Bytes that are read at a time.
const CHUNK: u64 = 128 << 10;

/// The largest window of a zstd frame that is decoded, as a power of two: 8 MiB, as the protocol promises.
const MAX_WINDOW_LOG: u32 = 23;

/// Part of a blob, as it is stored.
pub(crate) fn stored(blob: &Blob, part: Range<u64>, sent: IntCounter) -> BlobBody {
    let length = part.end - part.start;
    BlobBody::new(Box::new(Slice { file: blob.file.clone(), part }), length, sent)
}

/// A whole blob, decoded from zstd on the way; it must give exactly `length` bytes.
///
/// # Errors
/// The decoder cannot be made: no memory.
pub(crate) fn decoded(blob: &Blob, length: u64, sent: IntCounter) -> io::Result<BlobBody> {
    let slice = Slice { file: blob.file.clone(), part: 0..blob.length };
    // It reads one frame after the other until the input ends.
    let mut decoder = zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(CHUNK as usize, slice))?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(BlobBody::new(Box::new(decoder), length, sent))
}

type Source = Box<dyn Read + Send>;

/// A body of a known length. When its source gives more or less it ends in an error: never in a clean end.
pub(crate) struct BlobBody {
    reading: Option<JoinHandle<io::Result<(Source, Bytes)>>>,
    /// Bytes that are still to be sent.
    left: u64,
    sent: IntCounter,
}

impl BlobBody {
    fn new(source: Source, length: u64, sent: IntCounter) -> Self {
        Self { reading: Some(read_chunk(source, length)), left: length, sent }
    }
}

/// Reads the next chunk of `left` bytes; the last one is read to the source's end, which must be there.
fn read_chunk(mut source: Source, left: u64) -> JoinHandle<io::Result<(Source, Bytes)>> {
    tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; usize::try_from(left.min(CHUNK)).expect("a chunk fits in memory")];
        source.read_exact(&mut chunk)?;
        if left <= CHUNK && source.read(&mut [0])? != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the blob holds more than its descriptor says"));
        }
        Ok((source, chunk.into()))
    })
}

impl Body for BlobBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        let Some(reading) = &mut body.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        body.reading = None;
        let (source, chunk) = match read.map_err(io::Error::other).and_then(|read| read) {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, left = body.left, "a body breaks off: its blob cannot be read");
                return Poll::Ready(Some(Err(error.into())));
            }
        };
        body.left -= chunk.len() as u64;
        body.sent.inc_by(chunk.len() as u64);
        if body.left > 0 {
            body.reading = Some(read_chunk(source, body.left));
        }
        if chunk.is_empty() { Poll::Ready(None) } else { Poll::Ready(Some(Ok(Frame::data(chunk)))) }
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A part of a file, read without a shared position.
struct Slice {
    file: Arc<File>,
    part: Range<u64>,
}

impl Read for Slice {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.part.end - self.part.start).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.part.start)?;
        self.part.start += read as u64;
        Ok(read)
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

    fn content() -> Vec<u8> {
        (0..400_000u32).flat_map(u32::to_le_bytes).collect()
    }

    #[tokio::test]
    async fn a_part_is_exactly_that_part() {
        let content = content();
        let counter = sent();
        for part in [0..content.len() as u64, 1..2, 131_071..131_073, 5..300_000] {
            let body = stored(&blob(&content), part.clone(), counter.clone());
            let bytes = body.collect().await.unwrap().to_bytes();
            assert_eq!(bytes, content[part.start as usize..part.end as usize]);
        }
        assert_eq!(counter.get(), content.len() as u64 + 1 + 2 + 299_995);
    }

    #[tokio::test]
    async fn several_frames_are_decoded_and_another_length_is_an_error() {
        let content = content();
        let mut coded = Vec::new();
        for frame in content.chunks(300_000) {
            coded.extend(zstd::encode_all(frame, 3).unwrap());
        }
        let length = content.len() as u64;
        let all = |length, coded: &[u8]| decoded(&blob(coded), length, sent()).unwrap().collect();
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
        blob.file.set_len(content.len() as u64 - 1).unwrap();
        assert!(stored(&blob, 0..content.len() as u64, sent()).collect().await.is_err());
    }
}
