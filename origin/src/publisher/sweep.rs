//! Sweeping: what need not be kept goes. The work grows with what goes, not with what is kept.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_shared::digest::BlobDigest;

use super::{PublishError, Publisher};
use crate::failpoint::failpoint;
use crate::publication::Kept;
use crate::wall_clock::Clock;

/// Blobs that are removed while nothing can be published, at the most.
const AT_A_TIME: usize = 1000;

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Blobs that were removed.
    pub(crate) removed: u64,
    /// Blobs that were looked at to find those that nobody knows of.
    pub(crate) looked_at: u64,
}

impl Publisher {
    /// Removes the blobs that nothing has named for long enough, drops the versions that need not be kept, and looks for
    /// blobs that nobody knows of in one folder of all. A file or a folder that gives trouble is logged and holds up no
    /// other.
    pub(crate) fn sweep(&self, now: SystemTime, clock: Clock) -> Result<Swept, PublishError> {
        // First, because it alone writes nothing before it makes room: a full disk takes nothing else.
        let removed = self.remove_superfluous(now)?;
        self.retire_the_rest(now)?;
        let expired = self.state.expire(now, clock)?;
        self.metrics.expired_versions.with_label_values(&["age"]).inc_by(expired.by_age);
        self.metrics.expired_versions.with_label_values(&["bytes"]).inc_by(expired.by_bytes);
        failpoint!("versions have expired");
        let folder = self.state.next_folder()?;
        // Once in each round of the folders.
        if folder == 0 && clock == Clock::Steady {
            let dropped = self.state.age_history(now)?;
            if dropped > 0 {
                tracing::info!(dropped, "entries of histories were too old");
            }
        }
        let looked_at = self.look_for_unknown(folder, now)?;
        self.show_kept(&self.state.kept()?, now);
        self.require_room(0)?;
        Ok(Swept { removed, looked_at })
    }

    fn remove_superfluous(&self, now: SystemTime) -> Result<u64, PublishError> {
        let (mut removed, mut last) = (0, None);
        loop {
            let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
            let superfluous = self.state.superfluous(now, last.as_ref(), AT_A_TIME)?;
            let Some(next) = superfluous.last() else { break };
            last = Some(*next);
            let (gone, count) = self.remove_blobs(superfluous);
            self.metrics.swept_blobs.inc_by(count);
            removed += count;
            failpoint!("superfluous blobs are removed");
            self.state.forget_blobs(&gone)?;
            failpoint!("superfluous blobs are forgotten");
        }
        if removed > 0 {
            tracing::info!(removed, "blobs were swept");
        }
        Ok(removed)
    }

    /// Those of the blobs that are there no more, and how many files were removed. The others are left to the next sweep.
    fn remove_blobs(&self, blobs: Vec<BlobDigest>) -> (Vec<BlobDigest>, u64) {
        let (mut gone, mut removed, mut trouble) = (Vec::with_capacity(blobs.len()), 0, None);
        let all = blobs.len();
        for blob in blobs {
            match self.blobs.remove(&blob) {
                Ok(was_there) => {
                    removed += u64::from(was_there);
                    gone.push(blob);
                }
                Err(error) => trouble = trouble.or(Some((blob, error))),
            }
        }
        if let Some((blob, error)) = trouble {
            let stay = all - gone.len();
            tracing::warn!(stay, first = %blob, %error, "blobs that nothing names cannot be removed");
        }
        (gone, removed)
    }

    /// What a process that was killed stored and did not state is found within as many sweeps as there are folders.
    fn look_for_unknown(&self, folder: u8, now: SystemTime) -> Result<u64, PublishError> {
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        let found = self.blobs.in_folder(folder).unwrap_or_else(|error| {
            let folder = format!("{folder:02x}");
            tracing::warn!(folder, %error, "a folder of blobs cannot be looked through; the others are");
            Vec::new()
        });
        self.state.found_in_folder(folder, &found, now)?;
        Ok(found.len() as u64)
    }

    fn show_kept(&self, kept: &Kept, now: SystemTime) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.store_bytes.set(gauge(kept.bytes));
        self.metrics.store_blobs.set(gauge(kept.blobs));
        self.metrics.store_unnamed_blobs.set(gauge(kept.unnamed));
        self.metrics.superseded_versions.set(gauge(kept.superseded));
        let oldest = kept.oldest.map(|at| UNIX_EPOCH + Duration::from_millis(at));
        let age = oldest.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        self.metrics.oldest_superseded.set(gauge(age.as_secs()));
    }
}
