//! Pure: authenticates webhook deliveries and extracts the changed refs. Begin at [`Delivery`].
//!
//! No body is parsed before its signature is verified. A delivery only triggers a poll, and names the revision that this may
//! find, so replaying it is harmless.
//! An unclear payload triggers a poll too, because a needless poll costs the upstream two requests, and a missing one
//! delays a deployment.

mod bitbucket;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generic;
mod gitea;
mod github;
mod gitlab;
mod revisions;
mod signature;

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;

pub(crate) use generic::TOKEN;
pub use signature::Secret;
use signature::{Check, Proof};
use weir_protocol::revision_id::RevisionId;

/// The largest body that is parsed, in bytes. A larger one is only verified, and triggers a poll.
const MAX_PARSED_BYTES: usize = 1 << 20;

/// The Git service that sends a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// GitHub and GitHub Enterprise.
    Github,
    /// GitLab: project, group and system hooks.
    Gitlab,
    /// Gitea and Forgejo.
    Gitea,
    /// Bitbucket Cloud and Data Center.
    Bitbucket,
    /// Any sender that signs the body with the secret.
    Generic,
}

/// No provider has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's provider is one of github, gitlab, gitea, bitbucket, generic")]
pub struct UnknownProvider;

impl Provider {
    /// All providers.
    pub const ALL: [Self; 5] = [Self::Github, Self::Gitlab, Self::Gitea, Self::Bitbucket, Self::Generic];

    /// The value in paths and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitlab => "gitlab",
            Self::Gitea => "gitea",
            Self::Bitbucket => "bitbucket",
            Self::Generic => "generic",
        }
    }

    /// The proof in the headers.
    fn proof(self, headers: &HeaderMap) -> Proof {
        match self {
            Self::Github => github::proof(headers),
            Self::Gitlab => gitlab::proof(headers),
            Self::Gitea => gitea::proof(headers),
            Self::Bitbucket => bitbucket::proof(headers),
            Self::Generic => generic::proof(headers),
        }
    }

    /// Parses an authenticated body.
    fn parse(self, event: &str, body: &[u8]) -> Notification {
        match self {
            Self::Github => github::parse(event, body),
            Self::Gitlab => gitlab::parse(body),
            Self::Gitea => gitea::parse(event, body),
            Self::Bitbucket => bitbucket::parse(event, body),
            Self::Generic => generic::parse(body),
        }
    }

    /// The headers that name the event; the first one present counts.
    fn event_headers(self) -> &'static [&'static str] {
        match self {
            Self::Github => &["x-github-event"],
            Self::Gitea => &["x-forgejo-event", "x-gitea-event", "x-gogs-event"],
            Self::Bitbucket => &["x-event-key"],
            Self::Gitlab | Self::Generic => &[],
        }
    }
}

impl FromStr for Provider {
    type Err = UnknownProvider;

    fn from_str(text: &str) -> Result<Self, UnknownProvider> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == text).ok_or(UnknownProvider)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The content of an authenticated delivery.
#[derive(Debug, PartialEq, Eq)]
enum Notification {
    /// A test of the connection.
    Ping,
    /// An event that changes no ref.
    OtherEvent,
    /// These refs were changed, created or deleted; full names.
    RefsMoved(Vec<String>),
    /// Unknown; refs may have changed.
    Unclear,
}

/// The result of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryResult {
    /// Poll the repository.
    TriggerPoll {
        /// Full names of the refs that may have changed; empty if unknown.
        refs: Vec<String>,
        /// Where they are now, as far as the delivery says.
        revisions: Vec<RevisionId>,
    },
    /// The delivery is authentic, but needs no poll.
    Ignored(Ignored),
    /// The delivery is not authentic.
    Refused,
}

/// Why an authentic delivery needs no poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// It is a test of the webhook.
    Ping,
    /// Its event changes no ref.
    OtherEvent,
    /// No service follows the changed refs.
    NotFollowed,
}

impl DeliveryResult {
    /// The value in metrics and answers.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TriggerPoll { .. } => "triggered",
            Self::Ignored(Ignored::Ping) => "ping",
            Self::Ignored(Ignored::OtherEvent) => "other_event",
            Self::Ignored(Ignored::NotFollowed) => "not_followed",
            Self::Refused => "refused",
        }
    }
}

/// A delivery whose body is being received.
pub struct Delivery {
    provider: Provider,
    event: String,
    check: Check,
    body: Vec<u8>,
    length: usize,
}

impl Delivery {
    /// Starts a delivery for a repository with these secrets. Without secrets it is refused after the same amount of
    /// work, so that the response time does not reveal whether a repository exists.
    pub fn begin(provider: Provider, headers: &HeaderMap, secrets: &[Secret]) -> Self {
        let text = |name: &&str| headers.get(*name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self {
            provider,
            event: provider.event_headers().iter().find_map(text).unwrap_or_default(),
            check: Check::begin(provider.proof(headers), secrets),
            body: Vec::new(),
            length: 0,
        }
    }

    /// Whether the headers carry any proof. The body of a delivery without proof need not be read.
    pub fn has_proof(provider: Provider, headers: &HeaderMap) -> bool {
        provider.proof(headers).is_present()
    }

    /// Adds bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.check.push(bytes);
        let room = MAX_PARSED_BYTES - self.body.len();
        self.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len();
    }

    /// Finishes a delivery. `may_concern` returns whether a service may follow a ref, given by its full name; or with `None`,
    /// whether an event that moves no ref, such as a release, may change what a service follows.
    pub fn finish(self, may_concern: impl Fn(Option<&str>) -> bool) -> DeliveryResult {
        if !self.check.matches() {
            return DeliveryResult::Refused;
        }
        if self.length > self.body.len() {
            return DeliveryResult::TriggerPoll { refs: Vec::new(), revisions: Vec::new() };
        }
        let trigger = |refs| DeliveryResult::TriggerPoll { refs, revisions: revisions::parse(&self.body) };
        match self.provider.parse(&self.event, &self.body) {
            Notification::Ping => DeliveryResult::Ignored(Ignored::Ping),
            Notification::OtherEvent if may_concern(None) => trigger(Vec::new()),
            Notification::OtherEvent => DeliveryResult::Ignored(Ignored::OtherEvent),
            Notification::RefsMoved(refs) if refs.is_empty() || refs.iter().any(|name| may_concern(Some(name))) => {
                trigger(refs)
            }
            Notification::RefsMoved(_) => DeliveryResult::Ignored(Ignored::NotFollowed),
            Notification::Unclear => trigger(Vec::new()),
        }
    }
}

/// One changed ref. Anything but a full name is unclear.
fn moved(name: String) -> Notification {
    if name.starts_with("refs/") { Notification::RefsMoved(vec![name]) } else { Notification::Unclear }
}

/// The full name of a branch or tag.
fn full_name(kind: &str, name: &str) -> Option<String> {
    match kind {
        "branch" => Some(format!("refs/heads/{name}")),
        "tag" => Some(format!("refs/tags/{name}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
