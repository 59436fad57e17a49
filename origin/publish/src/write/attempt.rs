//! The upload of one build: frames are stored while the build runs, and garbage collection leaves them alone.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Handle;
use weir_protocol::digest::ObjectDigest;
use weir_store::ObjectWriter;
use weir_tarball::FrameSink;

use super::protection::Protection;
use crate::error::PublishError;
use crate::metrics::PublishMetrics;

/// An attempt may take this fraction of the grace period. The frames that it reuses were referenced when it began,
/// and nothing deletes them before the whole grace period has passed.
const PART_OF_GRACE_PERIOD: u32 = 4;

/// Stores the frames of one build. Garbage collection deletes none of them until the attempt is dropped.
#[derive(Debug)]
pub struct Attempt {
    writer: ObjectWriter,
    protection: Protection,
    runtime: Handle,
    time: AttemptTime,
    metrics: PublishMetrics,
}

/// The time that an attempt may take until its record is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptTime {
    begun: Instant,
    limit: Duration,
}

impl Attempt {
    /// Must be called on the runtime that performs the writes.
    pub(crate) fn new(
        writer: ObjectWriter,
        protection: Protection,
        grace_period: Duration,
        metrics: PublishMetrics,
    ) -> Self {
        let time = AttemptTime { begun: Instant::now(), limit: grace_period / PART_OF_GRACE_PERIOD };
        Self { writer, protection, runtime: Handle::current(), time, metrics }
    }

    /// The longest time from here to the write of the record.
    pub fn longest(&self) -> Duration {
        self.time.limit
    }

    /// Waits until all frames are durable.
    pub(crate) async fn finish(self) -> Result<(Protection, AttemptTime), PublishError> {
        self.writer.finish().await?;
        Ok((self.protection, self.time))
    }
}

impl AttemptTime {
    pub(crate) fn check(&self, now: Instant) -> Result<(), PublishError> {
        if now.saturating_duration_since(self.begun) > self.limit {
            return Err(PublishError::AttemptExpired(self.limit));
        }
        Ok(())
    }
}

impl FrameSink for Attempt {
    fn put(&self, frame: Bytes) -> io::Result<ObjectDigest> {
        let digest = ObjectDigest::of(&frame);
        self.runtime.block_on(self.protection.add(digest));
        self.metrics.object_bytes.with_label_values(&["frame"]).inc_by(frame.len() as u64);
        self.writer.put(frame).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_ends_within_a_quarter_of_the_grace_period() {
        let time = AttemptTime { begun: Instant::now(), limit: Duration::from_secs(25) };
        assert!(time.check(time.begun + time.limit).is_ok());
        let error = time.check(time.begun + time.limit + Duration::from_millis(1)).unwrap_err().to_string();
        assert!(error.contains("25 s"), "{error}");
    }
}
