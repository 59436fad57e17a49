//! `[[service]]`: what agents follow.

use serde::{Deserialize, Serialize};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::config::ConfigError;

use super::fault::Fault;
use crate::folder_path::FolderPath;
use crate::revision::Revision;
use crate::tarball::{Filters, Selection};

/// A repository, a ref, a folder and filters under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The name that agents ask for.
    pub name: ServiceName,
    /// The repository, by its name here.
    pub repository: RepositoryName,
    /// A branch, a tag or a full commit id. Absent: the upstream's default branch.
    #[serde(default, rename = "ref")]
    pub revision: Revision,
    /// The folder whose content is published. Absent: the whole tree.
    #[serde(default)]
    pub folder: FolderPath,
    /// gitignore patterns relative to the folder; a file is in when one matches. Absent: everything.
    #[serde(default)]
    pub include: Vec<String>,
    /// Likewise; a file is out when one matches, whatever `include` says.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether the tarball is stored as gzip too: for clients that know nothing better and need ranges or a length. Otherwise
    /// edges make gzip on the way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gzip: bool,
    /// Whether files of Git LFS are fetched and published. Otherwise they are left out, and listed as such.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lfs: bool,
}

/// A key that an earlier version does not know is written only where it says something.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl ServiceConfig {
    /// The whole tree of the default branch.
    pub fn new(name: ServiceName, repository: RepositoryName) -> Self {
        Self {
            name,
            repository,
            revision: Revision::default(),
            folder: FolderPath::default(),
            include: Vec::new(),
            exclude: Vec::new(),
            gzip: false,
            lfs: false,
        }
    }

    /// All that is wrong with it.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let patterns = |field: &'static str, patterns: &[String]| -> Vec<Fault> {
            patterns
                .iter()
                .filter_map(|text| Some(Fault::new(field, Filters::check(text).err()?.to_string())))
                .collect()
        };
        [patterns("include", &self.include), patterns("exclude", &self.exclude)].concat()
    }

    /// What of a commit goes into the tarball.
    ///
    /// # Errors
    /// A pattern cannot be used; the message names the service and the pattern.
    pub fn selection(&self) -> Result<Selection, ConfigError> {
        let filters = Filters::new(&self.include, &self.exclude)
            .map_err(|error| ConfigError::invalid(format!("service `{}`: {error}", self.name)))?;
        Ok(Selection { folder: self.folder.clone(), filters, lfs: self.lfs, gzip: self.gzip })
    }
}
