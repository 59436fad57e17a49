//! Publishing candidates: stored content at once, other content after its build.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use weir_protocol::descriptor::{Descriptor, Representation};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{Frame, Manifest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::oci::OciBlob;
use weir_source::{Candidate, Service};
use weir_store::Area;
use weir_tarball::{Built, ContentKey, Whole, WholeBlob};

use super::decide::decision::Content;
use super::decide::draft::BuiltContent;
use super::decide::oci_form::OciContent;
use super::error::PublishError;
use super::publisher::Publisher;
use super::request::{Cached, Outcome};
use super::stored::known::{KnownService, WhileStaged};
use super::write::attempt::Attempt;
use super::write::oci_layer::sha256_of;
use super::write::pending_change::PendingChange;
use super::write::protection::Protection;
use super::write::repositories::Handle;

impl Publisher {
    /// Publishes candidates whose content is stored: in the service's versions, or as the current version of another
    /// service of the repository. Returns for each candidate whether it needs a build.
    pub async fn publish_cached(
        &self,
        repository: &RepositoryName,
        candidates: &[Candidate],
        now: SystemTime,
    ) -> Result<Vec<Cached>, PublishError> {
        let handle = self.repositories.handle(repository);
        let refused = lift_suspension(&handle).await.err();
        let (mut cached, mut known, mut sources) = (Vec::with_capacity(candidates.len()), Vec::new(), HashMap::new());
        {
            let state = handle.repository.known();
            for (service, row) in &state.services {
                sources.extend(row.current.as_ref().map(|current| (current.key, service.clone())));
            }
            for (number, candidate) in candidates.iter().enumerate() {
                let own = state.services.get(&candidate.service.name).map(Box::as_ref);
                let (settled, source) = match self.is_held(candidate, own, now) {
                    true => (true, None),
                    false => up_to_date_or_source(candidate, own, &sources),
                };
                if let Some(error) = refused.as_ref().filter(|_| !settled) {
                    cached.push(Cached::Refused(error.clone()));
                    continue;
                }
                cached.push(if settled { Cached::UpToDate } else { Cached::NeedsBuild });
                known.extend(source.map(|source| (number, candidate.clone(), source)));
            }
        }
        if known.is_empty() {
            return Ok(cached);
        }
        let services = known.iter().flat_map(|(_, candidate, source)| [candidate.service.name.clone(), source.clone()]);
        let published = handle.change(services.collect(), move |draft| {
            let (mut published, mut shown) = (Vec::new(), Vec::new());
            for (number, candidate, source) in known {
                // A failure here leads to a build, which reports the error. It holds up no other candidate.
                if let Ok(Some((_, changes))) = draft.publish_known(candidate, &source, now) {
                    shown.extend(changes);
                    published.push(number);
                }
            }
            Ok::<_, PublishError>((published, shown))
        });
        for number in published.await? {
            cached[number] = Cached::UpToDate;
        }
        Ok(cached)
    }

    /// Whether a freeze keeps what is in force.
    fn is_held(&self, candidate: &Candidate, own: Option<&KnownService>, now: SystemTime) -> bool {
        let Candidate { service, key, .. } = candidate;
        let is_other = |own: &KnownService| own.current.is_some() && own.holds() && !own.is_at(key);
        own.is_some_and(is_other) && self.freezes.of(&service.name, now).is_some()
    }

    /// Publishes a build whose frames were stored through `attempt`.
    pub async fn publish_built(
        &self,
        candidate: &Candidate,
        built: Built,
        attempt: Attempt,
        now: SystemTime,
    ) -> Result<Outcome, PublishError> {
        let service = &candidate.service;
        let (protection, time) = attempt.finish().await?;
        let (content, recipe) = self.store_built(service, built, &protection).await?;
        let name = service.name.clone();
        let built = BuiltContent { candidate: candidate.clone(), content, recipe: Some(recipe) };
        let (mut pending_change, answer) = PendingChange::new(vec![name], move |draft| draft.publish(built, now));
        pending_change.attempt = Some((protection, time));
        self.repositories.handle(&service.repository).send(pending_change, answer).await
    }

    /// Stores a current or retained version that was rebuilt from its own commit, and replaces its representations if
    /// their bytes have changed. Returns false if the version is gone, or if the build had another digest.
    pub async fn publish_rebuilt(
        &self,
        service: &Arc<Service>,
        version: &Descriptor,
        built: Built,
        attempt: Attempt,
    ) -> Result<bool, PublishError> {
        if built.digest != version.publication().digest {
            return Ok(false);
        }
        let (protection, time) = attempt.finish().await?;
        let (content, recipe) = self.store_built(service, built, &protection).await?;
        let owned = service.clone();
        let (mut pending_change, answer) = PendingChange::new(vec![service.name.clone()], move |draft| {
            draft.replace_representations(&owned, &content, recipe, SystemTime::now())
        });
        pending_change.attempt = Some((protection, time));
        self.repositories.handle(&service.repository).send(pending_change, answer).await
    }

