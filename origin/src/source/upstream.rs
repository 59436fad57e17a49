//! Where a repository comes from.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Endpoint, Reach};
use crate::source::git::mirror::Redirects;

/// How long a read may bring nothing before a poll fails, unless configured otherwise.
pub const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How many refs an upstream may name, unless configured otherwise.
pub const DEFAULT_MAX_REFS: usize = 100_000;

/// How many bytes a pack may have, unless configured otherwise.
pub const DEFAULT_MAX_PACK: u64 = 16 << 30;

/// How many bytes a mirror may have, unless configured otherwise.
pub const DEFAULT_MAX_MIRROR: u64 = 32 << 30;

/// How many bytes one object may have, unless configured otherwise: more than hosting services take.
pub const DEFAULT_MAX_OBJECT: u64 = 256 << 20;

/// How many objects a pack may have, unless configured otherwise: twice as many as Linux has. While it is indexed each takes
/// up to 400 bytes of memory.
pub const DEFAULT_MAX_OBJECTS: usize = 20_000_000;

/// How many bytes one LFS object may have, unless configured otherwise.
pub const DEFAULT_MAX_LFS_OBJECT: u64 = 2 << 30;

/// The fewest bytes in a second of what is fetched, unless configured otherwise.
pub const DEFAULT_MIN_RATE: u64 = 1 << 10;

/// Where a repository is mirrored from, and how. All files are read again at each poll.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// `https://…`, `http://…` (without credentials), `ssh://…`, `user@host:path`, `git://…`, `file://…` or a local path.
    pub url: Endpoint,
    /// A PEM file with the only certificate authorities to trust for `https://`; absent: those of the system.
    pub ca: Option<PathBuf>,
    /// The user name for an upstream that asks for one.
    pub username: Option<String>,
    /// The file that holds the password; white space at its end does not count.
    pub password_file: Option<PathBuf>,
    /// The file that holds a bearer token.
    pub token_file: Option<PathBuf>,
    /// A PEM file with the certificate that is shown to the upstream, and its chain.
    pub client_certificate: Option<PathBuf>,
    /// A PEM file with its key.
    pub client_key: Option<PathBuf>,
    /// `http://host:port` or `https://host:port`: through it goes all that goes over HTTP.
    pub proxy: Option<Endpoint>,
    /// The user name for the proxy.
    pub proxy_username: Option<String>,
    /// The file that holds the password for the proxy.
    pub proxy_password_file: Option<PathBuf>,
    /// Which redirects are followed.
    pub redirects: Redirects,
    /// The private key for SSH, without a passphrase.
    pub ssh_key: Option<PathBuf>,
    /// The keys of SSH hosts that are trusted, as in `known_hosts`.
    pub ssh_known_hosts: Option<PathBuf>,
    /// Where it may be.
    pub reach: Arc<Reach>,
    /// How long a read may bring nothing before the poll fails.
    pub stall_timeout: Duration,
    /// Full names of refs that are asked for beside the branches, the tags and `HEAD`.
    pub further_refs: BTreeSet<String>,
    /// How many refs it may name.
    pub max_refs: usize,
    /// How many bytes it may send for one fetch.
    pub max_pack: u64,
    /// How many bytes its mirror may have: nothing is fetched beyond.
    pub max_mirror: u64,
    /// How many bytes one of its objects may have: a fetch holds some of them in memory.
    pub max_object: u64,
    /// How many objects it may send for one fetch.
    pub max_objects: usize,
    /// How many bytes one of its LFS objects may have.
    pub max_lfs_object: u64,
    /// The fewest bytes of an LFS object in a second, on average over four stall timeouts.
    pub min_rate: u64,
}

impl Upstream {
    /// An upstream that needs nothing but its URL.
    pub fn new(url: impl Into<Endpoint>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            username: None,
            password_file: None,
            token_file: None,
            client_certificate: None,
            client_key: None,
            proxy: None,
            proxy_username: None,
            proxy_password_file: None,
            redirects: Redirects::default(),
            ssh_key: None,
            ssh_known_hosts: None,
            reach: Arc::default(),
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            further_refs: BTreeSet::new(),
            max_refs: DEFAULT_MAX_REFS,
            max_pack: DEFAULT_MAX_PACK,
            max_mirror: DEFAULT_MAX_MIRROR,
            max_object: DEFAULT_MAX_OBJECT,
            max_objects: DEFAULT_MAX_OBJECTS,
            max_lfs_object: DEFAULT_MAX_LFS_OBJECT,
            min_rate: DEFAULT_MIN_RATE,
        }
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A text with the user info taken out of every URL in it.
pub(crate) fn without_user_info(text: &str) -> String {
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
