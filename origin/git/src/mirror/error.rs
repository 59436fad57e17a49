use std::io;
use std::time::Duration;

use weir_upstream::{UpstreamError, without_user_info};

/// Why a poll failed. No text contains credentials or the user info of a URL.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MirrorError {
    /// The upstream could not be used.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
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
        /// [`weir_upstream::UpstreamsConfig::max_refs`].
        limit: usize,
    },
    /// The upstream sends a pack that is too large.
    #[error(
        "the upstream sends a pack of more than `[upstreams] max_pack` = {limit} bytes: raise it to mirror the repository"
    )]
    PackTooLarge {
        /// [`weir_upstream::UpstreamsConfig::max_pack`].
        limit: u64,
    },
    /// The fetch would make the mirror too large.
    #[error(
        "the mirror would have more than `[upstreams] max_mirror` = {limit} bytes: raise it if the repository is that large; remains of forced pushes are removed later"
    )]
    MirrorTooLarge {
        /// [`weir_upstream::UpstreamsConfig::max_mirror`].
        limit: u64,
    },
    /// The upstream sends an object that is too large.
    #[error(
        "the upstream sends an object of more than `[upstreams] max_object` = {limit} bytes: raise it to mirror the repository"
    )]
    ObjectTooLarge {
        /// [`weir_upstream::UpstreamsConfig::max_object`].
        limit: u64,
    },
    /// The upstream sends a pack with too many objects.
    #[error(
        "the upstream sends a pack of {objects} objects or more, but `[upstreams] max_objects` = {limit}: raise it to mirror the repository (each object takes up to 400 bytes of memory)"
    )]
    TooManyObjects {
        /// The number of objects.
        objects: usize,
        /// [`weir_upstream::UpstreamsConfig::max_objects`].
        limit: usize,
    },
    /// The deltas of an object exceed the memory to read it.
    #[error(
        "the upstream sends deltas of one object with more than {limit} bytes in total, {times} times `[upstreams] max_object`: raise it, or repack the upstream (`git repack -adf --depth=10`)", times = super::limits::DELTA_CHAIN_FACTOR
    )]
    DeltasTooLarge {
        /// A multiple of [`weir_upstream::UpstreamsConfig::max_object`].
        limit: u64,
    },
    /// The check that all reachable objects exist ran out of memory.
    #[error(
        "checking the received objects takes too much memory for `[upstreams] max_object` = {limit}, which permits {times} times that: raise it to mirror the repository", times = super::limits::OBJECTS_IN_MEMORY
    )]
    CheckTooLarge {
        /// [`weir_upstream::UpstreamsConfig::max_object`].
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
}

impl MirrorError {
    /// Whether the error is a timeout.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Upstream(error) if error.is_timeout())
    }

    /// Whether the poll was interrupted.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Upstream(UpstreamError::Interrupted))
    }

    /// The failed step: `connect`, `authenticate`, `list refs`, `fetch` or `write`.
    pub fn step(&self) -> &'static str {
        match self {
            Self::Upstream(error) => error.step(),
            Self::EmptyRepository
            | Self::NothingAdvertised { .. }
            | Self::OtherObjectFormat { .. }
            | Self::TooManyRefs { .. } => "list refs",
            Self::PackTooLarge { .. }
            | Self::MirrorTooLarge { .. }
            | Self::ObjectTooLarge { .. }
            | Self::TooManyObjects { .. }
            | Self::DeltasTooLarge { .. }
            | Self::CheckTooLarge { .. }
            | Self::Incomplete { .. }
            | Self::NotFollowed { .. } => "fetch",
            Self::Local { .. } | Self::Damaged { .. } => "write",
        }
    }

    /// The kind of the error, for metrics and alerts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Upstream(error) => error.kind(),
            Self::EmptyRepository | Self::NothingAdvertised { .. } => "no_refs",
            Self::OtherObjectFormat { .. } => "object_format",
            Self::TooManyRefs { .. }
            | Self::PackTooLarge { .. }
            | Self::MirrorTooLarge { .. }
            | Self::ObjectTooLarge { .. }
            | Self::TooManyObjects { .. }
            | Self::DeltasTooLarge { .. }
            | Self::CheckTooLarge { .. } => "limit",
            Self::Incomplete { .. } | Self::NotFollowed { .. } => "protocol",
            Self::Local { .. } => "local",
            Self::Damaged { .. } => "damaged",
        }
    }

    /// The upstream's `Retry-After`, up to a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Upstream(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Whether one of the fetched refs may be the cause, so that others can be fetched without it.
    pub(super) fn may_be_a_ref(&self) -> bool {
        matches!(
            self,
            Self::Upstream(UpstreamError::Protocol { step: "fetch", .. })
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
        matches!(self, Self::Local { .. } | Self::Upstream(UpstreamError::Protocol { step: "fetch", .. }))
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Local { what, cause: cause.to_string() }
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
        UpstreamError::Protocol { step, cause: describe(error) }.into()
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
