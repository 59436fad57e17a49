use std::io;
use std::path::Path;
use std::time::Duration;

use crate::source::{NotAllowed, without_user_info};

/// Why a poll failed. No text contains credentials or the user info of a URL.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MirrorError {
    /// The URL is not supported.
    #[error("`{url}` cannot be mirrored: {reason}")]
    UnsupportedUrl {
        /// The URL, without user info.
        url: String,
        /// The reason.
        reason: &'static str,
    },
    /// The egress policy forbids the address.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The host name cannot be resolved.
    #[error("the upstream cannot be reached: the host name `{host}` has no address: {cause}")]
    Resolve {
        /// The host name.
        host: String,
        /// The system's error.
        cause: String,
    },
    /// The upstream sent nothing for the stall timeout.
    #[error("the upstream sent nothing for {} s (step: {step})", after.as_secs_f32())]
    Stalled {
        /// The step that waited.
        step: &'static str,
        /// [`crate::source::Upstream::stall_timeout`].
        after: Duration,
    },
    /// The connection failed.
    #[error("the upstream cannot be reached: {cause}")]
    Connect {
        /// The cause.
        cause: String,
        /// Whether it timed out.
        timeout: bool,
    },
    /// The identity of one side cannot be verified: a certificate, or an SSH host key.
    #[error("the upstream cannot be trusted: {0}")]
    Trust(String),
    /// The upstream refuses the credentials, or needs some.
    #[error("the upstream refuses access: {0}")]
    Authenticate(String),
    /// The upstream redirects, and the redirect is not followed.
    #[error("the upstream redirects to {to}, which is not followed: {reason}")]
    Redirected {
        /// The target: scheme, host and port.
        to: String,
        /// The reason.
        reason: &'static str,
    },
    /// The repository does not exist, or needs other credentials.
    #[error("the upstream has no such repository, or hides it without the right credentials: {0}")]
    NotFound(String),
    /// The upstream has no branches or tags, and had none before.
    #[error("the repository is empty: the upstream has no branches and no tags")]
    EmptyRepository,
    /// The upstream lists no refs, but had some before.
    #[error(
        "the upstream lists no refs, but the mirror has {mirrored}: none is deleted, because this is likely a fault"
    )]
    NothingAdvertised {
        /// The number of refs in the mirror.
        mirrored: usize,
    },
    /// The upstream's object format has changed.
    #[error("the upstream's object format is {format} now: the repository has to be cloned again")]
    OtherObjectFormat {
        /// The upstream's object format.
        format: gix::hash::Kind,
        /// The number of refs in the mirror.
        mirrored: usize,
    },
    /// The upstream lists too many refs.
    #[error(
        "the upstream has more refs than `[upstreams] max_refs` = {limit}: raise it, or mirror a smaller repository"
    )]
    TooManyRefs {
        /// [`crate::source::Upstream::max_refs`].
        limit: usize,
    },
    /// The upstream sends a pack that is too large.
    #[error(
        "the upstream sends a pack of more than `[upstreams] max_pack` = {limit} bytes: raise it to mirror the repository"
    )]
    PackTooLarge {
        /// [`crate::source::Upstream::max_pack`].
        limit: u64,
    },
    /// The fetch would make the mirror too large.
    #[error(
        "the mirror would have more than `[upstreams] max_mirror` = {limit} bytes: raise it if the repository is that large; remains of forced pushes are removed later"
    )]
    MirrorTooLarge {
        /// [`crate::source::Upstream::max_mirror`].
        limit: u64,
    },
    /// The upstream sends an object that is too large.
    #[error(
        "the upstream sends an object of more than `[upstreams] max_object` = {limit} bytes: raise it to mirror the repository"
    )]
    ObjectTooLarge {
        /// [`crate::source::Upstream::max_object`].
        limit: u64,
    },
    /// The upstream sends a pack with too many objects.
    #[error(
        "the upstream sends a pack of {objects} objects or more, but `[upstreams] max_objects` = {limit}: raise it to mirror the repository (each object takes up to 400 bytes of memory)"
    )]
    TooManyObjects {
        /// The number of objects.
        objects: usize,
        /// [`crate::source::Upstream::max_objects`].
        limit: usize,
    },
    /// The deltas of an object exceed the memory to read it.
    #[error(
        "the upstream sends deltas of one object with more than {limit} bytes in total, {times} times `[upstreams] max_object`: raise it, or repack the upstream (`git repack -adf --depth=10`)", times = super::limits::DELTA_CHAIN_FACTOR
    )]
    DeltasTooLarge {
        /// A multiple of [`crate::source::Upstream::max_object`].
        limit: u64,
    },
    /// The check that all reachable objects exist ran out of memory.
    #[error(
        "checking the received objects takes too much memory for `[upstreams] max_object` = {limit}, which permits {times} times that: raise it to mirror the repository", times = super::limits::OBJECTS_IN_MEMORY
    )]
    CheckTooLarge {
        /// [`super::Upstream::max_object`].
        limit: u64,
    },
    /// The upstream lists a ref without sending its object.
    #[error("fetching from the upstream failed: it did not send the object of `{reference}`")]
    Incomplete {
        /// The ref's name.
        reference: String,
    },
    /// A ref of the upstream cannot be stored or peeled.
    #[error("`{reference}` cannot be followed: {reason}")]
    NotFollowed {
        /// The ref's name.
        reference: String,
        /// The reason.
        reason: &'static str,
    },
    /// The upstream violated the protocol, or the connection broke.
    #[error("{} failed: {cause}", describe_step(step))]
    Upstream {
        /// `list refs`, `fetch` or `lfs`.
        step: &'static str,
        /// The cause.
        cause: String,
    },
    /// The upstream sent an HTTP status other than 200.
    #[error("the upstream answered {status}: {}", describe_status(*status))]
    HttpStatus {
        /// `list refs`, `fetch` or `lfs`.
        step: &'static str,
        /// The status.
        status: u16,
        /// The pause that it demands (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// A configured file cannot be used.
    #[error("the file `{name}` that `{key}` names {cause}")]
    File {
        /// The configuration key.
        key: &'static str,
        /// The file's name, without its directory.
        name: String,
        /// The cause.
        cause: String,
    },
    /// The mirror's directory cannot be read or written.
    #[error("the mirror cannot {what}: {cause}")]
    Local {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        cause: String,
    },
    /// The mirror's files are damaged, for example after a power loss.
    #[error("the mirror is damaged: {cause}")]
    Damaged {
        /// A description of the damage.
        cause: String,
    },
    /// The poll was interrupted.
    #[error("the poll was interrupted")]
    Interrupted,
}

