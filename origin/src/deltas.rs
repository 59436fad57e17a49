//! Makes deltas of new versions against those before, one at a time, after their publication.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use bytesize::ByteSize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_publish::{DeltaPlan, Publisher};
use weir_runtime::shutdown::Drain;
use weir_source::Service;
use weir_tarball::delta;

use crate::metrics::Metrics;
use crate::tar_reader::TarReader;

/// The smallest zstd body for which deltas are made: of less nobody saves what a write of the record and an event to each
/// edge cost.
const MIN_BODY_BYTES: u64 = 16 << 10;

/// The versions whose deltas are being published, in memory. The writer of a record takes all that wait in one write.
const MAX_PUBLISHING: usize = 8;

/// Why there is no delta.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
enum DeltaError {
    /// A tar is above the limit.
    #[error("the tar is too large")]
    TarTooLarge,
    /// The zstd body is small enough.
    #[error("the tarball is small")]
    Small,
    /// It would save too little.
    #[error("the delta is too large")]
    DeltaTooLarge,
    /// A newer version was published.
    #[error("the version is no longer current")]
    Superseded,
    /// A tar cannot be read, or the deltas cannot be stored.
    #[error("{0}")]
    Failed(String),
}

impl DeltaError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Makes the deltas of each new version until the drain begins. `max_tar`: the largest tar.
pub(crate) async fn make_deltas(publisher: Arc<Publisher>, max_tar: ByteSize, metrics: Metrics, drain: Drain) {
    let publishing = Arc::new(Semaphore::new(MAX_PUBLISHING));
    let maker = DeltaMaker { publisher, max_tar: max_tar.as_u64(), publishing, metrics };
    tokio::select! {
        () = maker.run() => {}
        () = drain.begun() => {}
    }
}

#[derive(Clone)]
struct DeltaMaker {
    publisher: Arc<Publisher>,
    max_tar: u64,
    publishing: Arc<Semaphore>,
    metrics: Metrics,
}

impl DeltaMaker {
    async fn run(&self) {
        loop {
            let (service, waiting) = self.publisher.deltas.next().await;
            self.metrics.deltas_waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
            if self.max_tar == 0 {
                continue;
            }
            match self.publisher.deltas.plan(&service).await {
                Ok(Some(plan)) => self.make(&service, plan).await,
                Ok(None) => {}
                Err(error) => self.count(&service, 1, &DeltaError::failed(error)),
            }
        }
    }

    /// Makes the deltas of one version. They are published in one write, while the next ones are made.
    async fn make(&self, service: &Arc<Service>, DeltaPlan { target, bases }: DeltaPlan) {
        let mut deltas = Vec::new();
        for base in bases {
            match self.delta(service, &base, &target).await {
                Ok(delta) => deltas.push((base.publication().sha256, delta)),
                Err(error) => self.count(service, 1, &error),
            }
        }
        if deltas.is_empty() {
            return;
        }
        let permit = self.publishing.clone().acquire_owned().await;
        let (maker, service) = (self.clone(), service.clone());
        tokio::spawn(async move {
            maker.publish(&service, target.publication().digest, deltas).await;
            drop(permit);
        });
    }

    async fn publish(&self, service: &Arc<Service>, target: TarballDigest, deltas: Vec<(Sha256, Bytes)>) {
        let count = deltas.len();
        match self.publisher.deltas.publish(service, target, deltas).await {
            Ok(true) => self.metrics.deltas.with_label_values(&["made"]).inc_by(count as u64),
            Ok(false) => self.count(service, count, &DeltaError::Superseded),
            Err(error) => self.count(service, count, &DeltaError::failed(error)),
        }
    }

    async fn delta(&self, service: &Service, base: &Descriptor, target: &Descriptor) -> Result<Bytes, DeltaError> {
        let digest = target.publication().digest;
        if service.current().is_none_or(|current| current.publication().digest != digest) {
            return Err(DeltaError::Superseded);
        }
        let (old_size, size) = (base.publication().size, target.publication().size);
        if old_size.max(size) > self.max_tar {
            return Err(DeltaError::TarTooLarge);
        }
        let whole = target.representation(Encoding::Zstd).map_or(0, |zstd| zstd.size);
        if whole < MIN_BODY_BYTES {
            return Err(DeltaError::Small);
        }
        let objects = self.publisher.repositories.objects();
        let old = TarReader::list(objects, base).await.map_err(DeltaError::failed)?;
        let new = TarReader::list(objects, target).await.map_err(DeltaError::failed)?;
        let (old_sha256, runtime) = (base.publication().sha256, Handle::current());
        let encoded = spawn_blocking(move || {
            let old = read(old.blocking(runtime.clone()), old_size, &old_sha256)?;
            delta::encode(&old, &old_sha256, new.blocking(runtime), size)
        });
        let body = encoded.await.map_err(DeltaError::failed)?.map_err(DeltaError::failed)?;
        if body.len() as u64 > whole / 2 { Err(DeltaError::DeltaTooLarge) } else { Ok(body.into()) }
    }

    fn count(&self, service: &Service, deltas: usize, error: &DeltaError) {
        self.metrics.deltas.with_label_values(&[error.into_str()]).inc_by(deltas as u64);
        match error {
            DeltaError::Failed(_) => tracing::warn!(service = %service.name, %error, "a delta cannot be made"),
            _ => tracing::debug!(service = %service.name, %error, "a delta was skipped"),
        }
    }
}

/// Reads a tar of `size` bytes that is to be a dictionary.
fn read(tar: impl Read, size: u64, sha256: &Sha256) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).map_err(std::io::Error::other)?);
    tar.take(size + 1).read_to_end(&mut bytes)?;
    if Sha256::of(&bytes) != *sha256 {
        return Err(std::io::Error::other("the older tar has another SHA-256 than its publication"));
    }
    Ok(bytes)
}
