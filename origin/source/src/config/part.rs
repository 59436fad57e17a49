//! `parts` of a `[[service]]`: the sources of a composed service.

use serde::{Deserialize, Serialize};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_tarball::{Filters, FolderPath, Selection};

use crate::{ChartName, RefText};

/// A part of a composed service, which has 1 to 16 of them in place of `repository`, `chart`, `ref` and `folder`. Each has
/// `repository` or `service`. In a cluster those with `repository` are of the repository that publishes the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// Name of the `[[repository]]`. Default: that of `service`. The repository of the first part publishes the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryName>,
    /// Name of a service without parts, whose published tarball is the part. It needs no `repository`, `chart`, `ref` or
    /// `folder`, and may have any owner in a cluster. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
    /// Chart of a repository of `kind = "helm"`, which needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartName>,
    /// As `ref` of a service.
    #[serde(default, rename = "ref")]
    pub followed_ref: RefText,
    /// Folder of the source whose files are published. Default: the whole tree.
    #[serde(default)]
    pub folder: FolderPath,
    /// Folder of the service that gets the files, such as `chart`. No part is in the folder of another one, also where case
    /// does not count. No component begins with `-`, and none has a control character or one of `, = * ? [ ] \`.
    pub to: FolderPath,
}

impl PartConfig {
    /// Why its source cannot be used: it needs one of two keys, and the others are of a repository.
    pub(crate) fn error(&self) -> Option<String> {
        let of_repository = [
            ("chart", self.chart.is_some()),
            ("ref", self.followed_ref != RefText::default()),
            ("folder", self.folder != FolderPath::default()),
        ];
        let reason = match (&self.repository, &self.service) {
            (None, None) => "it has no source: name a `repository` or a `service`".to_owned(),
            (Some(_), Some(_)) => "it has `repository` and `service`: remove one of them".to_owned(),
            (Some(_), None) => return None,
            (None, Some(_)) => {
                let (key, _) = of_repository.into_iter().find(|(_, is_there)| *is_there)?;
                format!("`{key}`: the published tarball of the `service` is the part: remove it")
            }
        };
        Some(format!("part `{}`: {reason}", self.to))
    }

    /// The files of the source. Filters are of the composed service.
    pub(crate) fn selection(&self) -> Selection {
        Selection { folder: self.folder.clone(), filters: Filters::default(), lfs: false, gzip: false }
    }
}
