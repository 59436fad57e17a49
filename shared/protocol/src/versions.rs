//! The versions of a service that can be requested: the answer to `GET /v1/services/{service}/versions`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::descriptor::{Descriptor, MAX_DESCRIPTOR_BYTES};

/// The longest answer, in bytes: the current descriptor, a staged one, and the 8 MiB of retained ones that origins store.
pub const MAX_VERSIONS_BYTES: usize = 2 * MAX_DESCRIPTOR_BYTES + (10 << 20);

/// The current version, then the retained ones, the newest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Versions {
    /// Each digest once.
    pub versions: Vec<ListedVersion>,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListedVersion {
    /// The exact bytes.
    pub descriptor: Box<RawValue>,
    /// It is current, or the service went on from it by following its ref. Nobody and nothing stepped back from it.
    pub followed: bool,
}

impl Versions {
    /// Reads an answer: the descriptors, each with its `followed`. Those that this version does not understand are left out.
    ///
    /// # Errors
    /// It is no such answer.
    pub fn parse(json: &[u8]) -> Result<Vec<(Descriptor, bool)>, serde_json::Error> {
        let read: Self = serde_json::from_slice(json)?;
        let known = read.versions.into_iter().filter_map(|listed| {
            let bytes = Bytes::from(Box::<str>::from(listed.descriptor).into_string());
            Some((Descriptor::parse(bytes).ok()?, listed.followed))
        });
        Ok(known.collect())
    }

    /// The JSON document.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_listed_byte_for_byte_and_later_formats_are_left_out() {
        let golden = include_str!("../golden/agent/descriptor.json").trim_end();
        let later = golden.replace("\"format\":1", "\"format\":2");
        assert_ne!(later, golden);
        let listed = |json: &str, followed| ListedVersion {
            descriptor: RawValue::from_string(json.to_owned()).unwrap(),
            followed,
        };
        let versions = Versions { versions: vec![listed(golden, true), listed(&later, true), listed(golden, false)] };
        let read = Versions::parse(&versions.to_json()).unwrap();
        assert_eq!(read.iter().map(|(_, followed)| *followed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(read[0].0.bytes(), golden.as_bytes());
        assert!(Versions::parse(b"{}").is_err());
    }
}
