//! What a service follows, by the kind of its repository.

use std::fmt;

use semver::Version;
use weir_git::revision::Revision;
use weir_protocol::name::ServiceName;
use weir_tarball::FolderPath;
use weir_upstream::{SourceKind, loose_version, parse_version};

use super::helm::{Chart, ChartName};
use super::oci::ArtifactRef;
use super::ref_text::RefText;

/// What a service follows in its repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Git(Revision),
    Chart(Chart),
    Artifact(ArtifactRef),
    Parts(Box<str>),
    /// What this service publishes.
    Service(ServiceName),
}

impl Followed {
    /// What a composed service follows, by the folder of each part.
    pub(crate) fn parts<'a>(parts: impl Iterator<Item = (&'a FolderPath, &'a Self)>) -> Self {
        let parts: Vec<String> = parts.map(|(to, followed)| format!("{to}={followed}")).collect();
        Self(Kind::Parts(format!("parts:{}", parts.join(",")).into()))
    }

    /// What a part follows that is a service.
    pub(crate) fn service(name: &ServiceName) -> Self {
        Self(Kind::Service(name.clone()))
    }

    /// Reads the `ref` and the `chart` of a service for a repository of this kind.
    ///
    /// # Errors
    /// The key that is wrong, with the reason for whoever wrote it.
    pub fn parse(kind: SourceKind, text: &RefText, chart: Option<&ChartName>) -> Result<Self, (&'static str, String)> {
        match (kind, chart) {
            (SourceKind::Git | SourceKind::Oci, Some(_)) => Err(("chart", kind.refused())),
            (SourceKind::Git, None) => match text.0.parse() {
                Ok(revision) => Ok(Self(Kind::Git(revision))),
                Err(error) => Err(("ref", format!("{error}"))),
            },
            (SourceKind::Oci, None) => match ArtifactRef::parse(&text.0) {
                Ok(artifact) => Ok(Self(Kind::Artifact(artifact))),
                Err(reason) => Err(("ref", reason)),
            },
            (SourceKind::Helm, None) => Err(("chart", "`kind = \"helm\"` needs it: the name of a chart".to_owned())),
            (SourceKind::Helm, Some(chart)) => match Chart::parse(chart.clone(), &text.0) {
                Ok(chart) => Ok(Self(Kind::Chart(chart))),
                Err(reason) => Err(("ref", reason)),
            },
        }
    }

    /// Whether a change of the upstream's ref with this full name may change what is followed, or with `None` an event that
    /// moves no ref. True if unknown.
    pub fn may_follow(&self, moved: Option<&str>) -> bool {
        match &self.0 {
            Kind::Git(revision) => moved.is_some_and(|moved| revision.may_follow(moved)),
            Kind::Chart(_) | Kind::Artifact(_) | Kind::Parts(_) => true,
            Kind::Service(_) => false,
        }
    }

    /// The version of a tag or a chart with this name, if a range chooses by it.
    pub(crate) fn version(&self, name: &str) -> Option<Version> {
        match &self.0 {
            Kind::Git(Revision::Version(range)) => range.version(name),
            Kind::Artifact(ArtifactRef::Range(range)) => range.without_prefix(name).and_then(parse_version),
            Kind::Chart(_) => loose_version(name),
            Kind::Git(_) | Kind::Artifact(_) | Kind::Parts(_) | Kind::Service(_) => None,
        }
    }

    /// What it is in a Git repository.
    pub(super) fn revision(&self) -> Option<&Revision> {
        match &self.0 {
            Kind::Git(revision) => Some(revision),
            Kind::Chart(_) | Kind::Artifact(_) | Kind::Parts(_) | Kind::Service(_) => None,
        }
    }

    /// What it is in a Helm repository.
    pub(super) fn chart(&self) -> Option<&Chart> {
        match &self.0 {
            Kind::Chart(chart) => Some(chart),
            Kind::Git(_) | Kind::Artifact(_) | Kind::Parts(_) | Kind::Service(_) => None,
        }
    }

    /// What it is in the repository of an artifact.
    pub(super) fn artifact(&self) -> Option<&ArtifactRef> {
        match &self.0 {
            Kind::Artifact(artifact) => Some(artifact),
            Kind::Git(_) | Kind::Chart(_) | Kind::Parts(_) | Kind::Service(_) => None,
        }
    }
}

