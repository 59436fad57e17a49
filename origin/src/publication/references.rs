//! Which versions name a blob, kept beside the versions, so that nobody has to look through all of them (or all blobs)
//! to find out what may go.

use std::time::SystemTime;

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};
use weir_shared::descriptor::{Descriptor, Representation};
use weir_shared::digest::{BlobDigest, TarballDigest};

use super::rows::unix_milliseconds;
use super::state::StateError;

type Bytes32 = &'static [u8; 32];

/// Blob, and the service and digest of a version that names it → bytes of the blob.
pub(super) const NAMES: TableDefinition<'_, (Bytes32, &str, Bytes32), u64> = TableDefinition::new("names_v1");
/// A blob that nothing names → since when (Unix milliseconds).
pub(super) const UNNAMED: TableDefinition<'_, Bytes32, u64> = TableDefinition::new("unnamed_v1");
/// What is counted of the blobs that are named, each once.
pub(super) const TOTALS: TableDefinition<'_, &str, u64> = TableDefinition::new("totals_v1");

pub(super) const BLOBS: &str = "blobs";
pub(super) const BYTES: &str = "bytes";
/// There when names may be left of a version that went.
pub(super) const DOUBT: &str = "doubt";
/// Versions that could not be read when the names were written down last: what they name is not known.
pub(super) const UNREAD: &str = "unread";

/// The tables of who names what, while they are changed.
pub(super) struct References<'t> {
    names: Table<'t, (Bytes32, &'static str, Bytes32), u64>,
    pub(super) unnamed: Table<'t, Bytes32, u64>,
    pub(super) totals: Table<'t, &'static str, u64>,
}

impl<'t> References<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, StateError> {
        Ok(Self {
            names: transaction.open_table(NAMES)?,
            unnamed: transaction.open_table(UNNAMED)?,
            totals: transaction.open_table(TOTALS)?,
        })
    }

    /// A version, in the forms that it had before, is in these forms from now on; `None`: it was not, or is no longer.
    pub(super) fn replace(
        &mut self,
        before: Option<&Descriptor>,
        after: Option<&Descriptor>,
        now: SystemTime,
    ) -> Result<(), StateError> {
        let forms = |version: Option<&'_ Descriptor>| -> Vec<Representation> {
            version.map(|version| version.representations().to_vec()).unwrap_or_default()
        };
        let (had, has) = (forms(before), forms(after));
        // What is named first is never without a name in between.
        for form in has.iter().filter(|form| !names(&had, &form.digest)) {
            self.name(after, form)?;
        }
        for form in had.iter().filter(|form| !names(&has, &form.digest)) {
            self.unname(before, form, now)?;
        }
        Ok(())
    }

    /// Whether any version names a blob.
    pub(super) fn is_named(&self, blob: &BlobDigest) -> Result<bool, StateError> {
        let first = self.names.range((blob.as_bytes(), "", &[0; 32])..)?.next().transpose()?;
        Ok(first.is_some_and(|(key, _)| key.value().0 == blob.as_bytes()))
    }

    /// A blob is on the disk; if nothing names it, it goes when its time has come.
    pub(super) fn note(&mut self, blob: &BlobDigest, now: SystemTime) -> Result<(), StateError> {
        if !self.is_named(blob)? && self.unnamed.get(blob.as_bytes())?.is_none() {
            self.nothing_names(blob, now)?;
        }
        Ok(())
    }

    /// How many versions there are of which it is not known what they name.
    pub(super) fn set_unread(&mut self, versions: usize) -> Result<(), StateError> {
        self.totals.insert(UNREAD, versions as u64)?;
        Ok(())
    }

    /// No version that can be read names a blob. As long as there are others it stays: it may be theirs.
    fn nothing_names(&mut self, blob: &BlobDigest, now: SystemTime) -> Result<(), StateError> {
        let unread = self.totals.get(UNREAD)?.map_or(0, |versions| versions.value());
        if unread == 0 {
            self.unnamed.insert(blob.as_bytes(), unix_milliseconds(now))?;
        }
        Ok(())
    }

    /// Blobs that are without a name since a time that has not come are so since `now` (Unix milliseconds). How many.
    pub(super) fn stamp_anew(&mut self, now: u64) -> Result<usize, StateError> {
        let mut ahead = Vec::new();
        for row in self.unnamed.iter()? {
            let (blob, since) = row?;
            if since.value() > now {
                ahead.push(*blob.value());
            }
        }
        for blob in &ahead {
            self.unnamed.insert(blob, now)?;
        }
        Ok(ahead.len())
    }

    /// Forgets all names. What is known to be without one stays so.
    pub(super) fn clear(&mut self) -> Result<(), StateError> {
        self.names.retain(|_, _| false)?;
        for what in [BLOBS, BYTES, DOUBT] {
            self.totals.remove(what)?;
        }
        Ok(())
    }

    /// A version went whose row cannot be read: what it named stays named until all names are written down anew.
    pub(super) fn doubt(&mut self) -> Result<(), StateError> {
        self.totals.insert(DOUBT, 1)?;
        Ok(())
    }

    /// The bytes of all blobs that are named.
    pub(super) fn bytes(&self) -> Result<u64, StateError> {
        Ok(self.totals.get(BYTES)?.map_or(0, |bytes| bytes.value()))
    }

    fn name(&mut self, version: Option<&Descriptor>, form: &Representation) -> Result<(), StateError> {
        let Some((service, digest)) = version.map(key) else { return Ok(()) };
        if !self.is_named(&form.digest)? {
            self.unnamed.remove(form.digest.as_bytes())?;
            self.count(|blobs| blobs.saturating_add(1), |bytes| bytes.saturating_add(form.size))?;
        }
        self.names.insert((form.digest.as_bytes(), service, digest.as_bytes()), form.size)?;
        Ok(())
    }

    fn unname(
        &mut self,
        version: Option<&Descriptor>,
        form: &Representation,
        now: SystemTime,
    ) -> Result<(), StateError> {
        let Some((service, digest)) = version.map(key) else { return Ok(()) };
        let named = self.names.remove((form.digest.as_bytes(), service, digest.as_bytes()))?.map(|size| size.value());
        if let Some(size) = named
            && !self.is_named(&form.digest)?
        {
            self.nothing_names(&form.digest, now)?;
            self.count(|blobs| blobs.saturating_sub(1), |bytes| bytes.saturating_sub(size))?;
        }
        Ok(())
    }

    fn count(&mut self, blobs: impl Fn(u64) -> u64, bytes: impl Fn(u64) -> u64) -> Result<(), StateError> {
        for (what, change) in [(BLOBS, &blobs as &dyn Fn(u64) -> u64), (BYTES, &bytes)] {
            let before = self.totals.get(what)?.map_or(0, |count| count.value());
            self.totals.insert(what, change(before))?;
        }
        Ok(())
    }
}

fn key(version: &Descriptor) -> (&str, &TarballDigest) {
    (version.publication().service.as_str(), &version.publication().digest)
}

fn names(forms: &[Representation], blob: &BlobDigest) -> bool {
    forms.iter().any(|form| form.digest == *blob)
}
