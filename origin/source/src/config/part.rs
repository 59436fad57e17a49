//! `parts` of a `[[service]]`: the sources of a composed service.

use serde::{Deserialize, Serialize};
use weir_protocol::name::RepositoryName;
use weir_tarball::{Filters, FolderPath, Selection};

use crate::{ChartName, RefText};

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
    /// Folder of the service that gets the files, such as `chart`. No part is in the folder of another one, also where case
    /// does not count. No component begins with `-`, and none has a control character or one of `, = * ? [ ] \`.
    pub to: FolderPath,
}

impl PartConfig {
    /// The files of the source. Filters are of the composed service.
    pub(crate) fn selection(&self) -> Selection {
        Selection { folder: self.folder.clone(), filters: Filters::default(), lfs: false, gzip: false }
    }
}
