//! Why a poll failed, in plain words.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::source::{NotAllowed, without_user_info};

/// Why a mirror could not be brought up to date. No variant's text holds a credential or a URL's user info.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MirrorError {
    /// The URL names no way of fetching that is known here.
    #[error("`{url}` cannot be mirrored: {reason}")]
    UnsupportedUrl {
        /// Without user info.
        url: String,
        /// Why not.
        reason: &'static str,
    },
    /// It may not be asked.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The host's name has no address.
    #[error("the upstream cannot be reached: the host name `{host}` has no address: {cause}")]
    Resolve {
        /// The name.
        host: String,
        /// What the system said.
        cause: String,
    },
    /// The upstream brought nothing for too long.
    #[error("the upstream brought nothing for {} s (step: {step})", after.as_secs_f32())]
    Stalled {
        /// The step that was waiting.
        step: &'static str,
        /// [`crate::source::Upstream::stall_timeout`].
        after: Duration,
    },
    /// The upstream could not be reached.
    #[error("the upstream cannot be reached: {cause}")]
    Connect {
        /// What the network said.
        cause: String,
        /// Whether it took too long.
        timeout: bool,
    },
    /// Either side does not take the other for who it says it is: a certificate, or the key of an SSH host.
    #[error("the upstream cannot be trusted: {0}")]
    Trust(String),
    /// The upstream asks for credentials, and those at hand do not do.
    #[error("the upstream refuses access: {0}")]
    Authenticate(String),
    /// The upstream sends its client elsewhere, and that is not followed.
    #[error("the upstream redirects to {to}, which is not followed: {reason}")]
    Redirected {
        /// Scheme, host and port of where to.
        to: String,
        /// Why not.
        reason: &'static str,
    },
    /// There is no such repository, or none that may be seen.
    #[error("the upstream has no such repository, or shows it to others only: {0}")]
    NotFound(String),
    /// The upstream has no branches or tags, and never had any here.
    #[error("the repository is empty: the upstream has no branches and no tags")]
    EmptyRepository,
    /// The upstream had refs before and names none now.
    #[error("the upstream names no refs at all, but {mirrored} are mirrored: nothing is deleted on such a word")]
    NothingAdvertised {
        /// How many refs the mirror has.
        mirrored: usize,
    },
    /// The upstream's objects have ids of another format than the mirror's: it was made anew.
    #[error("the upstream is a repository of {format} now, and the mirror is not: it has to be cloned again")]
    OtherObjectFormat {
        /// The upstream's.
        format: gix::hash::Kind,
        /// How many refs the mirror has.
        mirrored: usize,
    },
    /// The upstream names more refs than are taken.
    #[error(
        "the upstream names more refs than `[upstreams] max_refs` = {limit} allows: raise it, or mirror a smaller repository"
    )]
    TooManyRefs {
        /// [`crate::source::Upstream::max_refs`].
        limit: usize,
    },
    /// The upstream sends a pack that is larger than is taken.
    #[error(
        "the upstream sends a pack that takes more than `[upstreams] max_pack` = {limit} bytes: raise it if the repository is to be mirrored"
    )]
    PackTooLarge {
        /// [`crate::source::Upstream::max_pack`].
        limit: u64,
    },
    /// What the upstream sends would make the mirror larger than it may be.
    #[error(
        "the mirror would have more than `[upstreams] max_mirror` = {limit} bytes: raise it if the repository is that large; what forced pushes left behind goes by itself in time"
    )]
    MirrorTooLarge {
        /// [`crate::source::Upstream::max_mirror`].
        limit: u64,
    },
    /// The upstream sends an object that is larger than is taken.
    #[error(
        "the upstream sends an object that takes more than `[upstreams] max_object` = {limit} bytes of memory: raise it if the repository is to be mirrored"
    )]
    ObjectTooLarge {
        /// [`crate::source::Upstream::max_object`].
        limit: u64,
    },
    /// The upstream sends a pack of more objects than are taken.
    #[error(
        "the upstream sends a pack of {objects} objects or more, and `[upstreams] max_objects` = {limit}: raise it if the repository is to be mirrored (each takes up to 400 bytes of memory)"
    )]
    TooManyObjects {
        /// How many.
        objects: usize,
        /// [`crate::source::Upstream::max_objects`].
        limit: usize,
    },
    /// The upstream sends an object as deltas that do not fit into the memory that it may take to read it.
    #[error(
        "the upstream sends deltas that lead to one object and have more than {limit} bytes together, {times} times `[upstreams] max_object`: raise it, or repack the upstream (`git repack -adf --depth=10`)", times = super::limits::DELTA_CHAIN_FACTOR
    )]
    DeltasTooLarge {
        /// So many times [`crate::source::Upstream::max_object`].
        limit: u64,
    },
    /// It takes too much memory to find out whether the upstream sent all that its refs lead to.
    #[error(
        "to check what the upstream sends takes more memory than `[upstreams] max_object` = {limit} allows for, {times} times that and some more: raise it if the repository is to be mirrored", times = super::limits::OBJECTS_IN_MEMORY
    )]
    CheckTooLarge {
        /// [`super::Upstream::max_object`].
        limit: u64,
    },
    /// The upstream names a ref, and does not send what that points at.
    #[error("fetching from the upstream failed: it did not send what `{reference}` points at")]
    Incomplete {
        /// Its name.
        reference: String,
        /// Whether the same poll changed other refs of the mirror.
        moved: bool,
    },
    /// The upstream names a ref, and what that leads to cannot be found out.
    #[error("fetching from the upstream failed: `{reference}` cannot be followed, it leads to {reason}")]
    NotFollowed {
        /// Its name.
        reference: String,
        /// What it leads to.
        reason: &'static str,
        /// Whether the same poll changed other refs of the mirror.
        moved: bool,
    },
    /// The upstream answered something else than expected, or broke off.
    #[error("{} failed: {cause}", doing(step))]
    Upstream {
        /// `list refs`, `fetch` or `lfs`.
        step: &'static str,
        /// What went wrong.
        cause: String,
    },
    /// The upstream answered with an HTTP status that says no.
    #[error("the upstream answered {status}: {}", meaning(*status))]
    HttpStatus {
        /// `list refs`, `fetch` or `lfs`.
        step: &'static str,
        /// The status.
        status: u16,
        /// How long it asks to be left alone (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// A file that the configuration names cannot be used.
    #[error("the file `{name}` that `{key}` names {cause}")]
    File {
        /// The key of the configuration.
        key: &'static str,
        /// The file's name, without its folder.
        name: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The mirror's own directory could not be read or written.
    #[error("the mirror cannot {what}: {cause}")]
    Local {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        cause: String,
    },
    /// The mirror's files are not whole, as after a power loss.
    #[error("the mirror is damaged: {cause}")]
    Damaged {
        /// What is missing or wrong.
        cause: String,
    },
    /// Somebody asked to stop.
    #[error("the poll was interrupted")]
    Interrupted,
}

impl MirrorError {
    /// Whether something took too long, rather than failed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Stalled { .. } | Self::Connect { timeout: true, .. })
    }

    /// The step that failed: `connect`, `authenticate`, `list refs`, `fetch` or `write`.
    pub fn step(&self) -> &'static str {
        match self {
            Self::UnsupportedUrl { .. }
            | Self::NotAllowed(_)
            | Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Trust(_)
            | Self::File { .. }
            | Self::Redirected { .. } => "connect",
            Self::Authenticate(_) => "authenticate",
            Self::EmptyRepository
            | Self::NothingAdvertised { .. }
            | Self::OtherObjectFormat { .. }
            | Self::TooManyRefs { .. }
            | Self::NotFound(_) => "list refs",
            Self::Stalled { step, .. } | Self::Upstream { step, .. } | Self::HttpStatus { step, .. } => step,
            Self::PackTooLarge { .. }
            | Self::MirrorTooLarge { .. }
            | Self::ObjectTooLarge { .. }
            | Self::TooManyObjects { .. }
            | Self::DeltasTooLarge { .. }
            | Self::CheckTooLarge { .. }
            | Self::Incomplete { .. }
            | Self::NotFollowed { .. }
            | Self::Interrupted => "fetch",
            Self::Local { .. } | Self::Damaged { .. } => "write",
        }
    }

    /// All kinds there are.
    pub const KINDS: [&str; 17] = [
        "not_allowed",
        "dns",
        "timeout",
        "connect",
        "trust",
        "authenticate",
        "redirect",
        "not_found",
        "no_refs",
        "object_format",
        "limit",
        "rate_limit",
        "server_error",
        "protocol",
        "local",
        "damaged",
        "interrupted",
    ];

    /// What kind of trouble it is, in one word of a fixed list: for metrics and alerts.
    pub fn kind(&self) -> &'static str {
        let kind = match self {
            Self::UnsupportedUrl { .. } | Self::NotAllowed(_) => "not_allowed",
            Self::Resolve { .. } => "dns",
            Self::Stalled { .. } | Self::Connect { timeout: true, .. } => "timeout",
            Self::Connect { .. } => "connect",
            Self::Trust(_) => "trust",
            Self::Authenticate(_) | Self::HttpStatus { status: 407, .. } => "authenticate",
            Self::Redirected { .. } => "redirect",
            Self::NotFound(_) => "not_found",
            Self::EmptyRepository | Self::NothingAdvertised { .. } => "no_refs",
            Self::OtherObjectFormat { .. } => "object_format",
            Self::TooManyRefs { .. }
            | Self::PackTooLarge { .. }
            | Self::MirrorTooLarge { .. }
            | Self::ObjectTooLarge { .. }
            | Self::TooManyObjects { .. }
            | Self::DeltasTooLarge { .. }
            | Self::CheckTooLarge { .. } => "limit",
            Self::HttpStatus { status: 403 | 429, .. } => "rate_limit",
            Self::HttpStatus { status: 500..=599, .. } => "server_error",
            Self::HttpStatus { .. } | Self::Upstream { .. } | Self::Incomplete { .. } | Self::NotFollowed { .. } => {
                "protocol"
            }
            Self::Local { .. } | Self::File { .. } => "local",
            Self::Damaged { .. } => "damaged",
            Self::Interrupted => "interrupted",
        };
        debug_assert!(Self::KINDS.contains(&kind), "{kind}");
        kind
    }

    /// How long the upstream asks to be left alone, a day at the most.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::HttpStatus { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the mirror follows the upstream all the same, but for a ref: with whether it was changed. Of an upstream that
    /// did not send what was asked for, only when it was.
    pub fn all_but_a_ref(&self) -> Option<bool> {
        match self {
            Self::NotFollowed { moved, .. } => Some(*moved),
            Self::Incomplete { moved, .. } => moved.then_some(true),
            _ => None,
        }
    }

    /// Whether a damaged mirror would explain it.
    pub fn may_be_damage(&self) -> bool {
        matches!(self, Self::Local { .. } | Self::Upstream { step: "fetch", .. })
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Local { what, cause: cause.to_string() }
    }

    pub(crate) fn unread(key: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::file(key, file, format!("cannot be read: {cause}"))
    }

    /// Where a file is, is told to nobody: its name does, for whoever knows the configuration.
    pub(crate) fn file(key: &'static str, file: &Path, cause: impl Into<String>) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::File { key, name, cause: cause.into() }
    }

    pub(super) fn mirror(what: &'static str) -> impl FnOnce(gix::Error) -> Self {
        move |cause| Self::Local { what, cause: describe(&cause) }
    }

    /// What a failed exchange with the upstream comes down to, when its transport saw nothing wrong.
    pub(super) fn protocol(step: &'static str, error: &gix::Error) -> Self {
        let local = |cause: &io::Error| {
            use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
            matches!(cause.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        };
        if step == "fetch" && causes::<io::Error>(error).any(local) {
            return Self::Local { what: "be written", cause: describe(error) };
        }
        Self::Upstream { step, cause: describe(error) }
    }
}

