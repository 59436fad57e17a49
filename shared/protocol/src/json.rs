//! Reading JSON from outside. An object in which a key stands twice is refused: two readers might each believe another value
//! (RFC 8259 section 4).

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a document in which no object has a key twice, at any depth: also below keys that `T` does not know.
///
/// # Errors
/// It is not JSON, not a `T`, or a key stands twice; the message names the key.
pub fn from_slice<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, serde_json::Error> {
    let UniqueKeys = serde_json::from_slice(json)?;
    serde_json::from_slice(json)
}

struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                let key: String = key.chars().take(100).collect();
                return Err(A::Error::custom(format_args!("the key `{key}` stands twice in one object")));
            }
            keys.insert(key);
            map.next_value::<Self>()?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_duplicate_key_is_refused_at_any_depth() {
        for right in [r#"{"a":1,"b":{"a":2.5}}"#, r#"[{"a":-1},{"a":null},{"a":"a"},true]"#] {
            assert_eq!(from_slice::<Value>(right.as_bytes()).unwrap(), right.parse::<Value>().unwrap());
        }
        for wrong in [r#"{"a":1,"b":2,"a":1}"#, r#"[{"b":[{"a":1,"a":2}]}]"#, r#"{"a":1,"\u0061":2}"#] {
            let error = from_slice::<Value>(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("the key `a` stands twice"), "{wrong}: {error}");
        }
        assert!(from_slice::<Value>(b"{\"a\":").is_err() && from_slice::<Value>(b"1 2").is_err());
    }
}
