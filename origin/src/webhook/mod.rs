//! What a Git service tells of a push, and whether it is to be believed. Pure: headers and bytes come in, a verdict goes
//! out.
//!
//! Nothing of a body is read before its signature was found to be right. A delivery does no more than ask for a poll, so
//! one that is sent again by somebody who overheard it does no harm; and where its meaning is unclear the answer is a
//! poll, because a needless one costs the upstream two requests, and a missing one a deployment.

mod bitbucket;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generic;
mod gitea;
mod github;
mod gitlab;
mod signature;

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;

pub use signature::Secret;
use signature::{Check, Proof};

/// The largest body that is parsed, in bytes. Of a larger one the signature alone is checked, and the repository is polled.
const MAX_PARSED_BYTES: usize = 1 << 20;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// GitHub, in the cloud or one's own.
    Github,
    /// GitLab: project, group and system hooks.
    Gitlab,
    /// Gitea and Forgejo.
    Gitea,
    /// Bitbucket Cloud and Data Center.
    Bitbucket,
    /// Whoever signs the body with the secret.
    Generic,
}

/// No provider of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's provider is one of github, gitlab, gitea, bitbucket, generic")]
pub struct UnknownProvider;

impl Provider {
    /// All there are.
    pub const ALL: [Self; 5] = [Self::Github, Self::Gitlab, Self::Gitea, Self::Bitbucket, Self::Generic];

    /// The word in the path and for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitlab => "gitlab",
            Self::Gitea => "gitea",
            Self::Bitbucket => "bitbucket",
            Self::Generic => "generic",
        }
    }

    /// How a delivery proves that its sender knows the secret.
    fn proof(self, headers: &HeaderMap) -> Proof {
        match self {
            Self::Github => github::proof(headers),
            Self::Gitlab => gitlab::proof(headers),
            Self::Gitea => gitea::proof(headers),
            Self::Bitbucket => bitbucket::proof(headers),
            Self::Generic => generic::proof(headers),
        }
    }

    /// What it says happened.
    fn parse(self, event: &str, body: &[u8]) -> Notification {
        match self {
            Self::Github => github::parse(event, body),
            Self::Gitlab => gitlab::parse(body),
            Self::Gitea => gitea::parse(event, body),
            Self::Bitbucket => bitbucket::parse(event, body),
            Self::Generic => generic::parse(body),
        }
    }

    /// The headers that name the event; the first that is there counts.
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

/// What a delivery whose signature is right says.
#[derive(Debug, PartialEq, Eq)]
enum Notification {
    /// Is anybody there?
    Ping,
    /// Something that moves no ref.
    OtherEvent,
    /// These refs moved, came or went; full names.
    RefsMoved(Vec<String>),
    /// It may be anything.
    Unclear,
}

/// What is to be done about a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Poll the repository.
    Kick {
        /// The refs that are said to have moved; empty when that is not known.
        refs: Vec<String>,
    },
    /// It is genuine and needs nothing.
    Ignored(Ignored),
    /// It is not genuine, or nobody can tell.
    Refused,
}

/// Why a genuine delivery needs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// It is a test by whoever set up the webhook.
    Ping,
    /// Its event moves no ref.
    OtherEvent,
    /// No service follows the refs that moved.
    NotFollowed,
}

impl Verdict {
    /// The word for metrics and answers.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Kick { .. } => "triggered",
            Self::Ignored(Ignored::Ping) => "ping",
            Self::Ignored(Ignored::OtherEvent) => "other_event",
            Self::Ignored(Ignored::NotFollowed) => "not_followed",
            Self::Refused => "refused",
        }
    }
}

/// A delivery whose body is still coming.
pub struct Delivery {
    provider: Provider,
    event: String,
    check: Check,
    body: Vec<u8>,
    length: usize,
}

impl Delivery {
    /// A delivery with these headers, for a repository with these secrets. Without any it will be refused, after the same
    /// work: who asks for a repository that is not there learns nothing from the time it takes.
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

    /// Whether these headers bring any proof at all: nobody need read the body of a delivery without.
    pub fn has_proof(provider: Provider, headers: &HeaderMap) -> bool {
        provider.proof(headers).is_there()
    }

    /// The next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.check.push(bytes);
        let room = MAX_PARSED_BYTES - self.body.len();
        self.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len();
    }

    /// The body is whole. `may_concern` says whether a ref, by its full name, may be one that somebody follows.
    pub fn judge(self, may_concern: impl Fn(&str) -> bool) -> Verdict {
        if !self.check.holds() {
            return Verdict::Refused;
        }
        if self.length > self.body.len() {
            return Verdict::Kick { refs: Vec::new() };
        }
        match self.provider.parse(&self.event, &self.body) {
            Notification::Ping => Verdict::Ignored(Ignored::Ping),
            Notification::OtherEvent => Verdict::Ignored(Ignored::OtherEvent),
            Notification::RefsMoved(refs) if refs.is_empty() => Verdict::Kick { refs },
            Notification::RefsMoved(refs) if refs.iter().any(|name| may_concern(name)) => Verdict::Kick { refs },
            Notification::RefsMoved(_) => Verdict::Ignored(Ignored::NotFollowed),
            Notification::Unclear => Verdict::Kick { refs: Vec::new() },
        }
    }
}

/// One ref by its full name. What is no such name is unclear.
fn moved(name: String) -> Notification {
    if name.starts_with("refs/") { Notification::RefsMoved(vec![name]) } else { Notification::Unclear }
}

/// The full name of a branch or a tag.
fn full_name(kind: &str, name: &str) -> Option<String> {
    match kind {
        "branch" => Some(format!("refs/heads/{name}")),
        "tag" => Some(format!("refs/tags/{name}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
