//! Why an upstream could not be used, of every kind of source. No text contains credentials or the user info of a URL.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::server_report::ServerReport;

/// Why an upstream is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// Its host is not listed.
    #[error("the host `{0}` is not allowed: `[upstreams] hosts` does not list it")]
    Host(String),
    /// Its address is not public.
    #[error(
        "the host `{0}` has no public address, and this repository may only use public addresses: list the host in \
         `[upstreams] hosts`, or set `[upstreams] private_addresses`"
    )]
    Address(String),
    /// Its name cannot be resolved here, so its addresses cannot be checked.
    #[error(
        "the host `{0}` is not allowed behind the proxy: its name cannot be resolved here, so the origin cannot check that \
         its address is public: list the host in `redirects` of the repository (in the configuration file), or in \
         `[upstreams] hosts`"
    )]
    Unresolved(String),
}

/// Which server gave an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// The upstream itself.
    Upstream,
    /// The server that issues the tokens of a registry, by its host.
    TokenService(String),
    /// Another one to which the upstream refers, by its host: the storage of its archives, for example.
    Other(String),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream => f.write_str("the upstream"),
            Self::TokenService(host) => write!(f, "the token service `{host}`"),
            Self::Other(host) => write!(f, "the host `{host}`"),
        }
    }
}

/// Why an upstream could not be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UpstreamError {
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
        /// [`crate::RepositoryConfig::stall_timeout`].
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
    #[error("the upstream denies access: {0}")]
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
    #[error("the upstream has no such repository, or hides it without the right credentials: {cause}")]
    NotFound {
        /// `list refs`, `list`, `verify`, `fetch` or `lfs`.
        step: &'static str,
        /// The cause.
        cause: String,
    },
    /// The upstream violated the protocol, or the connection broke.
    #[error("{} failed: {cause}", describe_step(step))]
    Protocol {
        /// `list refs`, `list`, `verify`, `fetch` or `lfs`.
        step: &'static str,
        /// The cause.
        cause: String,
    },
    /// A server sent an HTTP status other than 200.
    #[error("{server} answered {status}: {}{report}", describe_status(*status))]
    HttpStatus {
        /// Which one.
        server: Server,
        /// `list refs`, `list`, `verify`, `fetch` or `lfs`.
        step: &'static str,
        /// The status.
        status: u16,
        /// The pause that it demands (`Retry-After`).
        retry_after: Option<Duration>,
        /// What it says about it.
        report: ServerReport,
    },
    /// The list of what the upstream has is larger than its limit.
    #[error("the {list} has more than `{key}` = {limit} bytes: raise it, or use a smaller repository")]
    ListTooLarge {
        /// What is listed: `index`.
        list: &'static str,
        /// The configuration key.
        key: &'static str,
        /// Its value.
        limit: u64,
    },
    /// The repository of a registry has too many tags.
    #[error(
        "the repository has more than `[upstreams] max_tags` = {0} tags: raise it, or follow a tag instead of a range"
    )]
    TooManyTags(usize),
    /// The list of what the upstream has is invalid.
    #[error("`{name}` cannot be read: {cause}")]
    InvalidList {
        /// The name of the file.
        name: &'static str,
        /// The cause, with a line.
        cause: String,
    },
    /// A response arrives more slowly than the minimum rate.
    #[error(
        "the upstream is too slow: {bytes} bytes in {} s; `[upstreams] min_rate` = {min_rate} bytes per second",
        within.as_secs()
    )]
    TooSlow {
        /// The step that waited.
        step: &'static str,
        /// The received bytes.
        bytes: u64,
        /// The time in which they were received.
        within: Duration,
        /// [`min_rate`](crate::UpstreamsConfig::min_rate).
        min_rate: u64,
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
    /// This process cannot open connections at all.
    #[error("connections to upstreams cannot be opened: {0}")]
    Runtime(io::ErrorKind),
    /// The poll was interrupted.
    #[error("the poll was interrupted")]
    Interrupted,
}

impl UpstreamError {
    /// Whether the error is a timeout.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Stalled { .. } | Self::TooSlow { .. } | Self::Connect { timeout: true, .. })
    }

    /// The failed step: `connect`, `authenticate`, `list refs`, `list`, `verify`, `fetch` or `lfs`.
    pub fn step(&self) -> &'static str {
        match self {
            Self::UnsupportedUrl { .. }
            | Self::NotAllowed(_)
            | Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Trust(_)
            | Self::File { .. }
            | Self::Runtime(_)
            | Self::Redirected { .. } => "connect",
            Self::Authenticate(_) => "authenticate",
            Self::ListTooLarge { .. } | Self::TooManyTags(_) | Self::InvalidList { .. } => "list",
            Self::NotFound { step, .. }
            | Self::TooSlow { step, .. }
            | Self::Stalled { step, .. }
            | Self::Protocol { step, .. }
            | Self::HttpStatus { step, .. } => step,
            Self::Interrupted => "fetch",
        }
    }

    /// The kind of the error, for metrics and alerts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::UnsupportedUrl { .. } | Self::NotAllowed(_) => "not_allowed",
            Self::Resolve { .. } => "dns",
            Self::Stalled { .. } | Self::TooSlow { .. } | Self::Connect { timeout: true, .. } => "timeout",
            Self::Connect { .. } => "connect",
            Self::Trust(_) => "trust",
            Self::Authenticate(_) | Self::HttpStatus { status: 407, .. } => "authenticate",
            Self::Redirected { .. } => "redirect",
            Self::NotFound { .. } => "not_found",
            Self::HttpStatus { status: 403 | 429, .. } => "rate_limit",
            Self::HttpStatus { status: 500..=599, .. } => "server_error",
            Self::ListTooLarge { .. } | Self::TooManyTags(_) => "limit",
            Self::HttpStatus { .. } | Self::Protocol { .. } | Self::InvalidList { .. } => "protocol",
            Self::File { .. } | Self::Runtime(_) => "local",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether another host than the upstream and its token service answered.
    pub fn is_of_other_host(&self) -> bool {
        matches!(self, Self::HttpStatus { server: Server::Other(_), .. })
    }

    /// The same error, of a connection to this host, to which the upstream refers.
    pub(crate) fn at_host(mut self, host: &str) -> Self {
        if let Self::Connect { cause, .. } | Self::Trust(cause) | Self::Protocol { cause, .. } = &mut self {
            *cause = format!("`{host}`: {cause}");
        }
        self
    }

    /// The same error, as the answer of a token service.
    pub fn of_token_service(mut self, host: &str) -> Self {
        if let Self::HttpStatus { server, .. } = &mut self {
            *server = Server::TokenService(host.to_owned());
        }
        self
    }

    /// The `Retry-After` of the server that answered, up to a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::HttpStatus { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The error of a file that cannot be read. `key`: the configuration key that names it.
    pub fn unread(key: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::file(key, file, format!("cannot be read: {cause}"))
    }

    /// Messages contain the name of a file, but not its directory.
    pub fn file(key: &'static str, file: &Path, cause: impl Into<String>) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::File { key, name, cause: cause.into() }
    }
}

/// A step for messages.
fn describe_step(step: &str) -> &'static str {
    match step {
        "fetch" => "fetching from the upstream",
        "lfs" => "requesting LFS objects from the upstream",
        "list" => "listing the upstream's versions",
        "verify" => "fetching signatures from the upstream",
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
        _ => "the protocol does not expect this status",
    }
}
