//! JSON objects without duplicate names (RFC 8725 section 2.4: parsers disagree on them).

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The names of an object.
pub(super) struct Names(BTreeSet<String>);

impl Names {
    pub(super) fn contain(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    if names.contains(&name) {
                        return Err(serde::de::Error::custom("a name stands in it twice"));
                    }
                    names.insert(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Parses an object and all its names, also those unknown to `T`.
pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Names), serde_json::Error> {
    let names = serde_json::from_slice(json)?;
    Ok((serde_json::from_slice(json)?, names))
}
