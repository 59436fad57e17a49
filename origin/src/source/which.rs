//! Which kinds of sources there are, and of which one a URL is.

use std::ops::Deref;

#[cfg(debug_assertions)]
use super::folder::FolderSource;
use super::git::GitSource;
use super::{Kind, Shared};
use crate::config::RepositoryConfig;

/// What follows the upstream of a repository.
pub(crate) enum Source {
    Git(Box<GitSource>),
    #[cfg(debug_assertions)]
    Folder(FolderSource),
}

impl Source {
    /// The source of a repository. Nothing is opened yet.
    pub(crate) fn new(config: &RepositoryConfig, shared: Shared) -> Self {
        #[cfg(debug_assertions)]
        if let Some(root) = config.url.folder() {
            return Self::Folder(FolderSource::new(root));
        }
        Self::Git(Box::new(GitSource::new(config, shared)))
    }
}

impl Deref for Source {
    type Target = dyn Kind;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Git(git) => &**git,
            #[cfg(debug_assertions)]
            Self::Folder(folder) => folder,
        }
    }
}
