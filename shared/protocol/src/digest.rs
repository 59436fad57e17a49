//! Content addresses.
//!
//! Two types that cannot be confused: a [`TarballDigest`] is the BLAKE3 of a tarball's uncompressed bytes and
//! identifies its content; an [`ObjectDigest`] is the BLAKE3 of the bytes of one immutable object. Both are written
//! `b3-<64 hex>` in URLs, JSON, headers and file names.

use std::fmt;
use std::str::FromStr;

/// The text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a digest: expected {expected}")]
pub struct DigestError {
    text: String,
    expected: &'static str,
}

fn parse_hex32(hex: &str) -> Option<[u8; 32]> {
    // Upper case is refused: digests are compared as text and used as file names, so each has one spelling.
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let hash = blake3::Hash::from_hex(hex).ok()?;
    Some(*hash.as_bytes())
}

macro_rules! blake3_digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The digest of bytes in memory.
            pub fn of(bytes: &[u8]) -> Self {
                blake3::hash(bytes).into()
            }

            /// The 64 lower-case hex digits, without `b3-`.
            pub fn hex(&self) -> String {
                blake3::Hash::from_bytes(self.0).to_hex().to_string()
            }

            /// The raw 32 bytes.
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl From<blake3::Hash> for $name {
            fn from(hash: blake3::Hash) -> Self {
                Self(*hash.as_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "b3-{}", self.hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "b3-{}", self.hex())
            }
        }

        impl FromStr for $name {
            type Err = DigestError;

            fn from_str(text: &str) -> Result<Self, DigestError> {
                text.strip_prefix("b3-")
                    .and_then(parse_hex32)
                    .map(Self)
                    .ok_or_else(|| DigestError {
                        text: text.chars().take(80).collect(),
                        expected: "`b3-` and 64 lower-case hex digits",
                    })
            }
        }

        $crate::serde_as_text!($name);
    };
}

blake3_digest! {
    /// The BLAKE3 of a tarball's uncompressed bytes: the identity of the content, whatever its representation.
    TarballDigest
}
blake3_digest! {
    /// The BLAKE3 of the bytes of one immutable object (a frame, a manifest, a state page): its name.
    ObjectDigest
}

/// A SHA-256, where an RFC demands it (`Unencoded-Digest`, RFC 9842 dictionaries). 64 hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The SHA-256 of bytes in memory.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        Self(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes"))
    }

    /// Wraps the raw 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Computes the SHA-256 of bytes that arrive in parts.
#[derive(Clone)]
pub struct Sha256Hasher(ring::digest::Context);

impl Default for Sha256Hasher {
    fn default() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }
}

impl Sha256Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The SHA-256 of all bytes.
    pub fn finish(self) -> Sha256 {
        Sha256(self.0.finish().as_ref().try_into().expect("a SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sha256 {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        parse_hex32(text)
            .map(Self)
            .ok_or_else(|| DigestError { text: text.chars().take(80).collect(), expected: "64 lower-case hex digits" })
    }
}

crate::serde_as_text!(Sha256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_exactly_one_spelling() {
        let digest = TarballDigest::of(b"weir");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in [
            digest.hex(),
            digest.to_string().to_uppercase(),
            format!("b3-{}", digest.hex().to_uppercase()),
            format!("{digest}0"),
            "b3-".to_owned(),
            format!("b3-{}", "g".repeat(64)),
        ] {
            assert!(wrong.parse::<TarballDigest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sha256_round_trips_as_hex() {
        let sha = Sha256::from_bytes([0xab; 32]);
        assert_eq!(sha.to_string(), "ab".repeat(32));
        assert_eq!(sha.to_string().parse(), Ok(sha));
        assert!("AB".repeat(32).parse::<Sha256>().is_err());
    }
}
