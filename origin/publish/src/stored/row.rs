//! A row of a state page: everything that is stored for one service.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use weir_protocol::descriptor::{Descriptor, DescriptorError, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::staged::Audience;
use weir_rollout::State;
use weir_tarball::ContentKey;

use super::history_line::Why;
use crate::error::PublishError;
use crate::request::Author;

/// Everything that is stored for one service. Without a current version it is a tombstone, or the service was never
/// published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The first field, so that it can be parsed alone.
    pub(crate) service: ServiceName,
    /// The highest generation so far; 0 before the first.
    pub(crate) generation: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<StoredVersion>,
    /// Set while an operator has pinned the current version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pin: Option<Pin>,
    /// Superseded versions, the latest first. Their digests differ from each other and from the current one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) retained: Vec<Retained>,
    /// A later version that some agents get first. An origin of 0.1 drops it with the next write of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) staged: Option<Staging>,
    /// What was staged and aborted, until something else is staged or published: its content is not published by itself. An
    /// origin of 0.1 drops it with the next write of the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) aborted: Option<Aborted>,
    /// The operators' document of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<Definition>,
    /// The service moves to another repository: until it comes back, nothing of it is published here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_moving: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoredVersion {
    pub(crate) digest: TarballDigest,
    #[serde(with = "content_key")]
    pub(crate) key: ContentKey,
    /// The recipe that it was built by. `None`: the next build reuses no frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recipe: Option<ObjectDigest>,
    pub(crate) why: Why,
    /// The operator who rolled back to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// The exact bytes.
    descriptor: Box<RawValue>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Retained {
    /// Unix milliseconds.
    pub(crate) superseded_at: u64,
    /// The service went on from it by following its ref: it keeps its tags.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) followed: bool,
    /// It was staged, and never in force.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) only_staged: bool,
    pub(crate) version: StoredVersion,
}

/// Which version is staged, for whom, and who did it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Staging {
    /// It is among the retained versions, so that everything that reads them knows it.
    pub(crate) digest: TarballDigest,
    /// Its generation: the row's, until another repository publishes.
    pub(crate) generation: Generation,
    /// The generation of the current version, which everybody else gets.
    pub(crate) in_force: Generation,
    /// Unix milliseconds.
    pub(crate) since: u64,
    /// `None`: nobody gets it. The first stage of its rollout has not begun; or a later version of the program wrote one that
    /// this one does not understand, and an owner ends it when it begins to write the repository.
    #[serde(flatten)]
    pub(crate) audience: Option<Audience>,
    /// Where the rollout stands whose plan stages it. `None`: an operator staged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rollout: Option<State>,
    /// The ref that led to it, if a plan stages it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) followed_ref: Option<String>,
    /// The ref of the service has led to its content since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) was_tip: bool,
    #[serde(flatten)]
    pub(crate) author: Author,
}

/// A staged version that was aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Aborted {
    pub(crate) digest: TarballDigest,
    #[serde(with = "content_key")]
    pub(crate) key: ContentKey,
    pub(crate) generation: Generation,
    pub(crate) revision_id: RevisionId,
    /// Unix milliseconds.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) author: Author,
    /// Where the rollout stood whose plan staged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rollout: Option<State>,
    /// The ref that led to it, if a plan staged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) followed_ref: Option<String>,
    /// Its content may be staged again: the ref has led to another one since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_lifted: bool,
}

impl Aborted {
    /// Whether its content waits.
    pub(crate) fn refuses(&self) -> bool {
        !self.is_lifted
    }

