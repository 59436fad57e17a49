//! The forms of a version: its zstd blob, and the gzip blob that is made when somebody asks for it.

use std::io;
use std::sync::PoisonError;
use std::time::SystemTime;

use weir_shared::descriptor::{Descriptor, Representation};
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;

use super::{PublishError, Publisher};
use crate::blob_store::TemporaryBlob;
use crate::failpoint::failpoint;
use crate::gzip::{self, Recoded};
use crate::publication::{Change, Content, Reference};
use crate::service::Service;

impl Publisher {
    /// Stores the blob of a superseded version that was built again, and names it in the version's descriptor as that is
    /// by now.
    pub(crate) fn restore_superseded(
        &self,
        service: &Service,
        superseded: &TarballDigest,
        content: &Content,
        blob: TemporaryBlob<'_>,
    ) -> Result<(), PublishError> {
        let blob = blob.finish(&content.blob)?;
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep()?;
        let added = self.state.add_representation(&service.name, superseded, &content.zstd(), SystemTime::now());
        let added = added.inspect_err(|_| self.doubt(service))?;
        // It was gone back to meanwhile.
        let is_new =
            |added: &Reference| service.current().is_none_or(|shown| shown.version() < added.descriptor.version());
        if let Some(reference) = added.filter(|added| added.current && is_new(added)) {
            self.show(service, Change::Revised(reference.descriptor));
        }
        Ok(())
    }

    /// The descriptor of a version with its gzip form, which is made from the zstd form unless it is there. `None`: there
    /// is no such version any more.
    pub(crate) fn with_gzip(
        &self,
        service: &Service,
        digest: &TarballDigest,
        zstd: impl io::Read,
        min_free_bytes: u64,
    ) -> Result<Option<Descriptor>, PublishError> {
        let Some(descriptor) = self.state.version(&service.name, digest)? else { return Ok(None) };
        if self.has_gzip(&descriptor) {
            return Ok(Some(descriptor));
        }
        self.require_room(min_free_bytes)?;
        let mut blob = self.blobs.temporary()?;
        let made = gzip::from_zstd(zstd, &mut blob)?;
        let added = self.keep_form(service, &descriptor, (Encoding::Gzip, made), blob)?;
        self.metrics.gzips.with_label_values(&["made"]).inc_by(u64::from(added.is_some()));
        Ok(added)
    }

    /// The zstd form of a version that has lost it, made from its gzip form: where Git cannot bring it back.
    pub(crate) fn zstd_from_gzip(
        &self,
        service: &Service,
        digest: &TarballDigest,
        min_free_bytes: u64,
    ) -> Result<(), PublishError> {
        let gone = || io::Error::other("there is no such version with a gzip form any more");
        let descriptor = self.state.version(&service.name, digest)?.ok_or_else(gone)?;
        let gzip = descriptor.representation(Encoding::Gzip).ok_or_else(gone)?;
        self.require_room(min_free_bytes)?;
        let gzip = self.open_verified(&gzip.digest).map_err(io::Error::other)?;
        let mut blob = self.blobs.temporary()?;
        let made = gzip::to_zstd(gzip.reader(), &mut blob)?;
        self.keep_form(service, &descriptor, (Encoding::Zstd, made), blob)?;
        Ok(())
    }

    /// Stores another form of a version, and states it. `None`: there is no such version any more.
    fn keep_form(
        &self,
        service: &Service,
        version: &Descriptor,
        (encoding, made): (Encoding, Recoded),
        blob: TemporaryBlob<'_>,
    ) -> Result<Option<Descriptor>, PublishError> {
        let digest = &version.publication().digest;
        if made.tarball != *digest {
            return Err(io::Error::other("the form that it was made from holds another tarball").into());
        }
        let form = Representation { encoding, dictionary: None, digest: made.blob, size: made.size };
        let blob = blob.finish(&made.blob)?;
        let _order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        blob.keep()?;
        failpoint!("the other form is kept");
        let added = self.state.add_representation(&service.name, digest, &form, SystemTime::now());
        let added = added.inspect_err(|_| self.doubt(service))?;
        failpoint!("the other form is stated");
        let Some(reference) = added else { return Ok(None) };
        if reference.current && reference.descriptor.revision() > version.revision() {
            self.show(service, Change::Revised(reference.descriptor.clone()));
        }
        Ok(Some(reference.descriptor))
    }

    /// Whether the gzip form of a version is there. Its bytes are not looked at.
    pub(crate) fn has_gzip(&self, descriptor: &Descriptor) -> bool {
        let gzip = descriptor.representation(Encoding::Gzip);
        gzip.is_some_and(|gzip| self.blobs.contains(&gzip.digest, gzip.size))
    }
}