/// A step in more words.
fn doing(step: &str) -> &'static str {
    match step {
        "fetch" => "fetching from the upstream",
        "lfs" => "asking the upstream for LFS objects",
        _ => "listing the upstream's refs",
    }
}

/// What a status says, and what to do about it.
fn meaning(status: u16) -> &'static str {
    match status {
        403 | 429 => "it is asked too often, by this origin or with these credentials",
        407 => "the proxy wants credentials, or others",
        503 => "it is overloaded or under maintenance",
        500..=599 => "it is in trouble itself",
        _ => "this is no answer that Git's protocol knows",
    }
}

fn causes<T: std::error::Error + 'static>(error: &gix::Error) -> impl Iterator<Item = &T> {
    error.iter_errors().filter_map(|error| error.downcast_ref())
}

/// The innermost cause and what it led to, on one line, without user info. Some of it may be the upstream's own words.
pub(super) fn describe(error: &gix::Error) -> String {
    let mut texts: Vec<String> = error.iter_errors().map(|error| format!("{error:#}")).collect();
    texts.dedup();
    let outer = texts.first().cloned().unwrap_or_default();
    let inner = texts.last().cloned().unwrap_or_default();
    let text = if outer == inner { outer } else { format!("{inner} ({outer})") };
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    without_user_info(&one_line).chars().filter(|c| !c.is_control()).take(400).collect()
}

#[cfg(test)]
mod tests {
    use gix::error::{ErrorExt, message};

    use super::*;

    fn protocol_error(error: &gix::Error) -> MirrorError {
        MirrorError::protocol("fetch", error)
    }

    #[test]
    fn a_full_disk_is_not_the_upstream_s_fault() {
        let full = io::Error::from(io::ErrorKind::StorageFull).and_raise(message("Failed to write the received pack"));
        assert_eq!(protocol_error(&full).step(), "write");
    }

    #[test]
    fn what_an_upstream_says_moves_nobody_s_cursor() {
        let error = protocol_error(&message("remote error:\u{1b}[2J all\r\n is\u{7} well").raise());
        assert_eq!(error.to_string(), "fetching from the upstream failed: remote error:[2J all is well");
    }

    #[test]
    fn user_info_is_taken_out_of_causes() {
        let error = protocol_error(&message("cannot talk to https://me:secret@host/x").raise());
        assert_eq!(error.to_string(), "fetching from the upstream failed: cannot talk to https://host/x");
    }
}
