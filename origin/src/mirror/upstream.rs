//! Where a repository comes from.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How long a read may bring nothing before a poll fails, unless configured otherwise.
pub const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a repository is mirrored from.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// `https://…`, `http://…` (without credentials), `git://…`, `file://…` or a local path.
    pub url: String,
    /// A PEM file with the only certificate authorities to trust for `https://`; absent: those of the system.
    pub ca: Option<PathBuf>,
    /// The user name for an upstream that asks for one.
    pub username: Option<String>,
    /// The file that holds the password or token, read again at each poll; white space at its end does not count.
    pub password_file: Option<PathBuf>,
    /// How long a read may bring nothing before the poll fails.
    pub stall_timeout: Duration,
    /// Full names of refs that are asked for beside the branches, the tags and `HEAD`.
    pub further_refs: BTreeSet<String>,
}

impl Upstream {
    /// An upstream that needs nothing but its URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            username: None,
            password_file: None,
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            further_refs: BTreeSet::new(),
        }
    }

    /// The URL without user name and password, for people.
    pub fn redacted_url(&self) -> String {
        without_user_info(&self.url)
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("url", &self.redacted_url()).finish_non_exhaustive()
    }
}

/// A text with the user info taken out of every URL in it.
pub(super) fn without_user_info(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, after) = rest.split_at(scheme + 3);
        out.push_str(before);
        let authority = after.find(|c: char| c == '/' || c.is_whitespace() || "\"'`?#)>".contains(c));
        let authority = &after[..authority.unwrap_or(after.len())];
        // The last `@` ends the user info, even if somebody forgot to encode one in a password.
        let user_info = authority.rfind('@').map_or(0, |at| at + 1);
        rest = &after[user_info..];
    }
    // `user@host:path`, the other way to write an SSH URL.
    if out.is_empty()
        && let Some((user, host)) = rest.split_once('@')
        && host.contains(':')
        && !user.contains(['/', ' '])
    {
        rest = host;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_info_never_shows() {
        for (text, expected) in [
            ("https://git.example/a.git", "https://git.example/a.git"),
            ("https://me:secret@git.example/a.git", "https://git.example/a.git"),
            ("https://token@git.example", "https://git.example"),
            ("https://me:p@ss@git.example/a@b", "https://git.example/a@b"),
            ("see (https://me:x@h/a) and git://u@h2/b", "see (https://h/a) and git://h2/b"),
            ("git@git.example:a.git", "git.example:a.git"),
            ("/srv/git/a@b.git", "/srv/git/a@b.git"),
            ("file:///srv/a@b", "file:///srv/a@b"),
        ] {
            assert_eq!(without_user_info(text), expected);
        }
        let upstream = Upstream::new("https://me:secret@git.example/a.git");
        assert!(!format!("{upstream:?}").contains("secret"));
    }
}
