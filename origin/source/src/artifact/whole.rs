//! What of an artifact is published as its upstream has it: its archive, its manifest, and what belongs to them.

use std::fs::File;
use std::io;

use weir_protocol::digest::Sha256;
use weir_protocol::oci::UpstreamManifest;
use weir_upstream::UpstreamError;
use weir_upstream::http::Client;

use super::super::archive::{Original, Spool, WholeFile};
use super::super::helm::{ARCHIVE, CONFIG, ChartTag, MAX_METADATA_BYTES, PROVENANCE, chart_config};
use super::super::oci::{MAX_OTHER_BYTES, OciName, Registry, RegistryError, WholeManifest, attachments};
use super::{ArtifactSource, Chosen, Location};

/// An artifact of whose manifest something cannot be had so many times is published as files, or without what is attached to
/// the manifest.
const LASTING: u32 = 3;

/// What is published beside an archive.
pub(super) struct Beside {
    /// Of a registry.
    manifest: Option<UpstreamManifest>,
    archive_type: String,
    /// Digest, media type and bytes.
    others: Vec<(Sha256, String, Vec<u8>)>,
}

impl ArtifactSource {
    /// Fetches what is published beside an archive. `None`: it is published as files only.
    ///
    /// # Errors
    /// The registry cannot be used now. Inside: something of the manifest cannot be had.
    pub(super) fn beside(
        &self,
        client: &Client<'_>,
        chosen: &Chosen,
        archive: &Sha256,
    ) -> Result<Result<Option<Beside>, String>, UpstreamError> {
        let (url, name, reference) = match &chosen.blob.at {
            Location::Url(_) => {
                let state = self.state();
                let provenance = state.signatures.provenance(chosen).into_iter();
                let others = provenance.map(|it| (Sha256::of(it), PROVENANCE.to_owned(), it.clone())).collect();
                return Ok(Ok(Some(Beside { manifest: None, archive_type: ARCHIVE.to_owned(), others })));
            }
            Location::Tag(ChartTag { registry, name, tag, .. }) => (registry, name, tag.clone()),
            Location::Blob { registry, name, .. } | Location::Chart { registry, name, .. } => {
                let Some(named) = chosen.manifest() else { return Ok(Ok(None)) };
                (registry, name, format!("sha256:{named}"))
            }
        };
        let registry = self.registry(client, url)?;
        // It may be there in a moment.
        let is_lasting = self.state().incomplete(chosen) + 1 >= LASTING;
        let mut beside = match fetch(&registry, (name, &reference), archive, chosen.chart.is_some()) {
            Ok(beside) => beside,
            Err(RegistryError::Upstream(error)) => return Err(error),
            Err(error) => {
                let reason = error.of_one(&format!("something of the manifest of {}", chosen.label))?;
                if !is_lasting {
                    return Ok(Err(reason));
                }
                tracing::warn!(reason, "the artifact is published as files only");
                return Ok(Ok(None));
            }
        };
        if let Some(Beside { manifest: Some(manifest), .. }) = &mut beside
            && let Some(reason) = self.attach(&registry, name, chosen, manifest)?
        {
            if !is_lasting {
                return Ok(Err(reason));
            }
            tracing::warn!(reason, "the artifact is published without some of what is attached to its manifest");
        }
        Ok(Ok(beside))
    }

    /// Attaches to a manifest what the keys signed. Returns why something may be missing: whoever may push can cause that, and a
    /// registry that demands a pause has sent all that is needed.
    fn attach(
        &self,
        registry: &Registry<'_>,
        name: &OciName,
        chosen: &Chosen,
        manifest: &mut UpstreamManifest,
    ) -> Result<Option<String>, UpstreamError> {
        let keys = self.state().signatures.cosign_keys(chosen);
        // What is signed may be the index that names the manifest.
        let signed = chosen.signed.filter(|signed| chosen.manifest() == Some(*signed) && !keys.is_empty());
        let Some(signed) = signed else { return Ok(None) };
        let found = attachments(registry, name, &signed, &keys);
        manifest.attachments = found.read;
        let what = || format!("what is attached to the manifest of {}", chosen.label);
        match found.failed {
            None => Ok(None),
            Some(RegistryError::Upstream(error @ UpstreamError::Interrupted)) => Err(error),
            Some(error) => {
                let reason = error.of_one(&what());
                Ok(Some(reason.unwrap_or_else(|error| format!("{} cannot be fetched: {error}", what()))))
            }
        }
    }
}

fn fetch(
    registry: &Registry<'_>,
    (name, reference): (&OciName, &str),
    archive: &Sha256,
    is_chart: bool,
) -> Result<Option<Beside>, RegistryError> {
    let (bytes, digest) = registry.manifest_bytes(name, reference)?;
    // A registry that sends another one is not believed.
    if reference.strip_prefix("sha256:").is_some_and(|named| named != digest.to_string()) {
        return Ok(None);
    }
    let Some(whole) = WholeManifest::of(bytes, archive, is_chart) else { return Ok(None) };
    let WholeManifest { media_type, manifest, archive_type, others } = whole;
    let fetched = others.into_iter().map(|(sha256, media_type)| {
        let bytes = registry.small_blob(name, &sha256, MAX_OTHER_BYTES)?;
        Ok((sha256, media_type, bytes))
    });
    let others = fetched.collect::<Result<_, RegistryError>>()?;
    let manifest = UpstreamManifest { media_type, text: manifest, attachments: Vec::new() };
    Ok(Some(Beside { manifest: Some(manifest), archive_type, others }))
}

/// Stores an archive, which is in `file`, with what is beside it. `named`: the digest of its manifest, if the listing names it.
pub(super) fn store(
    spool: &Spool,
    file: File,
    archive: Sha256,
    beside: Option<Beside>,
    named: Option<Sha256>,
) -> io::Result<Original> {
    let Some(Beside { manifest, archive_type, mut others }) = beside else { return Ok(Original::Unfit(named)) };
    if manifest.is_none() {
        let yaml = spool.file(b"Chart.yaml", MAX_METADATA_BYTES)?;
        let Some(config) = yaml.and_then(|yaml| chart_config(&yaml).ok()) else {
            return Ok(Original::Unfit(named));
        };
        others.insert(0, (Sha256::of(&config), CONFIG.to_owned(), config));
    }
    let mut whole = WholeFile::new(file, manifest, archive, archive_type)?;
    for (sha256, media_type, bytes) in others {
        if bytes.is_empty() {
            return Ok(Original::Unfit(named));
        }
        whole.add(sha256, media_type, &bytes)?;
    }
    Ok(Original::Stored(named, whole))
}
