//! Which kinds of sources there are, and of which one a URL is.

use std::ops::Deref;

#[cfg(debug_assertions)]
use super::folder::{self, FolderSource};
use super::git::GitSource;
use super::{Kind, Shared};
use crate::config::{Fault, RepositoryConfig};

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
        if let Some(root) = folder::root(&config.url) {
            return Self::Folder(FolderSource::new(root));
        }
        Self::Git(Box::new(GitSource::new(config, shared)))
    }
}

/// What is wrong with a repository that is not of Git; none: it is of Git.
#[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "there is no other kind"))]
pub(crate) fn faults_of_another_kind(config: &RepositoryConfig) -> Option<Vec<Fault>> {
    #[cfg(debug_assertions)]
    if folder::root(&config.url).is_some() {
        return Some(folder::faults(config));
    }
    None
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
