//! A store with failures that tests switch on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A store whose requests fail or hang while a test says so.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    fail_puts: AtomicBool,
    fail_gets: AtomicBool,
    hang_gets: AtomicBool,
    hang_deletes: AtomicBool,
    puts: AtomicUsize,
}

impl FaultyStore {
    /// An empty store in memory.
    pub fn in_memory() -> Arc<Self> {
        Self::over(Arc::new(object_store::memory::InMemory::new()))
    }

    /// A store over another one.
    pub fn over(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let [fail_puts, fail_gets, hang_gets, hang_deletes] = [(); 4].map(|()| AtomicBool::new(false));
        Arc::new(Self { inner, fail_puts, fail_gets, hang_gets, hang_deletes, puts: AtomicUsize::new(0) })
    }

    /// Whether puts write the bytes and then fail, as a failed fsync does.
    pub fn fail_puts(&self, fail: bool) {
        self.fail_puts.store(fail, Ordering::SeqCst);
    }

    /// Whether gets fail with an I/O error.
    pub fn fail_gets(&self, fail: bool) {
        self.fail_gets.store(fail, Ordering::SeqCst);
    }

    /// Whether deletions never return.
    pub fn hang_deletes(&self, hang: bool) {
        self.hang_deletes.store(hang, Ordering::SeqCst);
    }

    /// Whether gets never return.
    pub fn hang_gets(&self, hang: bool) {
        self.hang_gets.store(hang, Ordering::SeqCst);
    }

    /// The number of puts so far.
    pub fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }
}

fn io_error() -> Error {
    Error::Generic { store: "FaultyStore", source: "Input/output error (os error 5)".into() }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        let written = self.inner.put_opts(location, payload, opts).await?;
        if self.fail_puts.load(Ordering::SeqCst) { Err(io_error()) } else { Ok(written) }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if self.hang_gets.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.fail_gets.load(Ordering::SeqCst) {
            Err(io_error())
        } else {
            self.inner.get_opts(location, options).await
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.hang_deletes.load(Ordering::SeqCst) {
            return futures_util::stream::pending().boxed();
        }
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
