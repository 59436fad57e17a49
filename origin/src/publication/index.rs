//! The index of which versions name which blobs is written down anew when it is not that of the versions.
//!
//! It changes with the versions, in the same transactions. But a version of the program that keeps none may have been at
//! work in between; and of a row that cannot be read nobody knows what it named.

use std::time::SystemTime;

use redb::ReadableTableMetadata;
use weir_shared::descriptor::Descriptor;
use weir_shared::name::ServiceName;

use super::references::{DOUBT, NAMES, TOTALS};
use super::rows::SUPERSEDED;
use super::state::{State, StateError};
use super::tables::{AGES, Tables};

impl State {
    /// For a start: sees whether everything that is `current` is in the index, before anything is removed by it.
    pub(crate) fn check_index(&self, current: &[(ServiceName, Descriptor)], now: SystemTime) -> Result<(), StateError> {
        let fits = self.read(|transaction| {
            if transaction.open_table(AGES)?.len()? != transaction.open_table(SUPERSEDED)?.len()? {
                return Ok(false);
            }
            let names = transaction.open_table(NAMES)?;
            for (service, descriptor) in current {
                let digest = descriptor.publication().digest;
                for form in descriptor.representations() {
                    if names.get((form.digest.as_bytes(), service.as_str(), digest.as_bytes()))?.is_none() {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })?;
        if fits { self.mend_index(now) } else { self.index_anew("it is not that of the versions", now) }
    }

    /// When a version went whose row could not be read, what it named goes with it.
    pub(super) fn mend_index(&self, now: SystemTime) -> Result<(), StateError> {
        let doubted = self.read(|transaction| Ok(transaction.open_table(TOTALS)?.get(DOUBT)?.is_some()))?;
        if doubted { self.index_anew("a version went that could not be read", now) } else { Ok(()) }
    }

    fn index_anew(&self, why: &str, now: SystemTime) -> Result<(), StateError> {
        self.write(|transaction| Tables::open(transaction)?.index(now))?;
        tracing::info!(why, "the index of blobs was written down anew");
        Ok(())
    }
}
