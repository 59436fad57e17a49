//! Which manifest of an index a repository follows, as it is configured.

use std::fmt;
use std::str::FromStr;

/// `<os>/<architecture>[/<variant>]`: which image of an index is followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlatformName {
    os: Box<str>,
    architecture: Box<str>,
    variant: Option<Box<str>>,
}

/// The text is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a platform: write it like `linux/amd64` or `linux/arm/v7`")]
pub struct PlatformNameError(String);

impl FromStr for PlatformName {
    type Err = PlatformNameError;

    fn from_str(text: &str) -> Result<Self, PlatformNameError> {
        let plain =
            |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let parts: Vec<&str> = text.split('/').filter(plain).collect();
        let parsed = match parts[..] {
            [os, architecture] => Some((os, architecture, None)),
            [os, architecture, variant] => Some((os, architecture, Some(variant.into()))),
            _ => None,
        };
        match parsed.filter(|_| text.len() <= 100 && text.matches('/').count() + 1 == parts.len()) {
            Some((os, architecture, variant)) => Ok(Self { os: os.into(), architecture: architecture.into(), variant }),
            None => Err(PlatformNameError(text.chars().take(100).collect())),
        }
    }
}

impl fmt::Display for PlatformName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

weir_protocol::serde_as_text!(PlatformName);

impl PlatformName {
    /// Whether it names a variant.
    pub fn has_variant(&self) -> bool {
        self.variant.is_some()
    }

    /// Whether an image is for it. Without a variant, any is.
    pub fn contains(&self, os: &str, architecture: &str, variant: &str) -> bool {
        *self.os == *os
            && *self.architecture == *architecture
            && self.variant.as_deref().is_none_or(|own| own == variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_has_two_or_three_parts() {
        for text in ["linux/amd64", "linux/arm/v7", "windows/amd64"] {
            assert_eq!(text.parse::<PlatformName>().unwrap().to_string(), text);
        }
        for text in ["", "linux", "linux/", "linux//amd64", "a/b/c/d", "a/b c", &format!("a/{}", "b".repeat(100))] {
            assert!(text.parse::<PlatformName>().is_err(), "{text}");
        }
    }
}
