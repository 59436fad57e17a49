//! What is stored of services, their versions and the blobs that these name.

use std::collections::{BTreeSet, HashSet};

use redb::ReadableTable;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::name::{RepositoryName, ServiceName};

use super::pin::PINS;
use super::references::NAMES;
use super::rows::{CURRENT, SUPERSEDED, parse, parse_superseded};
use super::state::{State, StateError};

/// A descriptor that names a blob.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) descriptor: Descriptor,
    /// The service's current one, not a superseded one.
    pub(crate) current: bool,
}

impl State {
    /// The current descriptors of all services. One that cannot be read is left out, and its service is published anew
    /// under a higher generation, which stands in a table of its own.
    pub(crate) fn all_current(&self) -> Result<Vec<(ServiceName, Descriptor)>, StateError> {
        self.read(|transaction| {
            let mut found = Vec::new();
            for row in transaction.open_table(CURRENT)?.iter()? {
                let (service, bytes) = row?;
                match parse(service.value(), bytes.value()) {
                    Ok(descriptor) => found.push((descriptor.publication().service.clone(), descriptor)),
                    Err(error) => {
                        // A newer version wrote it, or the disk did.
                        tracing::warn!(service = service.value(), %error, "a stored descriptor is not used");
                    }
                }
            }
            Ok(found)
        })
    }

    /// The descriptor of a service's digest, if it is the current one or a retained one.
    pub(crate) fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Result<Option<Descriptor>, StateError> {
        Ok(self.find(service.as_str(), digest)?.map(|found| found.descriptor))
    }

    fn find(&self, service: &str, digest: &TarballDigest) -> Result<Option<Reference>, StateError> {
        self.read(|transaction| {
            if let Some(bytes) = transaction.open_table(CURRENT)?.get(service)?
                && let Ok(descriptor) = parse(service, bytes.value())
                && descriptor.publication().digest == *digest
            {
                return Ok(Some(Reference { descriptor, current: true }));
            }
            let row = transaction.open_table(SUPERSEDED)?.get((service, digest.as_bytes()))?;
            let descriptor = row.and_then(|row| parse_superseded(service, digest.as_bytes(), row.value().1).ok());
            Ok(descriptor.map(|descriptor| Reference { descriptor, current: false }))
        })
    }

    /// The services of which something is current or pinned, whether it can be read or not.
    pub(crate) fn services(&self) -> Result<BTreeSet<String>, StateError> {
        self.read(|transaction| {
            let mut services = BTreeSet::new();
            for row in transaction.open_table(CURRENT)?.iter()? {
                services.insert(row?.0.value().to_owned());
            }
            for row in transaction.open_table(PINS)?.iter()? {
                services.insert(row?.0.value().to_owned());
            }
            Ok(services)
        })
    }

    /// A descriptor that names this blob, of a service that is asked for; a current one when there is one.
    pub(crate) fn reference(
        &self,
        blob: &BlobDigest,
        of: impl Fn(&str) -> bool,
    ) -> Result<Option<Reference>, StateError> {
        let named = self.read(|transaction| {
            let mut named = Vec::new();
            for row in transaction.open_table(NAMES)?.range((blob.as_bytes(), "", &[0; 32])..)? {
                let (key, _) = row?;
                let (named_blob, service, digest) = key.value();
                if named_blob != blob.as_bytes() {
                    break;
                }
                if !of(service) {
                    continue;
                }
                named.push((service.to_owned(), TarballDigest::from(blake3::Hash::from_bytes(*digest))));
            }
            Ok(named)
        })?;
        let mut found = None;
        for (service, digest) in named {
            let naming = self.find(&service, &digest)?;
            let naming =
                naming.filter(|found| found.descriptor.representations().iter().any(|form| form.digest == *blob));
            match naming {
                Some(reference) if reference.current => return Ok(Some(reference)),
                naming => found = found.or(naming),
            }
        }
        Ok(found)
    }

    /// The commits of a repository that current and retained versions are of, with their services. Reads everything: for the
    /// rare occasion.
    pub(crate) fn commits(&self, repository: &RepositoryName) -> Result<Vec<(ServiceName, CommitId)>, StateError> {
        self.read(|transaction| {
            let mut commits = HashSet::new();
            let mut add = |service: &str, bytes: &[u8]| {
                let read = parse(service, bytes).ok();
                let own = read.filter(|descriptor| descriptor.publication().repository == *repository);
                commits.extend(own.map(|descriptor| {
                    let publication = descriptor.publication();
                    (publication.service.clone(), publication.commit.clone())
                }));
            };
            for row in transaction.open_table(CURRENT)?.iter()? {
                let (service, descriptor) = row?;
                add(service.value(), descriptor.value());
            }
            for row in transaction.open_table(SUPERSEDED)?.iter()? {
                let (version, descriptor) = row?;
                add(version.value().0, descriptor.value().1);
            }
            Ok(commits.into_iter().collect())
        })
    }
}
