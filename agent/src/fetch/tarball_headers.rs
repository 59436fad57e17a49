//! The headers of a response for a tarball.

use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, header};
use weir_protocol::commit_id::CommitId;
use weir_protocol::digest::TarballDigest;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_release::ReleaseRecord;

use super::decode::Coding;

/// A header is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the response of the edge has no valid `{0}`")]
pub(crate) struct InvalidHeader(pub(crate) &'static str);

/// What the headers say about the current tarball.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TarballHeaders {
    /// `None` on a `304`: that of the request.
    pub(crate) digest: Option<TarballDigest>,
    pub(crate) generation: u64,
    pub(crate) commit: Option<CommitId>,
    pub(crate) revision_id: Option<RevisionId>,
    pub(crate) version: Option<SourceVersion>,
}

impl TarballHeaders {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, InvalidHeader> {
        Ok(Self {
            digest: read(headers, "weir-digest")?,
            generation: read(headers, "weir-generation")?.ok_or(InvalidHeader("weir-generation"))?,
            commit: read(headers, "weir-commit")?,
            revision_id: read(headers, "weir-revision")?,
            version: read(headers, "weir-version")?,
        })
    }

    /// The digest, which a `200` must have.
    pub(crate) fn require_digest(&self) -> Result<TarballDigest, InvalidHeader> {
        self.digest.ok_or(InvalidHeader("weir-digest"))
    }
}

impl From<ReleaseRecord> for TarballHeaders {
    /// What they say of a release that is on disk.
    fn from(release: ReleaseRecord) -> Self {
        let ReleaseRecord { directory, generation, commit, revision_id, version, .. } = release;
        Self { digest: Some(directory.digest()), generation, commit, revision_id, version }
    }
}

/// The coding of a response that is no delta.
pub(crate) fn coding(headers: &HeaderMap) -> Result<Coding, InvalidHeader> {
    match headers.get(header::CONTENT_ENCODING).map(http::HeaderValue::as_bytes) {
        None => Ok(Coding::Identity),
        Some(value) if value.eq_ignore_ascii_case(b"identity") => Ok(Coding::Identity),
        Some(value) if value.eq_ignore_ascii_case(b"zstd") => Ok(Coding::Zstd),
        Some(_) => Err(InvalidHeader("content-encoding")),
    }
}

/// `Content-Length`; 0 if it is unknown.
pub(crate) fn content_length(headers: &HeaderMap) -> u64 {
    read(headers, "content-length").ok().flatten().unwrap_or(0)
}

/// `Retry-After` in seconds; a date is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    read(headers, "retry-after").ok().flatten().map(Duration::from_secs)
}

fn read<T: FromStr>(headers: &HeaderMap, name: &'static str) -> Result<Option<T>, InvalidHeader> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    match parsed {
        Some(parsed) if values.next().is_none() => Ok(Some(parsed)),
        _ => Err(InvalidHeader(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn digest_and_generation_are_needed() {
        let digest = TarballDigest::of(b"a").to_string();
        let commit = "a".repeat(40);
        let revision = format!("sha1:{commit}");
        let all = [
            ("weir-digest", digest.as_str()),
            ("weir-generation", "7"),
            ("weir-commit", commit.as_str()),
            ("weir-revision", revision.as_str()),
            ("weir-version", "1.2.3"),
        ];
        let answer = TarballHeaders::of(&headers(&all)).unwrap();
        assert_eq!((answer.generation, answer.require_digest()), (7, Ok(TarballDigest::of(b"a"))));
        assert_eq!(answer.commit.unwrap().as_str(), commit);
        assert_eq!(answer.revision_id.unwrap().as_str(), revision);
        assert_eq!(answer.version.unwrap().as_str(), "1.2.3");
        let chart = [all[0], all[1], ("weir-revision", "helm:1.2.3+sha256:aa"), all[4]];
        let answer = TarballHeaders::of(&headers(&chart)).unwrap();
        assert_eq!((answer.commit, answer.revision_id.unwrap().as_str()), (None, "helm:1.2.3+sha256:aa"));
        assert_eq!(TarballHeaders::of(&headers(&all[..1])), Err(InvalidHeader("weir-generation")));
        let unnamed = TarballHeaders::of(&headers(&all[1..])).unwrap();
        assert_eq!(unnamed.require_digest(), Err(InvalidHeader("weir-digest")));
        for wrong in [
            ("weir-digest", "b3-0"),
            ("weir-generation", "-1"),
            ("weir-commit", "HEAD"),
            ("weir-revision", "HEAD"),
            ("weir-version", "a b"),
        ] {
            let mut pairs = all.to_vec();
            pairs.retain(|(name, _)| *name != wrong.0);
            pairs.push(wrong);
            assert_eq!(TarballHeaders::of(&headers(&pairs)), Err(InvalidHeader(wrong.0)));
        }
        let mut twice = headers(&all);
        twice.append("weir-generation", "8".parse().unwrap());
        assert!(TarballHeaders::of(&twice).is_err());
    }

    #[test]
    fn codings_and_waits() {
        assert!(matches!(coding(&headers(&[])), Ok(Coding::Identity)));
        assert!(matches!(coding(&headers(&[("content-encoding", "ZSTD")])), Ok(Coding::Zstd)));
        assert!(coding(&headers(&[("content-encoding", "gzip")])).is_err());
        assert!(coding(&headers(&[("content-encoding", "dcz")])).is_err(), "it was not asked for");
        assert_eq!(retry_after(&headers(&[("retry-after", "3")])), Some(Duration::from_secs(3)));
        assert_eq!(retry_after(&headers(&[("retry-after", "Fri, 20 Nov 2026 09:30:00 GMT")])), None);
    }
}