    /// Whether it came from the ref: then another tip lifts the abort. What an operator staged may still come there.
    pub(crate) fn is_lifted_by_another_tip(&self) -> bool {
        !self.is_lifted && self.rollout.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// Unix milliseconds.
    pub(crate) since: u64,
    #[serde(flatten)]
    pub(crate) author: Author,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Definition {
    /// Unix milliseconds. After a move of the service, the newer document of two repositories counts.
    pub(crate) written_at: u64,
    pub(crate) document: Value,
}

impl Staging {
    /// Whether agents may have it.
    pub(crate) fn has_begun(&self) -> bool {
        self.rollout.as_ref().is_none_or(|rollout| rollout.stage.is_some())
    }
}

impl Pin {
    /// As the service has it.
    pub(crate) fn shown(&self) -> weir_source::Pin {
        let Author { by, reason } = self.author.clone();
        weir_source::Pin { since: from_unix(self.since), by, reason }
    }
}

impl Row {
    /// An empty row.
    pub(crate) fn new(service: ServiceName) -> Self {
        Self {
            service,
            generation: 0,
            current: None,
            pin: None,
            retained: Vec::new(),
            staged: None,
            aborted: None,
            definition: None,
            is_moving: false,
        }
    }

    /// Whether the row stores nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.generation == 0 && self.definition.is_none() && !self.is_moving
    }

    /// Whether the row stores only the last generation of a deleted service.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.current.is_none() && self.retained.is_empty() && self.definition.is_none()
    }

    pub(crate) fn last_generation(&self) -> Option<Generation> {
        (self.generation > 0).then_some(self.generation)
    }

    /// The last generation that everybody gets: below that of a staged version.
    pub(crate) fn generation_for_all(&self) -> Generation {
        let staged = self.staged.as_ref().filter(|staged| staged.generation >= self.generation);
        staged.map_or(self.generation, |staged| staged.in_force)
    }

    /// Whether something is staged for agents that this version of the program does not understand.
    pub(crate) fn has_unknown_audience(&self) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.audience.is_none() && staged.has_begun())
    }

    pub(crate) fn is_staged(&self, digest: &TarballDigest) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.digest == *digest)
    }

    /// The current version, then the retained ones.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &StoredVersion> {
        self.current.iter().chain(self.retained.iter().map(|retained| &retained.version))
    }

    pub(crate) fn version(&self, digest: &TarballDigest) -> Option<&StoredVersion> {
        self.versions().find(|version| version.digest == *digest)
    }
}

impl StoredVersion {
    pub(crate) fn new(
        descriptor: &Descriptor,
        key: ContentKey,
        recipe: Option<ObjectDigest>,
        why: Why,
        by: Option<String>,
    ) -> Self {
        let json = String::from_utf8(descriptor.bytes().to_vec()).expect("JSON is text");
        let raw = RawValue::from_string(json).expect("a descriptor is JSON");
        Self { digest: descriptor.publication().digest, key, recipe, why, by, descriptor: raw }
    }

    /// The same version with another descriptor.
    pub(crate) fn with(&self, descriptor: &Descriptor) -> Self {
        Self::new(descriptor, self.key, self.recipe, self.why, self.by.clone())
    }

    /// The bytes of the descriptor.
    pub(crate) fn into_raw(self) -> Box<RawValue> {
        self.descriptor
    }

    /// The bytes of the descriptor.
    pub(crate) fn raw(&self) -> &RawValue {
        &self.descriptor
    }

    /// Bytes of the descriptor.
    pub(crate) fn size(&self) -> usize {
        self.descriptor.get().len()
    }

    /// Parses the descriptor.
    ///
    /// # Errors
    /// This version of the program does not understand the descriptor.
    pub(crate) fn descriptor(&self) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(Bytes::copy_from_slice(self.descriptor.get().as_bytes()))
    }
}

/// The descriptor of a version, which was read from the store.
pub(crate) fn parsed(version: &StoredVersion) -> Result<Descriptor, PublishError> {
    version.descriptor().map_err(|error| PublishError::Object(error.to_string()))
}

/// Milliseconds since 1970; 0 for earlier times.
pub fn unix_milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The inverse of [`unix_milliseconds`].
pub(crate) fn from_unix(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}

/// A key as 64 hexadecimal digits.
mod content_key {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use weir_tarball::ContentKey;

    pub(crate) fn serialize<S: Serializer>(key: &ContentKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&blake3::Hash::from_bytes(*key.as_bytes()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ContentKey, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(text.as_bytes()).map_err(Error::custom)?;
        Ok(ContentKey::from_bytes(*hash.as_bytes()))
    }
}
