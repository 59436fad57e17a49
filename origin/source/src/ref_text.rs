//! The `ref` of a service, before the kind of its repository says what it means.

use std::fmt;
use std::str::FromStr;

use weir_upstream::SourceKind;

use super::helm::ChartName;

/// The longest `ref`, in bytes.
pub(super) const MAX_REF_BYTES: usize = 256;

/// The `ref` of a service as it is written. The kind of its repository says what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefText(pub(super) Box<str>);

/// The text cannot be a `ref` of any kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a `ref` has 1 to {MAX_REF_BYTES} bytes, without control characters, and without white space at its ends")]
pub struct RefTextError;

impl RefText {
    /// The kind of a repository that is not defined, for a service with this `ref` and this chart.
    pub fn assumed_kind(&self, chart: Option<&ChartName>) -> SourceKind {
        match chart {
            Some(_) => SourceKind::Helm,
            None if self.0.starts_with("sha256:") => SourceKind::Oci,
            None => SourceKind::Git,
        }
    }
}

/// `HEAD`: what the source itself names first. Of Git the default branch, of a chart the highest release, of an artifact
/// `latest`.
impl Default for RefText {
    fn default() -> Self {
        Self("HEAD".into())
    }
}

impl FromStr for RefText {
    type Err = RefTextError;

    fn from_str(text: &str) -> Result<Self, RefTextError> {
        let fits = (1..=MAX_REF_BYTES).contains(&text.len()) && text.trim() == text;
        if fits && !text.contains(char::is_control) { Ok(Self(text.into())) } else { Err(RefTextError) }
    }
}

impl fmt::Display for RefText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

weir_protocol::serde_as_text!(RefText);
