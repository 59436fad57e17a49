//! Sizes as people write them: `64MiB`, `10GB`, `512B`. Every number but 0 needs a unit.
//! For `#[serde(with = "…::size")]`.

use std::fmt;

use bytesize::ByteSize;
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serialize, Serializer};

/// Writes `64.0 MiB`.
pub fn serialize<S: Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    size.serialize(serializer)
}

/// Reads `64MiB`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    deserializer.deserialize_any(Size)
}

struct Size;

impl Visitor<'_> for Size {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as `64MiB` or `10GB`")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ByteSize, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ByteSize, E> {
        let number = u64::try_from(number).map_err(|_| E::custom(format!("`{number}` must not be negative")))?;
        self.visit_u64(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
        // The library's message describes its grammar.
        let size: ByteSize =
            text.parse().map_err(|_| E::custom(format!("`{text}` is not a size such as `64MiB` or `10GB`")))?;
        if size.as_u64() > 0 && text.ends_with(|last: char| last.is_ascii_digit()) {
            return Err(E::custom(format!("`{text}` has no unit: write `{text}MiB`, `{text}GiB` or `{text}B`")));
        }
        Ok(size)
    }
}
