//! A folder of a repository, valid by construction.

use std::fmt;
use std::str::FromStr;

use weir_protocol::entry_path;

/// A folder relative to the root of a repository: no leading, trailing or doubled `/`, no `.` or `..`. The empty path
/// is the root.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FolderPath(String);

/// The text is not a folder inside a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a folder of a repository: expected a relative path without `..` or `.git`, such as `deploy/prod`"
)]
pub struct FolderPathError(String);

impl FolderPath {
    /// The path without a slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components from the root; none for the root itself.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }
}

impl FromStr for FolderPath {
    type Err = FolderPathError;

    /// Parses and normalises a path: `./deploy//prod/` is `deploy/prod`; `""`, `.` and `./` are the root.
    fn from_str(text: &str) -> Result<Self, FolderPathError> {
        let error = || FolderPathError(text.chars().take(120).collect());
        if text.starts_with('/') {
            return Err(error());
        }
        let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
        if names.iter().all(|name| entry_path::is_safe_component(name.as_bytes())) {
            Ok(Self(names.join("/")))
        } else {
            Err(error())
        }
    }
}

impl fmt::Display for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

weir_protocol::serde_as_text!(FolderPath);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_normalised_once() {
        for (text, expected) in [
            ("", ""),
            (".", ""),
            ("./", ""),
            ("deploy", "deploy"),
            ("deploy/prod/", "deploy/prod"),
            ("./deploy//prod", "deploy/prod"),
            ("a b/käse", "a b/käse"),
        ] {
            assert_eq!(text.parse::<FolderPath>().unwrap().as_str(), expected, "{text}");
        }
        let folder: FolderPath = "a/b/c".parse().unwrap();
        assert_eq!(folder.components().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(FolderPath::default().components().count(), 0);
    }

    #[test]
    fn a_folder_cannot_leave_the_repository() {
        for text in ["/", "/deploy", "..", "deploy/../..", ".git", "a/.GIT/b", "a\0b"] {
            assert!(text.parse::<FolderPath>().is_err(), "{text:?}");
        }
    }
}
