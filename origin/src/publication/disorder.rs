//! For tests: what bad disks and other versions of the program leave.

use std::time::SystemTime;

use redb::{ReadableTable, TableHandle};
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::name::ServiceName;

use super::contents::CONTENT;
use super::pin::PINS;
use super::references::{NAMES, TOTALS};
use super::rows::{CURRENT, SUPERSEDED, unix_milliseconds};
use super::state::State;
use super::tables::AGES;
use crate::tarball::ContentKey;

impl State {
    /// All is as a version left it that kept no index.
    pub(crate) fn forget_index(&self) {
        self.write(|transaction| {
            let tables = [NAMES.name(), TOTALS.name()];
            let all: Vec<_> = transaction.list_tables()?.filter(|table| tables.contains(&table.name())).collect();
            all.into_iter().try_for_each(|table| transaction.delete_table(table).map(drop))?;
            Ok(transaction.delete_table(AGES).map(drop)?)
        })
        .unwrap();
    }

    /// This blob is named by versions and not in the index, as when such a version published it.
    pub(crate) fn forget_names(&self, blob: &BlobDigest) {
        self.write(|transaction| {
            Ok(transaction.open_table(NAMES)?.retain(|(named, ..), _| named != blob.as_bytes())?)
        })
        .unwrap();
    }

    /// What was built under a key is not remembered, as when there were too many others.
    pub(crate) fn forget_content(&self, key: &ContentKey) {
        self.write(|transaction| Ok(transaction.open_table(CONTENT)?.remove(key.as_bytes()).map(drop)?)).unwrap();
    }

    /// A row among the ages that is no version's.
    pub(crate) fn add_age(&self, at: SystemTime, service: &ServiceName, digest: &TarballDigest) {
        self.write(|transaction| {
            let key = (unix_milliseconds(at), service.as_str(), digest.as_bytes());
            Ok(transaction.open_table(AGES)?.insert(key, ()).map(drop)?)
        })
        .unwrap();
    }

    /// What is current of a service, or this superseded version of it, cannot be read.
    pub(crate) fn spoil(&self, service: &ServiceName, superseded: Option<&TarballDigest>) {
        let spoilt = b"{}".as_slice();
        self.write(|transaction| {
            let Some(digest) = superseded else {
                return Ok(transaction.open_table(CURRENT)?.insert(service.as_str(), spoilt).map(drop)?);
            };
            let mut table = transaction.open_table(SUPERSEDED)?;
            let key = (service.as_str(), digest.as_bytes());
            let at = table.get(key)?.unwrap().value().0;
            Ok(table.insert(key, (at, spoilt)).map(drop)?)
        })
        .unwrap();
    }

    /// A service is pinned since a time in Unix milliseconds.
    pub(crate) fn set_pin(&self, service: &ServiceName, since: u64) {
        self.write(|transaction| Ok(transaction.open_table(PINS)?.insert(service.as_str(), since).map(drop)?)).unwrap();
    }
}