/// Names what is followed in its repository: a `ref`, or `<chart>@<ref>`; of a part that is a service, `service:<name>`.
impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Git(revision) => revision.fmt(f),
            Kind::Chart(chart) => write!(f, "{}@{chart}", chart.name),
            Kind::Artifact(artifact) => artifact.fmt(f),
            Kind::Parts(parts) => f.write_str(parts),
            Kind::Service(service) => write!(f, "service:{service}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::RefTextError;
    use crate::ref_text::MAX_REF_BYTES;

    #[test]
    fn a_ref_is_a_short_line_and_its_meaning_is_that_of_the_kind() {
        let long = "x".repeat(MAX_REF_BYTES + 1);
        for text in ["", " main", "main ", "a\nb", "a\u{7f}", &long] {
            assert_eq!(text.parse::<RefText>(), Err(RefTextError), "{text:?}");
        }
        let followed = |text: &str| Followed::parse(SourceKind::default(), &text.parse().unwrap(), None);
        let default = Followed::parse(SourceKind::default(), &RefText::default(), None);
        assert_eq!(followed("HEAD").unwrap(), default.unwrap());
        assert_eq!(followed("semver: ^1").unwrap().to_string(), "semver:^1");
        for (text, reason) in [("refs/replace/x", "replacement objects"), ("a..b", "is not a branch")] {
            let (key, error) = followed(text).unwrap_err();
            assert!(key == "ref" && error.contains(reason), "{text}");
        }
    }

    #[test]
    fn a_chart_is_followed_in_helm_repositories_alone() {
        let (git, helm) = (SourceKind::default(), SourceKind::Helm);
        let chart: ChartName = "redis".parse().unwrap();
        let read = |kind, text: &str, chart| Followed::parse(kind, &text.parse().unwrap(), chart);
        for (text, name) in
            [("HEAD", "redis@semver:*"), ("semver:^18.1", "redis@semver:^18.1"), ("v1.0.0", "redis@1.0.0")]
        {
            let followed = read(helm, text, Some(&chart)).unwrap();
            assert_eq!(followed.to_string(), name);
            assert!(
                followed.may_follow(Some("refs/heads/main"))
                    && followed.may_follow(None)
                    && followed.revision().is_none()
            );
            assert_eq!(followed.chart().unwrap().name, chart);
        }
        for (kind, text, chart, key, reason) in [
            (git, "main", Some(&chart), "chart", "it has no meaning for `kind = \"git\"`: remove it"),
            (helm, "HEAD", None, "chart", "`kind = \"helm\"` needs it: the name of a chart"),
            (helm, "main", Some(&chart), "ref", "is not a version of a chart"),
        ] {
            let (wrong, error) = read(kind, text, chart).unwrap_err();
            assert!(wrong == key && error.contains(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_artifact_is_followed_in_registries_alone() {
        let read = |kind, text: &str, chart| Followed::parse(kind, &text.parse().unwrap(), chart);
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (text, name) in [("HEAD", "latest"), ("stable", "stable"), ("semver:^1", "semver:^1"), (&digest, &digest)] {
            let followed = read(SourceKind::Oci, text, None).unwrap();
            assert_eq!(followed.to_string(), name);
            assert!(
                followed.may_follow(Some("refs/heads/main"))
                    && followed.may_follow(None)
                    && followed.revision().is_none()
            );
            assert!(followed.artifact().is_some() && followed.chart().is_none());
        }
        let chart: ChartName = "redis".parse().unwrap();
        assert_eq!(read(SourceKind::Oci, "v1", Some(&chart)).unwrap_err().0, "chart");
        assert_eq!(read(SourceKind::Oci, "refs/heads/main", None).unwrap_err().0, "ref");
        let assumed = |text: &str| text.parse::<RefText>().unwrap().assumed_kind(None);
        assert_eq!((assumed(&digest), assumed("main")), (SourceKind::Oci, SourceKind::default()));
    }

    proptest! {
        #[test]
        fn what_is_followed_is_written_as_it_is_read(text in "\\PC{1,40}") {
            let read = |text: &str| Followed::parse(SourceKind::default(), &text.parse().ok()?, None).ok();
            if let Some(followed) = read(&text) {
                prop_assert_eq!(read(&followed.to_string()), Some(followed));
            }
        }
    }
}
