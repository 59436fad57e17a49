//! The lines of a history's segments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::request::Author;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_source::StepBack;

const LAST_SECOND: u64 = 253_402_300_799;

/// The reason for a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The ref moved to its commit.
    Followed,
    /// The ref moved back to it, and every poll for `step_back_after` confirmed that.
    SteppedBack,
    /// The ref moved back to it, and an operator's refresh found that.
    Refreshed,
    /// The ref moved back to it, as a webhook said.
    NamedByWebhook,
    /// An operator rolled back to it.
    RolledBack,
    /// The operator raised the floor of generations above the old one.
    FloorRaised,
    /// The clock was ahead, and the operator lowered the generations to it.
    Lowered,
}

impl From<Option<StepBack>> for Why {
    fn from(stepped_back: Option<StepBack>) -> Self {
        match stepped_back {
            None => Self::Followed,
            Some(StepBack::Polls) => Self::SteppedBack,
            Some(StepBack::Refresh) => Self::Refreshed,
            Some(StepBack::Webhook) => Self::NamedByWebhook,
        }
    }
}

/// A time between 1970 and 9999, cut to whole seconds; RFC 3339 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Time(SystemTime);

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let whole = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self(UNIX_EPOCH + Duration::from_secs(whole.min(LAST_SECOND)))
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
        time.0
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        humantime::format_rfc3339_seconds(time.0).to_string()
    }
}

impl TryFrom<String> for Time {
    type Error = humantime::TimestampError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        humantime::parse_rfc3339(&text).map(Self::from)
    }
}

/// One line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Service(ServiceLine),
    Tip(Tip),
}

/// A line about a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceLine {
    /// First, so that a reader of one service's lines can filter them by prefix.
    pub(crate) service: ServiceName,
    pub(crate) generation: Generation,
    #[serde(flatten)]
    pub(crate) event: LineEvent,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum LineEvent {
    Published {
        digest: TarballDigest,
        #[serde(flatten)]
        revision: Revision,
        published_at: Time,
        why: Why,
        by: Option<String>,
    },
    Pinned {
        at: Time,
        #[serde(flatten)]
        author: Author,
    },
    Unpinned {
        at: Time,
        #[serde(flatten)]
        author: Author,
    },
    /// Over this publication, which stays in force.
    Staged(StagingLine),
    /// By this publication.
    StagingEnded(StagingLine),
    /// It is this publication now.
    Promoted(StagingLine),
    /// An operator, or the ref, went back from it to this publication.
    Aborted(StagingLine),
    /// A stage of its rollout began, by its plan.
    StageBegun(StagingLine),
    /// Its rollout stopped by itself.
    Stopped(StagingLine),
    /// An operator paused its rollout.
    Paused(StagingLine),
    /// An operator let its rollout go on.
    Resumed(StagingLine),
    /// An operator let the next stage of its rollout begin.
    Approved(StagingLine),
}

/// Who ended what is staged, how and why.
pub(crate) struct Because {
    pub(crate) event: fn(StagingLine) -> LineEvent,
    pub(crate) author: Author,
}

impl From<Author> for Because {
    fn from(author: Author) -> Self {
        Self { event: LineEvent::StagingEnded, author }
    }
}

/// A staged version in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagingLine {
    pub(crate) at: Time,
    pub(crate) digest: TarballDigest,
    #[serde(flatten)]
    pub(crate) author: Author,
}

/// A revision in a line. That of Git is its commit alone, as in lines of former origins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "WrittenRevision", try_from = "WrittenRevision")]
pub(crate) struct Revision {
    pub(crate) id: RevisionId,
    pub(crate) version: Option<SourceVersion>,
    pub(crate) parts: Vec<Part>,
}

#[derive(Serialize, Deserialize)]
struct WrittenRevision {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<CommitId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision_id: Option<RevisionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<SourceVersion>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

impl From<Revision> for WrittenRevision {
    fn from(Revision { id, version, parts }: Revision) -> Self {
        let commit = id.commit();
        Self { revision_id: commit.is_none().then_some(id), commit, version, parts }
    }
}

impl TryFrom<WrittenRevision> for Revision {
    type Error = &'static str;

    fn try_from(WrittenRevision { commit, revision_id, version, parts }: WrittenRevision) -> Result<Self, Self::Error> {
        let id = revision_id.or_else(|| commit.as_ref().map(RevisionId::from));
        Ok(Self { id: id.ok_or("it has neither `revision_id` nor `commit`")?, version, parts })
    }
}

/// A tip of a followed ref, when all services of the ref had published it. Those that publish at a tip have lines of their
/// own, so this is written for tips that changed nothing of some service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tip {
    /// The ref. First, so that no reader of a service's lines takes it for one.
    pub(crate) tip: String,
    pub(crate) revision_id: RevisionId,
}

impl Line {
    pub(crate) fn published(descriptor: &Descriptor, why: Why, by: Option<String>) -> Self {
        let publication = descriptor.publication();
        let revision = Revision {
            id: publication.revision_id.clone(),
            version: publication.version.clone(),
            parts: publication.parts.clone(),
        };
        let (digest, published_at) = (publication.digest, publication.published_at.into());
        Self::of(descriptor, LineEvent::Published { digest, revision, published_at, why, by })
    }

    pub(crate) fn pinned(descriptor: &Descriptor, at: SystemTime, author: Author) -> Self {
        Self::of(descriptor, LineEvent::Pinned { at: at.into(), author })
    }

    pub(crate) fn unpinned(descriptor: &Descriptor, at: SystemTime, author: Author) -> Self {
        Self::of(descriptor, LineEvent::Unpinned { at: at.into(), author })
    }

    /// About a version that is staged, or was until then.
    pub(crate) fn of_staged(
        descriptor: &Descriptor,
        digest: TarballDigest,
        at: SystemTime,
        Because { event, author }: Because,
    ) -> Self {
        Self::of(descriptor, event(StagingLine { at: at.into(), digest, author }))
    }

    fn of(descriptor: &Descriptor, event: LineEvent) -> Self {
        let publication = descriptor.publication();
        let (service, generation) = (publication.service.clone(), publication.generation);
        Self::Service(ServiceLine { service, generation, event })
    }
}

/// A segment's bytes with more lines.
pub(crate) fn appended(segment: &[u8], lines: &[Line]) -> Bytes {
    let mut bytes = segment.to_vec();
    for line in lines {
        serde_json::to_writer(&mut bytes, line).expect("a line is plain data");
        bytes.push(b'\n');
    }
    bytes.into()
}
