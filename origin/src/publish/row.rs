//! A row of a state page: all that is stored of one service.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use weir_protocol::descriptor::{Descriptor, DescriptorError, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;

use super::history::Why;
use crate::tarball::ContentKey;

/// All that is stored of one service. Without a current version it is a tombstone, or a service that was never published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    /// First, so that it can be read alone.
    pub(super) service: ServiceName,
    /// The highest generation that it ever had; 0 before the first.
    pub(super) generation: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) current: Option<StoredVersion>,
    /// An operator holds the current version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pin: Option<Pin>,
    /// Superseded versions, the last one first; no two have the same digest, and none that of the current one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) retained: Vec<Retained>,
    /// What operators defined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) definition: Option<Definition>,
}

/// A version of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredVersion {
    pub(super) digest: TarballDigest,
    /// The key of its content.
    #[serde(with = "content_key")]
    pub(super) key: ContentKey,
    /// The private object that says how it was made. `None`: the next build begins from nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) recipe: Option<ObjectDigest>,
    /// Why it was published.
    pub(super) why: Why,
    /// The operator who rolled back to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<String>,
    /// Its exact bytes.
    descriptor: Box<RawValue>,
}

/// A superseded version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Retained {
    /// Unix milliseconds.
    pub(super) superseded_at: u64,
    pub(super) version: StoredVersion,
}

/// A service is held at its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pin {
    /// Unix milliseconds.
    pub(super) since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<String>,
}

/// A document of the operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Definition {
    /// Unix milliseconds. When a service is moved, the newer one of two repositories counts.
    pub(super) written_at: u64,
    pub(super) document: Value,
}

impl Row {
    /// Nothing is known of the service.
    pub(super) fn new(service: ServiceName) -> Self {
        Self { service, generation: 0, current: None, pin: None, retained: Vec::new(), definition: None }
    }

    /// Whether nothing would be lost without it.
    pub(super) fn is_empty(&self) -> bool {
        self.generation == 0 && self.definition.is_none()
    }

    /// Whether it says nothing but the highest generation of a service that is gone.
    pub(super) fn is_tombstone(&self) -> bool {
        self.current.is_none() && self.retained.is_empty() && self.definition.is_none()
    }

    /// The last generation, when there was one.
    pub(super) fn last_generation(&self) -> Option<Generation> {
        (self.generation > 0).then_some(self.generation)
    }

    /// The current version and the retained ones.
    pub(super) fn versions(&self) -> impl Iterator<Item = &StoredVersion> {
        self.current.iter().chain(self.retained.iter().map(|retained| &retained.version))
    }

    /// The version of a digest.
    pub(super) fn version(&self, digest: &TarballDigest) -> Option<&StoredVersion> {
        self.versions().find(|version| version.digest == *digest)
    }
}

impl StoredVersion {
    pub(super) fn new(
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
    pub(super) fn with(&self, descriptor: &Descriptor) -> Self {
        Self::new(descriptor, self.key, self.recipe, self.why, self.by.clone())
    }

    /// The bytes of its descriptor.
    pub(super) fn size(&self) -> usize {
        self.descriptor.get().len()
    }

    /// Reads the descriptor.
    ///
    /// # Errors
    /// Its bytes are those of a descriptor that this version of the program does not understand.
    pub(super) fn descriptor(&self) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(Bytes::copy_from_slice(self.descriptor.get().as_bytes()))
    }
}

/// Unix milliseconds.
pub(super) fn unix_milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A time of Unix milliseconds.
pub(super) fn from_unix(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}

/// 64 hexadecimal digits.
mod content_key {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::tarball::ContentKey;

    pub(super) fn serialize<S: Serializer>(key: &ContentKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&blake3::Hash::from_bytes(*key.as_bytes()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ContentKey, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(text.as_bytes()).map_err(Error::custom)?;
        Ok(ContentKey::from_bytes(*hash.as_bytes()))
    }
}
