//! The names of release directories: `<digest>`, and `<digest>.<n>` for a replacement of a modified one.

use std::fmt;
use std::str::FromStr;

use weir_protocol::digest::TarballDigest;

/// The name of a release directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseName {
    digest: TarballDigest,
    /// 0 for the first release of a digest, whose name has no number.
    number: u32,
}

impl ReleaseName {
    /// The `number`th release of a digest, from 0.
    pub fn new(digest: TarballDigest, number: u32) -> Self {
        Self { digest, number }
    }

    /// The digest of the tarball.
    pub fn digest(&self) -> TarballDigest {
        self.digest
    }
}

impl fmt::Display for ReleaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "{}", self.digest),
            number => write!(f, "{}.{number}", self.digest),
        }
    }
}

/// The text is not the name of a release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a release: expected `b3-<64 hex>` or `b3-<64 hex>.<n>`")]
pub struct ReleaseNameError;

impl FromStr for ReleaseName {
    type Err = ReleaseNameError;

    fn from_str(text: &str) -> Result<Self, ReleaseNameError> {
        let (digest, number) = match text.split_once('.') {
            None => (text, 0),
            Some((digest, number)) => (digest, number.parse().map_err(|_| ReleaseNameError)?),
        };
        let name = Self { digest: digest.parse().map_err(|_| ReleaseNameError)?, number };
        // One spelling each: no `.0`, no `.01`.
        if name.to_string() == text { Ok(name) } else { Err(ReleaseNameError) }
    }
}

weir_protocol::serde_as_text!(ReleaseName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let digest = TarballDigest::of(b"a");
        for number in [0, 1, 20] {
            let name = ReleaseName::new(digest, number);
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!(ReleaseName::new(digest, 0).to_string(), digest.to_string());
        for wrong in
            ["", "x", &format!("{digest}.0"), &format!("{digest}.01"), &format!("{digest}."), &format!(".{digest}")]
        {
            assert!(wrong.parse::<ReleaseName>().is_err(), "{wrong}");
        }
    }
}
