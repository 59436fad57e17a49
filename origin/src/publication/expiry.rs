//! Expiry: which superseded versions go, and which blobs go after them. The work grows with what goes, not with what is
//! kept.

use std::ops::Bound;
use std::time::SystemTime;

use redb::{ReadableTable, ReadableTableMetadata};
use weir_shared::digest::BlobDigest;

use super::contents::Contents;
use super::references::{self, References, TOTALS, UNNAMED};
use super::rows::unix_milliseconds;
use super::state::{State, StateError};
use super::tables::{AGES, Tables};
use crate::wall_clock::Clock;

/// Which folder of blobs is looked at next.
const NEXT_FOLDER: &str = "next_folder";

/// Versions that go in one transaction at the most.
const BATCH: usize = 1000;

/// Versions that went, by the bound that they were beyond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Expired {
    pub(crate) by_age: u64,
    pub(crate) by_bytes: u64,
}

/// What is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Blobs that something names.
    pub(crate) blobs: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Blobs that nothing names and that are on the disk still.
    pub(crate) unnamed: u64,
    /// Superseded versions.
    pub(crate) superseded: u64,
    /// When the oldest of them was superseded: Unix milliseconds.
    pub(crate) oldest: Option<u64>,
}

impl State {
    /// Drops the superseded versions that are too old, by a clock that is steady, and the oldest while the blobs together
    /// are too large. (Those that are too many went when their service was published.)
    pub(crate) fn expire(&self, now: SystemTime, clock: Clock) -> Result<Expired, StateError> {
        self.mend_index(now)?;
        // A clock in doubt may be behind: what it made older would go once it is right again.
        if clock == Clock::Steady {
            self.stamp_anew(now)?;
        }
        let retention = self.retention();
        let largest = retention.bytes.map_or(u64::MAX, |bytes| bytes.as_u64());
        let too_old = unix_milliseconds(now).saturating_sub(retention.age.as_millis().try_into().unwrap_or(u64::MAX));
        let mut all = Expired::default();
        loop {
            let (expired, is_done) = self.write(|transaction| {
                let mut tables = Tables::open(transaction)?;
                let mut expired = Expired::default();
                for _ in 0..BATCH {
                    let Some((at, service, digest)) = tables.oldest()? else { return Ok((expired, true)) };
                    let is_old = clock == Clock::Steady && at <= too_old;
                    if !is_old && tables.references.bytes()? <= largest {
                        return Ok((expired, true));
                    }
                    let dropped = u64::from(tables.drop_aged(at, &service, &digest, now)?);
                    *(if is_old { &mut expired.by_age } else { &mut expired.by_bytes }) += dropped;
                }
                Ok((expired, false))
            })?;
            all.by_age += expired.by_age;
            all.by_bytes += expired.by_bytes;
            if is_done {
                return Ok(all);
            }
        }
    }

    /// What a clock that was ahead has stamped is of now: it would be kept until that time comes.
    fn stamp_anew(&self, now: SystemTime) -> Result<(), StateError> {
        let at = unix_milliseconds(now);
        let is_ahead = self.read(|transaction| {
            if transaction.open_table(AGES)?.last()?.is_some_and(|(key, _)| key.value().0 > at) {
                return Ok(true);
            }
            let unnamed = transaction.open_table(UNNAMED)?;
            let mut rows = unnamed.iter()?;
            Ok(rows.any(|row| row.is_ok_and(|(_, since)| since.value() > at)))
        })?;
        if is_ahead {
            let (versions, blobs) = self.write(|transaction| {
                let mut tables = Tables::open(transaction)?;
                Ok((tables.stamp_anew(at)?, tables.references.stamp_anew(at)?))
            })?;
            tracing::warn!(versions, blobs, "the clock was ahead when these were let go; their age begins now");
        }
        Ok(())
    }

    /// What is kept. From counters.
    pub(crate) fn kept(&self) -> Result<Kept, StateError> {
        self.read(|transaction| {
            let (totals, ages) = (transaction.open_table(TOTALS)?, transaction.open_table(AGES)?);
            let total = |what| Ok::<_, StateError>(totals.get(what)?.map_or(0, |count| count.value()));
            Ok(Kept {
                blobs: total(references::BLOBS)?,
                bytes: total(references::BYTES)?,
                unnamed: transaction.open_table(UNNAMED)?.len()?,
                superseded: ages.len()?,
                oldest: ages.first()?.map(|(key, _)| key.value().0),
            })
        })
    }

    /// Blobs that nothing has named for as long as they linger: those that sort after `last`, `limit` of them at the most.
    pub(crate) fn superfluous(
        &self,
        now: SystemTime,
        last: Option<&BlobDigest>,
        limit: usize,
    ) -> Result<Vec<BlobDigest>, StateError> {
        let linger = self.retention().linger.as_millis().try_into().unwrap_or(u64::MAX);
        let before = unix_milliseconds(now).saturating_sub(linger);
        self.read(|transaction| {
            let mut found = Vec::new();
            let after = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_bytes()));
            for row in transaction.open_table(UNNAMED)?.range::<&[u8; 32]>((after, Bound::Unbounded))? {
                let (blob, since) = row?;
                if since.value() <= before {
                    found.push(BlobDigest::from(blake3::Hash::from_bytes(*blob.value())));
                }
                if found.len() == limit {
                    break;
                }
            }
            Ok(found)
        })
    }

    /// Forgets blobs whose files were removed, and what was built into them.
    pub(crate) fn forget_blobs(&self, blobs: &[BlobDigest]) -> Result<(), StateError> {
        self.write(|transaction| {
            let mut references = References::open(transaction)?;
            let mut contents = Contents::open(transaction)?;
            for blob in blobs {
                references.unnamed.remove(blob.as_bytes())?;
                contents.forget_blob(blob)?;
            }
            Ok(())
        })
    }

    /// The number of the folder of blobs that is to be looked at next.
    pub(crate) fn next_folder(&self) -> Result<u8, StateError> {
        self.read(|transaction| {
            let next = transaction.open_table(TOTALS)?.get(NEXT_FOLDER)?.map_or(0, |next| next.value());
            Ok(u8::try_from(next % 256).unwrap_or(0))
        })
    }

    /// These blobs were found in a folder; those that nobody knows of will go. The next folder is another.
    pub(crate) fn found_in_folder(&self, folder: u8, blobs: &[BlobDigest], now: SystemTime) -> Result<(), StateError> {
        self.write(|transaction| {
            let mut references = References::open(transaction)?;
            for blob in blobs {
                references.note(blob, now)?;
            }
            references.totals.insert(NEXT_FOLDER, u64::from(folder.wrapping_add(1)))?;
            Ok(())
        })
    }
}
