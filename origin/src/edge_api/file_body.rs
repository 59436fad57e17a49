//! A part of a file as the body of a response: read on blocking threads, as fast as the client takes it.

use std::fs::File;
use std::io;
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

/// How much is read at a time: one such piece of each response is in memory.
const READ_BYTES: u64 = 256 << 10;

/// A part of a file. A file that became shorter, or cannot be read, ends it with an error and never cleanly.
pub(super) struct FileBody {
    file: Arc<File>,
    rest: Range<u64>,
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
    sent_bytes: IntCounter,
}

impl FileBody {
    /// The bytes `part` of a file, counted as they are sent.
    pub(super) fn new(file: File, part: Range<u64>, sent_bytes: IntCounter) -> Self {
        Self { file: Arc::new(file), rest: part, reading: None, sent_bytes }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        if body.rest.is_empty() {
            return Poll::Ready(None);
        }
        let reading = body.reading.get_or_insert_with(|| {
            let (file, at) = (body.file.clone(), body.rest.start);
            let length = (body.rest.end - at).min(READ_BYTES);
            tokio::task::spawn_blocking(move || read(&file, at, length))
        });
        let read = ready!(Pin::new(reading).poll(cx));
        body.reading = None;
        match read {
            Ok(Ok(bytes)) => {
                body.rest.start += bytes.len() as u64;
                body.sent_bytes.inc_by(bytes.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
            Ok(Err(error)) => Poll::Ready(Some(Err(error.into()))),
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.end - self.rest.start)
    }
}

fn read(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).expect("a piece fits into memory")];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Write;

    fn file(length: usize) -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        (file, bytes)
    }

    fn counter() -> IntCounter {
        IntCounter::new("sent", "sent").unwrap()
    }

    #[tokio::test]
    async fn a_part_is_read_to_its_end_and_counted() {
        let (file, bytes) = file(1_000_000);
        let sent = counter();
        let body = FileBody::new(file, 100..999_999, sent.clone());
        assert_eq!(body.size_hint().exact(), Some(999_899));
        assert_eq!(body.collect().await.unwrap().to_bytes(), bytes[100..999_999]);
        assert_eq!(sent.get(), 999_899);
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_an_error_and_no_clean_end() {
        let (file, _) = file(600_000);
        let mut body = FileBody::new(file.try_clone().unwrap(), 0..600_000, counter());
        body.frame().await.unwrap().unwrap();
        file.set_len(300_000).unwrap();
        assert!(body.frame().await.unwrap().is_err());
    }
}
