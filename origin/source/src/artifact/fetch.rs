//! Downloads an archive, compares its digest and unpacks it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::sync::Arc;

use reqwest::{Response, Url};
use weir_protocol::digest::Sha256;
use weir_upstream::http::{Body, BodyError, Client, same_host};
use weir_upstream::{FetchProgress, UpstreamError, free_disk, without_path};

use super::super::archive::{ArchiveError, Bounds, Spool};
use super::super::helm::{ChartLayers, ChartTag};
use super::super::oci::{OciName, Registry, RegistryError};
use super::super::{RetryPolicy, ServiceFailure};
use super::not_fetched::NotFetched;
use super::signatures::not_as_signed;
use super::whole::{self, Beside};
use super::{ArtifactSource, Chosen, Location};
use crate::encoding;
use crate::page::{PAGE, is_page};

/// The SHA-256 of an archive that is unpacked now, or why it is not.
pub(super) type Fetched = Result<Sha256, NotFetched>;

/// What a server says of an archive that it sends.
#[derive(Default)]
struct Sent {
    is_page: bool,
    encoding: String,
}

impl ArtifactSource {
    /// Fetches one archive. `keeps`: its bytes are published too. The outer error ends the poll: nothing else can be fetched
    /// either.
    pub(super) fn fetch(
        &self,
        client: &Client<'_>,
        chosen: &Chosen,
        signed: Option<Sha256>,
        keeps: bool,
        progress: &FetchProgress,
    ) -> Result<Fetched, UpstreamError> {
        let failed = |retry, reason: &dyn std::fmt::Display| {
            let failure = ServiceFailure::transient("fetch", format!("{} {reason}", chosen.label));
            let failure = ServiceFailure { retry, ..failure };
            Ok(Err(NotFetched { failure, retry_after: None, is_incomplete: false }))
        };
        let needed = self.shared.min_free.saturating_add(chosen.blob.bound());
        if let Err(reason) = free_disk::require_room(&self.shared.data_dir, needed) {
            return failed(RetryPolicy::BackOff, &format_args!("cannot be fetched: {reason}"));
        }
        let bounds = self.bounds(client, chosen);
        let mut sent = Sent::default();
        let downloaded = self.spools.temporary().map_err(|error| BodyError::Write(without_path(&error)));
        let downloaded =
            downloaded.and_then(|mut file| Ok((self.download(client, chosen, &mut file, progress, &mut sent)?, file)));
        let page = || format!("is not an archive: {PAGE}: check its URL, and whether the server wants a sign-in");
        let Sent { is_page, encoding } = sent;
        let (sha256, file) = match downloaded {
            Ok(downloaded) => downloaded,
            Err(BodyError::TooLarge) => {
                let (key, limit) = (bounds.max_archive_key, bounds.max_archive);
                let reason = match chosen.blob.size {
                    _ if is_page => page(),
                    Some(size) => {
                        format!("has a layer of more than the {size} bytes that its manifest says: publish it again")
                    }
                    None => ArchiveError::TooLarge { key, limit }.to_string(),
                };
                return failed(RetryPolicy::BackOff, &reason);
            }
            Err(BodyError::Write(error)) => return failed(RetryPolicy::BackOff, &ArchiveError::Disk(error)),
            Err(BodyError::Upstream(error)) if is_of_all(&error, client, chosen) => return Err(error),
            Err(BodyError::Upstream(UpstreamError::NotFound { cause, .. })) => {
                let listed = if chosen.blob.is_in_registry() {
                    "has a manifest, but its layer is not there"
                } else {
                    "is in the index, but not at its URL"
                };
                return failed(RetryPolicy::BackOff, &format_args!("{listed}: {cause}"));
            }
            Err(BodyError::Upstream(error)) => return Ok(Err(NotFetched::by(chosen, "fetch", &error))),
        };
        if let Some(listed) = chosen.blob.sha256.filter(|listed| *listed != sha256) {
            let reason = if is_page { page() } else { not_as_listed(chosen, &sha256, &listed) + &encoding };
            return failed(RetryPolicy::BackOff, &reason);
        }
        if let Some(signed) = signed.filter(|signed| *signed != sha256) {
            self.state().signatures.forget(chosen);
            return failed(RetryPolicy::BackOff, &not_as_signed(&sha256, &signed));
        }
        let beside = match keeps.then(|| self.beside(client, chosen, &sha256)).transpose() {
            Ok(None) => None,
            Ok(Some(Ok(beside))) => beside,
            Ok(Some(Err(reason))) => return Ok(Err(NotFetched::incomplete(chosen, &reason))),
            Err(error) if is_of_all(&error, client, chosen) => return Err(error),
            Err(error) => return Ok(Err(NotFetched::by(chosen, "fetch", &error))),
        };
        let unpacked = match keeps {
            true => self.unpack_with(chosen, sha256, file, beside, &bounds, client),
            false => self.spools.add((sha256, chosen.layout.clone()), file, &bounds, client.session().interrupt()),
        };
        match unpacked.map(drop) {
            Ok(()) => Ok(Ok(sha256)),
            Err(ArchiveError::Interrupted) => Err(UpstreamError::Interrupted),
            Err(error) if is_page && error.is_in_archive() => failed(RetryPolicy::BackOff, &page()),
            // With a digest, the same bytes come again.
            Err(error) if error.is_in_archive() && chosen.blob.sha256.is_some() => {
                failed(RetryPolicy::Never, &format_args!("{error}{encoding}"))
            }
            Err(error) => failed(RetryPolicy::BackOff, &format_args!("{error}{encoding}")),
        }
    }