impl MirrorError {
    /// Whether the error is a timeout.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Stalled { .. } | Self::Connect { timeout: true, .. })
    }

    /// The failed step: `connect`, `authenticate`, `list refs`, `fetch` or `write`.
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

    /// All values of [`MirrorError::kind`].
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

    /// The kind of the error, for metrics and alerts.
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

    /// The upstream's `Retry-After`, up to a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::HttpStatus { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether one of the fetched refs may be the cause, so that others can be fetched without it.
    pub(super) fn may_be_a_ref(&self) -> bool {
        matches!(
            self,
            Self::Upstream { step: "fetch", .. }
                | Self::PackTooLarge { .. }
                | Self::MirrorTooLarge { .. }
                | Self::ObjectTooLarge { .. }
                | Self::TooManyObjects { .. }
                | Self::DeltasTooLarge { .. }
                | Self::CheckTooLarge { .. }
        )
    }

    /// Whether it is a limit of all that is fetched, so that parts may download as much again.
    pub(super) fn is_of_all(&self) -> bool {
        matches!(self, Self::PackTooLarge { .. } | Self::MirrorTooLarge { .. } | Self::TooManyObjects { .. })
    }

    /// Whether a damaged mirror may be the cause.
    pub fn may_be_damage(&self) -> bool {
        matches!(self, Self::Local { .. } | Self::Upstream { step: "fetch", .. })
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Local { what, cause: cause.to_string() }
    }

    pub(crate) fn unread(key: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::file(key, file, format!("cannot be read: {cause}"))
    }

    /// Messages contain the name of a file, but not its directory.
    pub(crate) fn file(key: &'static str, file: &Path, cause: impl Into<String>) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::File { key, name, cause: cause.into() }
    }

    pub(super) fn local_gix(what: &'static str) -> impl FnOnce(gix::Error) -> Self {
        move |cause| Self::Local { what, cause: describe(&cause) }
    }

    /// The error for one of gix, if the transport recorded none.
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

/// A step for messages.
fn describe_step(step: &str) -> &'static str {
    match step {
        "fetch" => "fetching from the upstream",
        "lfs" => "requesting LFS objects from the upstream",
        _ => "listing the upstream's refs",
    }
}

/// The meaning of a status, and what to do.
fn describe_status(status: u16) -> &'static str {
    match status {
        403 | 429 => "this origin, or these credentials, sent too many requests",
        407 => "the proxy requires credentials, or others",
        503 => "it is overloaded or under maintenance",
        500..=599 => "it has an internal error",
        _ => "Git's protocol does not expect this status",
    }
}

fn causes<T: std::error::Error + 'static>(error: &gix::Error) -> impl Iterator<Item = &T> {
    error.iter_errors().filter_map(|error| error.downcast_ref())
}

/// The innermost and the outermost cause on one line, without user info and control characters. It may contain text of
/// the upstream.
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
    fn a_full_disk_is_a_local_error() {
        let full = io::Error::from(io::ErrorKind::StorageFull).and_raise(message("Failed to write the received pack"));
        assert_eq!(protocol_error(&full).step(), "write");
    }

    #[test]
    fn control_characters_of_an_upstream_are_removed() {
        let error = protocol_error(&message("remote error:\u{1b}[2J all\r\n is\u{7} well").raise());
        assert_eq!(error.to_string(), "fetching from the upstream failed: remote error:[2J all is well");
    }

    #[test]
    fn user_info_is_removed_from_causes() {
        let error = protocol_error(&message("cannot talk to https://me:secret@host/x").raise());
        assert_eq!(error.to_string(), "fetching from the upstream failed: cannot talk to https://host/x");
    }
}