    pub(super) async fn store_built(
        &self,
        service: &Service,
        built: Built,
        protection: &Protection,
    ) -> Result<(Content, ObjectDigest), PublishError> {
        let repository = &service.repository;
        // An owner of the release before would delete what only blobs reference.
        let may_store = || self.repositories.shared.may_store_blobs.as_ref().is_none_or(|may_store| may_store());
        let whole = built.whole.filter(|_| service.oci.is_on() && may_store());
        let mut oci = match &whole {
            Some(whole) => Some(self.store_whole(repository, whole, protection).await?),
            None => None,
        };
        let mut representations =
            vec![self.store_representation(repository, Encoding::Zstd, built.zstd, protection).await?];
        if let Some(frames) = built.gzip {
            let sha256 = match service.oci.is_on() && whole.is_none() {
                true => Some(sha256_of(self.repositories.objects(), repository, &frames).await?),
                false => None,
            };
            let gzip = self.store_representation(repository, Encoding::Gzip, frames, protection).await?;
            oci = oci.or(sha256.map(|sha256| OciContent::of_tarball(sha256, &gzip)));
            representations.push(gzip);
        }
        let recipe = Bytes::from(built.recipe.to_bytes());
        let recipe = self.repositories.store(repository, (Area::Private, "recipe"), recipe, protection).await?;
        let Built { digest, sha256, size, omitted, .. } = built;
        Ok((Content { digest, sha256, size, omitted, representations, oci }, recipe))
    }

    async fn store_whole(
        &self,
        repository: &RepositoryName,
        Whole { manifest, blobs: whole }: &Whole,
        protection: &Protection,
    ) -> Result<OciContent, PublishError> {
        let mut blobs = Vec::with_capacity(whole.len());
        for WholeBlob { sha256, media_type, frames } in whole {
            let (digest, size, frames) = self.store_body(repository, frames.clone(), protection).await?;
            blobs.push(OciBlob { sha256: *sha256, media_type: media_type.clone(), digest, size, frames });
        }
        Ok(OciContent { blobs, manifest: manifest.clone() })
    }

    async fn store_representation(
        &self,
        repository: &RepositoryName,
        encoding: Encoding,
        frames: Vec<Frame>,
        protection: &Protection,
    ) -> Result<Representation, PublishError> {
        let (digest, size, frames) = self.store_body(repository, frames, protection).await?;
        Ok(Representation { encoding, dictionary: None, digest, size, frames })
    }

    /// Names a body by its only frame, or by the manifest of its frames. Returns its size and the number of frames, too.
    async fn store_body(
        &self,
        repository: &RepositoryName,
        frames: Vec<Frame>,
        protection: &Protection,
    ) -> Result<(ObjectDigest, u64, u32), PublishError> {
        let count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let (digest, size) = match frames[..] {
            [Frame { digest, size, .. }] => (digest, size),
            _ => {
                let manifest = Manifest::new(frames)?;
                let bytes = manifest.to_bytes()?;
                (
                    self.repositories.store(repository, (Area::Public, "manifest"), bytes, protection).await?,
                    manifest.size(),
                )
            }
        };
        Ok((digest, size, count))
    }
}

/// Reloads a repository that could not be read before.
///
/// # Errors
/// The repository is still suspended.
async fn lift_suspension(handle: &Handle) -> Result<(), PublishError> {
    if handle.repository.suspension().is_none() {
        return Ok(());
    }
    handle.edit(Vec::new(), |_| Ok(())).await
}

/// Whether a candidate is up to date; otherwise the service that has a version with its content.
fn up_to_date_or_source(
    candidate: &Candidate,
    own: Option<&KnownService>,
    sources: &HashMap<ContentKey, ServiceName>,
) -> (bool, Option<ServiceName>) {
    let Candidate { service, key, .. } = candidate;
    // A pinned service whose version was lost is published anyway.
    if service.is_withdrawn() || (service.is_pinned() && service.current().is_some()) {
        return (true, None);
    }
    let Some(own) = own else { return (false, sources.get(key).cloned()) };
    let (followed, has_plan) = (service.followed.to_string(), service.rollout.is_some());
    match own.while_staged(key, &followed, has_plan).filter(|_| own.holds()) {
        Some(WhileStaged::Waits) => return (true, None),
        Some(WhileStaged::Decides) => return (false, Some(service.name.clone())),
        None => {}
    }
    if own.is_at(key)
        && own.holds()
        && let Some(current) = &own.current
    {
        let shown = service.current().is_some_and(|shown| {
            // The descriptor of another repository is newer if the service was there in between.
            shown.publication().repository == service.repository && shown.version() >= current.descriptor.version()
        });
        let same = current.descriptor.followed_ref() == service.followed.to_string();
        let (has_oci, needs_oci) = (current.descriptor.oci().is_some(), service.oci.is_on());
        if needs_oci && !has_oci {
            // `oci` is new, or the owner before did not know it: a build reads the frames again.
            return (false, None);
        }
        // If the digest was found by another key, the row has the representations.
        let is_done = shown && same && has_oci == needs_oci;
        return if is_done { (true, None) } else { (false, Some(service.name.clone())) };
    }
    // Another repository has published since: the same content is published again, above that.
    let is_retained = own.is_at(key) || own.retained.iter().any(|retained| retained.key == *key);
    let source = is_retained.then(|| service.name.clone());
    (false, source.or_else(|| sources.get(key).cloned()))
}