    fn bounds(&self, client: &Client<'_>, chosen: &Chosen) -> Bounds {
        let limits = &client.session().upstream.limits;
        Bounds {
            max_archive: chosen.blob.max_bytes,
            max_archive_key: chosen.blob.max_bytes_key,
            max_unpacked: limits.max_unpacked.as_u64(),
            max_file: self.shared.limits.max_file_bytes,
            max_spools: limits.max_mirror.as_u64(),
        }
    }

    /// Unpacks a downloaded archive, and stores its bytes with what is published beside it.
    fn unpack_with(
        &self,
        chosen: &Chosen,
        sha256: Sha256,
        file: File,
        beside: Option<Beside>,
        bounds: &Bounds,
        client: &Client<'_>,
    ) -> Result<Arc<Spool>, ArchiveError> {
        let archive = file.try_clone().map_err(|error| ArchiveError::Disk(without_path(&error)))?;
        let original = |spool: &Spool| whole::store(spool, file, sha256, beside, chosen.manifest());
        let key = (sha256, chosen.layout.clone());
        self.spools.add_with(key, archive, bounds, client.session().interrupt(), original)
    }

    /// Downloads the archive. `sent`: what the server says that it is.
    fn download(
        &self,
        client: &Client<'_>,
        chosen: &Chosen,
        file: &mut File,
        progress: &FetchProgress,
        sent: &mut Sent,
    ) -> Result<Sha256, BodyError> {
        let (response, expected) = self.request(client, &chosen.blob.at).map_err(BodyError::Upstream)?;
        *sent = Sent { is_page: is_page(&response), encoding: encoding::unrequested(&response) };
        let sha256 = Body::new(client, response, chosen.blob.bound()).write_to(&mut Shown { file, progress })?;
        if let Some(expected) = expected.filter(|expected| *expected != sha256) {
            let cause = format!("its archive has the digest `{sha256}`, but its manifest says `{expected}`");
            return Err(BodyError::Upstream(UpstreamError::Protocol { step: "fetch", cause }));
        }
        file.rewind().map_err(BodyError::Write)?;
        Ok(sha256)
    }

    /// Requests an archive. Returns its digest, too, if the listing does not have it.
    fn request(&self, client: &Client<'_>, location: &Location) -> Result<(Response, Option<Sha256>), UpstreamError> {
        match location {
            Location::Url(url) => {
                let response = client.download(url, url.as_str(), &HashMap::new())?;
                Ok((client.expect_success(response)?, None))
            }
            Location::Tag(tag) => {
                let registry = self.registry(client, &tag.registry)?;
                let found = tag.layers(&registry).and_then(|ChartLayers { archive, .. }| {
                    let response = registry.blob(&tag.name, &archive)?;
                    Ok((response, Some(archive)))
                });
                found.map_err(|error| of_one("fetch", error, &tag.name))
            }
            Location::Blob { registry, name, sha256 }
            | Location::Chart { registry, name, layers: ChartLayers { archive: sha256, .. } } => {
                let response = self.registry(client, registry)?.blob(name, sha256);
                Ok((response.map_err(|error| of_one("fetch", error, name))?, None))
            }
        }
    }

    /// A registry, if its host may be contacted.
    pub(super) fn registry<'a>(&'a self, client: &'a Client<'_>, url: &Url) -> Result<Registry<'a>, UpstreamError> {
        let url = client.other_host(&client.upstream_url, url.as_str())?;
        Ok(Registry::new(client, &self.tokens, url))
    }
}

fn not_as_listed(chosen: &Chosen, sha256: &Sha256, listed: &Sha256) -> String {
    if chosen.blob.is_in_registry() {
        format!("has a layer with the SHA-256 digest `{sha256}`, but its manifest says `{listed}`: publish it again")
    } else {
        format!(
            "has the SHA-256 digest `{sha256}`, but the index says `{listed}`: publish it again, or repair the index"
        )
    }
}

/// Why something of a repository in a registry cannot be had.
pub(super) fn of_one(step: &'static str, error: RegistryError, name: &OciName) -> UpstreamError {
    match error {
        RegistryError::NotFound(report) => UpstreamError::NotFound { step, cause: format!("it answered 404{report}") },
        RegistryError::Unusable(reason) => UpstreamError::Protocol { step, cause: format!("`{name}` {reason}") },
        other => other.of_all(name),
    }
}

/// Whether an error ends the poll: it was interrupted, or the server of the index, the registry or its token service demands
/// a pause. Another host that does, such as a storage to which they redirect, stops only what was requested of it.
pub(super) fn is_of_all(error: &UpstreamError, client: &Client<'_>, chosen: &Chosen) -> bool {
    let (Location::Url(server)
    | Location::Blob { registry: server, .. }
    | Location::Chart { registry: server, .. }
    | Location::Tag(ChartTag { registry: server, .. })) = &chosen.blob.at;
    let is_pause = error.retry_after().is_some() && !error.is_of_other_host();
    matches!(error, UpstreamError::Interrupted) || is_pause && same_host(&client.upstream_url, server)
}

/// Shows the received bytes.
pub(super) struct Shown<'a, W> {
    pub(super) file: &'a mut W,
    pub(super) progress: &'a FetchProgress,
}

impl<W: Write> Write for Shown<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.progress.received(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
