//! Why a poll failed, in plain words.

use std::io;
use std::time::Duration;

use gix::protocol::transport::client as transport;

use super::credentials::CredentialsError;
use super::upstream::without_user_info;

/// Why a mirror could not be brought up to date. No variant's text holds a credential or a URL's user info.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The URL names no way of fetching that is known here.
    #[error("`{url}` cannot be mirrored: {reason}")]
    UnsupportedUrl {
        /// Without user info.
        url: String,
        /// Why not.
        reason: &'static str,
    },
    /// The upstream brought nothing for too long.
    #[error("the upstream brought nothing for {} s (step: {step})", after.as_secs_f32())]
    Stalled {
        /// The step that was waiting.
        step: &'static str,
        /// [`super::Upstream::stall_timeout`].
        after: Duration,
    },
    /// The upstream could not be reached.
    #[error("the upstream cannot be reached: {cause}")]
    Connect {
        /// What the network or the TLS handshake said.
        cause: String,
        /// Whether it took too long.
        timeout: bool,
    },
    /// The upstream asks for credentials, and those at hand do not do.
    #[error("the upstream refuses access: {0}")]
    Authenticate(String),
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
    /// The upstream answered something else than expected, or broke off.
    #[error("{} failed: {cause}", if *step == "fetch" { "fetching from the upstream" } else { "listing the upstream's refs" })]
    Upstream {
        /// `list refs` or `fetch`.
        step: &'static str,
        /// What went wrong.
        cause: String,
    },
    /// The upstream answered with an HTTP status that says no.
    #[error("the upstream answered {status}: {}", meaning(*status))]
    Answered {
        /// `list refs` or `fetch`.
        step: &'static str,
        /// The status.
        status: u16,
        /// How long it asks to be left alone (`Retry-After`).
        retry_after: Option<Duration>,
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
            Self::UnsupportedUrl { .. } | Self::Connect { .. } => "connect",
            Self::Authenticate(_) => "authenticate",
            Self::EmptyRepository | Self::NothingAdvertised { .. } | Self::OtherObjectFormat { .. } => "list refs",
            Self::Stalled { step, .. } | Self::Upstream { step, .. } | Self::Answered { step, .. } => step,
            Self::Interrupted => "fetch",
            Self::Local { .. } | Self::Damaged { .. } => "write",
        }
    }

    /// How long the upstream asks to be left alone, a day at the most.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answered { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether a damaged mirror would explain it.
    pub fn may_be_damage(&self) -> bool {
        matches!(self, Self::Local { .. } | Self::Upstream { step: "fetch", .. })
    }

    pub(super) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Local { what, cause: cause.to_string() }
    }

    pub(super) fn mirror(what: &'static str) -> impl FnOnce(gix::Error) -> Self {
        move |cause| Self::Local { what, cause: describe(&cause) }
    }

    /// What a failed exchange with the upstream comes down to.
    pub(super) fn exchange(step: &'static str, stall_timeout: Duration, error: &gix::Error) -> Self {
        if let Some(cause) = error.downcast_any_ref::<CredentialsError>() {
            return Self::Authenticate(cause.to_string());
        }
        if let Some(transport::Error::AuthenticationRefused(_)) = error.downcast_any_ref() {
            return Self::Authenticate(
                "it asks for a password, which is not sent over http://: use https://".to_owned(),
            );
        }
        let http = error.downcast_any_ref::<reqwest::Error>();
        if let Some(cause) = http
            && cause.is_connect()
        {
            return Self::Connect { cause: describe(error), timeout: cause.is_timeout() };
        }
        let timed_out = |cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut;
        if http.is_some_and(reqwest::Error::is_timeout) || causes::<io::Error>(error).any(timed_out) {
            return Self::Stalled { step, after: stall_timeout };
        }
        if let Some(status) = http.and_then(reqwest::Error::status) {
            return match status.as_u16() {
                401 | 403 => Self::Authenticate(format!("it answered {status}")),
                status => Self::Answered { step, status, retry_after: None },
            };
        }
        if error.is_unauthenticated() {
            return Self::Authenticate("it does not accept the configured user name and password".to_owned());
        }
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

/// What a status says, and what to do about it.
fn meaning(status: u16) -> &'static str {
    match status {
        404 | 410 => "no such repository, or none that may be seen with these credentials",
        407 => "the proxy wants credentials, or others",
        429 => "it is asked too often, by this origin or with these credentials",
        503 => "it is overloaded or under maintenance",
        500..=599 => "it is in trouble itself",
        _ => "this is no answer that Git's protocol knows",
    }
}

fn causes<T: std::error::Error + 'static>(error: &gix::Error) -> impl Iterator<Item = &T> {
    error.iter_errors().filter_map(|error| error.downcast_ref())
}

/// The innermost cause and what it led to, on one line, without user info.
pub(super) fn describe(error: &gix::Error) -> String {
    let mut texts: Vec<String> = error.iter_errors().map(|error| format!("{error:#}")).collect();
    texts.dedup();
    let outer = texts.first().cloned().unwrap_or_default();
    let inner = texts.last().cloned().unwrap_or_default();
    let text = if outer == inner { outer } else { format!("{inner} ({outer})") };
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    without_user_info(&one_line).chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use gix::error::{ErrorExt, message};

    use super::*;

    fn exchange(error: &gix::Error) -> MirrorError {
        MirrorError::exchange("fetch", Duration::from_secs(30), error)
    }

    #[test]
    fn a_stalled_read_is_a_timeout_wherever_it_hides() {
        let stalled =
            io::Error::new(io::ErrorKind::TimedOut, "no bytes").and_raise(message("Failed to consume the pack"));
        let error = exchange(&stalled);
        assert!(error.is_timeout());
        assert_eq!(error.step(), "fetch");
        assert_eq!(error.to_string(), "the upstream brought nothing for 30 s (step: fetch)");
    }

    #[test]
    fn a_full_disk_is_not_the_upstream_s_fault() {
        let full = io::Error::from(io::ErrorKind::StorageFull).and_raise(message("Failed to write the received pack"));
        assert_eq!(exchange(&full).step(), "write");
    }

    #[test]
    fn user_info_is_taken_out_of_causes() {
        let error = exchange(&message("cannot talk to https://me:secret@host/x").raise());
        assert_eq!(error.to_string(), "fetching from the upstream failed: cannot talk to https://host/x");
    }
}
