//! `parts` of a `[[service]]`: the sources of a composed service.

use serde::{Deserialize, Serialize};
use weir_model::ValidationError;
use weir_protocol::name::RepositoryName;
use weir_tarball::{Filters, FolderPath, Selection, position};

use super::ServiceConfig;
use crate::{ChartName, RefText};

/// The most parts of a service. Each is opened for a build.
const MAX_PARTS: usize = 16;

/// The longest `to`, in bytes. It is part of each publication.
const MAX_TO_BYTES: usize = 255;

/// A source of a composed service, which has 1 to 16 of them in place of `repository`, `chart`, `ref` and `folder`. In a
/// cluster they are of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// Name of the `[[repository]]`. The repository of the first part publishes the service.
    pub repository: RepositoryName,
    /// Chart of a repository of `kind = "helm"`, which needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartName>,
    /// As `ref` of a service.
    #[serde(default, rename = "ref")]
    pub followed_ref: RefText,
    /// Folder of the source whose files are published. Default: the whole tree.
    #[serde(default)]
    pub folder: FolderPath,
    /// Folder of the service that gets the files, such as `chart`. No part is in the folder of another one.
    pub to: FolderPath,
}

impl PartConfig {
    /// The files of the source. Filters are of the composed service.
    pub(crate) fn selection(&self) -> Selection {
        Selection { folder: self.folder.clone(), filters: Filters::default(), lfs: false, gzip: false }
    }
}

impl ServiceConfig {
    /// The validation errors of its source or sources.
    pub(super) fn errors_of_sources(&self) -> Vec<ValidationError> {
        let error = |field: &str, detail: &str| ValidationError::new(field, detail);
        if self.parts.is_empty() {
            let is_missing = self.repository.is_none();
            return is_missing.then(|| error("repository", "it is missing")).into_iter().collect();
        }
        let of_one = [
            ("repository", self.repository.is_some()),
            ("chart", self.chart.is_some()),
            ("ref", self.followed_ref != RefText::default()),
            ("folder", self.folder != FolderPath::default()),
        ];
        let of_one = of_one.into_iter().filter(|(_, is_there)| *is_there);
        let mut errors: Vec<_> =
            of_one.map(|(key, _)| error(key, "with `parts` each part has its own: remove it")).collect();
        if self.lfs {
            errors.push(error("lfs", "LFS files of parts cannot be published: remove it, or `parts`"));
        }
        if self.parts.len() > MAX_PARTS {
            errors.push(error("parts", &format!("there are {}, more than the limit of {MAX_PARTS}", self.parts.len())));
        }
        let mut folders: Vec<_> = self.parts.iter().map(|part| &part.to).collect();
        folders.sort_by_cached_key(|to| position(to));
        for to in &folders {
            if to.components().next().is_none() {
                errors.push(error("parts", "`to` must be a folder, such as `chart`"));
            } else if to.as_str().len() > MAX_TO_BYTES {
                errors.push(error("parts", &format!("`to` has more than {MAX_TO_BYTES} bytes")));
            }
        }
        let is_inside = |pair: &&[&FolderPath]| position(pair[1]).starts_with(&position(pair[0]));
        errors.extend(folders.windows(2).filter(is_inside).map(|pair| {
            let detail =
                format!("`to = \"{}\"` is in `to = \"{}\"`: give each part a folder of its own", pair[1], pair[0]);
            ValidationError::new("parts", detail)
        }));
        errors
    }

    /// Why it cannot be published in a cluster: an origin has the sources of the repositories that it owns.
    pub fn error_in_cluster(&self) -> Option<ValidationError> {
        let mut names: Vec<String> = self.parts.iter().map(|part| format!("`{}`", part.repository)).collect();
        names.sort();
        names.dedup();
        let detail = || {
            format!(
                "the repositories {} may have different owners in a cluster: compose the service of one repository, or at an \
                 origin without `[cluster]`",
                names.join(", ")
            )
        };
        (names.len() > 1).then(|| ValidationError::new("parts", detail()))
    }
}
