//! The parts of a composed publication.

use serde::{Deserialize, Serialize};

use crate::digest::{Sha256, TarballDigest};
use crate::name::{RepositoryName, ServiceName};
use crate::revision_id::RevisionId;

/// A part of a composed publication: a revision of a repository, or what a service published of it, in a folder of the
/// tarball.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The folder, without a slash at either end.
    pub to: String,
    /// The repository.
    pub repository: RepositoryName,
    /// Its revision.
    pub revision_id: RevisionId,
    /// The service whose published tarball it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
    /// The digest of that tarball.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<TarballDigest>,
}

impl Part {
    /// A revision of a repository.
    pub fn of_repository(to: String, repository: RepositoryName, revision_id: RevisionId) -> Self {
        Self { to, repository, revision_id, service: None, digest: None }
    }
}

/// The folders of the parts that differ between two publications.
pub fn changed(before: &[Part], now: &[Part]) -> Vec<String> {
    let differs = |parts: &[Part], part: &&Part| !parts.contains(part);
    let all = now.iter().filter(|part| differs(before, part)).chain(before.iter().filter(|part| differs(now, part)));
    let mut folders: Vec<String> = all.map(|part| part.to.clone()).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// The revision id of a composed publication: `parts:<SHA-256 of the JSON of its parts>`.
pub fn revision_of(parts: &[Part]) -> RevisionId {
    let json = serde_json::to_vec(parts).expect("parts are plain data");
    format!("parts:{}", Sha256::of(&json)).parse().expect("64 hexadecimal digits are a revision id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_id_is_of_the_documented_json() {
        let part = |to: &str, revision_id: &str| {
            Part::of_repository(to.to_owned(), "shop".parse().unwrap(), revision_id.parse().unwrap())
        };
        let parts = [part("chart", "helm:1.0.0+sha256:aa"), part("values", "sha1:bb")];
        let json = r#"[{"to":"chart","repository":"shop","revision_id":"helm:1.0.0+sha256:aa"},{"to":"values","repository":"shop","revision_id":"sha1:bb"}]"#;
        let revision = revision_of(&parts);
        assert_eq!(revision.as_str(), format!("parts:{}", Sha256::of(json.as_bytes())));
        assert_eq!((revision.commit(), revision.short().len()), (None, "parts:".len() + 12));
        assert_ne!(revision, revision_of(&parts[..1]));

        let digest = TarballDigest::of(b"one");
        let of_service =
            Part { service: Some("shop-chart".parse().unwrap()), digest: Some(digest), ..parts[1].clone() };
        let json = format!(
            r#"[{{"to":"values","repository":"shop","revision_id":"sha1:bb","service":"shop-chart","digest":"{digest}"}}]"#
        );
        assert_eq!(revision_of(&[of_service]).as_str(), format!("parts:{}", Sha256::of(json.as_bytes())));
    }

    #[test]
    fn a_part_has_changed_with_its_revision_its_digest_or_its_folder() {
        let part = |to: &str, number: u8| {
            Part::of_repository(to.to_owned(), "shop".parse().unwrap(), format!("sha1:{number:02}").parse().unwrap())
        };
        let of_service = |number: u8| Part { digest: Some(TarballDigest::of(&[number])), ..part("c", 1) };
        let before = [part("a", 1), part("b", 1), of_service(1)];
        assert_eq!(changed(&before, &before), [""; 0]);
        assert_eq!(changed(&before, &[part("a", 2), part("b", 1), of_service(2)]), ["a", "c"]);
        assert_eq!(changed(&before, &[part("a", 1), part("d", 1), of_service(1)]), ["b", "d"]);
    }
}
