//! Pure: whether a revision is a step back, and whether somebody asked for it. Time is an argument.

use std::time::{Duration, Instant, SystemTime};

use semver::Version;
use weir_protocol::revision_id::RevisionId;

/// How long a webhook's revision is published at once.
const NAMED_FOR: Duration = Duration::from_secs(600);

/// The most revisions that webhooks have named and no poll has found yet.
const MAX_NAMED: usize = 16;

/// What tells how old a revision is.
#[derive(Debug, Clone, Default)]
pub struct Age {
    /// When the last successful poll of its upstream began. `None`: there was none since the start.
    pub seen_at: Option<Instant>,
    /// The version for which a range chose it.
    pub version: Option<Version>,
    /// When the upstream made the list that has it.
    pub listed: Option<SystemTime>,
    /// Why it is older than what the service followed last, for operators.
    pub behind: Option<String>,
    /// Of a composed service: those of its parts.
    pub parts: Vec<Self>,
}

/// Why an older revision is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepBack {
    /// Every poll for `step_back_after` found it.
    Polls,
    /// An operator's refresh found it.
    Refresh,
    /// A webhook named it.
    Webhook,
}

/// What a service followed last, and what was asked for since.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// `None`: nothing since the start.
    pub(crate) last: Option<Last>,
    asked: Option<Asked>,
    named: Vec<(RevisionId, Instant)>,
}

/// What a service followed last.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    pub(crate) revision: RevisionId,
    pub(crate) version: Option<Version>,
    pub(crate) listed: Option<SystemTime>,
}

/// What an operator asked for.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// Another definition, or the end of a pin: whatever it follows now.
    Now,
    /// A refresh: what a later poll finds.
    PollAfter(Instant),
}

/// Whether a revision may be published without further polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes: it is no step back, or an operator changed what the service follows.
    Forward,
    /// Yes: somebody asked for it.
    Asked(StepBack),
    /// No.
    Back,
}

impl Standing {
    /// That of a service that an operator has just defined anew.
    pub(crate) fn redefined() -> Self {
        Self { asked: Some(Asked::Now), ..Self::default() }
    }

    /// An operator unpinned the service.
    pub(crate) fn ask(&mut self) {
        self.asked = Some(Asked::Now);
    }

    /// An operator asked for a poll.
    pub(crate) fn ask_for_poll(&mut self, now: Instant) {
        if !matches!(self.asked, Some(Asked::Now)) {
            self.asked = Some(Asked::PollAfter(now));
        }
    }

    /// Whether an operator's poll has not ended yet.
    pub(crate) fn awaits_poll(&self) -> bool {
        matches!(self.asked, Some(Asked::PollAfter(_)))
    }

    /// A webhook named a revision.
    pub(crate) fn name(&mut self, revision: RevisionId, now: Instant) {
        self.named.retain(|(known, _)| *known != revision);
        self.named.truncate(MAX_NAMED - 1);
        self.named.insert(0, (revision, now));
    }

    /// The service follows a revision.
    pub(crate) fn followed(&mut self, revision: &RevisionId, age: &Age) {
        let same = self.last.as_ref().filter(|last| last.revision == *revision);
        let listed = age.listed.max(same.and_then(|last| last.listed));
        self.last = Some(Last { revision: revision.clone(), version: age.version.clone(), listed });
    }

    /// What an operator asked for, and whether a webhook named the revision. Each counts once.
    pub(crate) fn take_request(&mut self, revision: &RevisionId, age: &Age, now: Instant) -> Option<Admission> {
        let is_named = self.named.iter().any(|(named, at)| named == revision && now.duration_since(*at) < NAMED_FOR);
        self.named.retain(|(named, at)| named != revision && now.duration_since(*at) < NAMED_FOR);
        let asked = match self.asked {
            Some(Asked::Now) => Some(Admission::Forward),
            Some(Asked::PollAfter(at)) if age.seen_at.is_some_and(|seen_at| seen_at >= at) => {
                Some(Admission::Asked(StepBack::Refresh))
            }
            Some(Asked::PollAfter(_)) | None => None,
        };
        if asked.is_some() {
            self.asked = None;
        }
        asked.or_else(|| is_named.then_some(Admission::Asked(StepBack::Webhook)))
    }
}

/// Why a revision is older than the last one, by its version and the list that has it.
pub(crate) fn behind(last: &Last, revision: &RevisionId, age: &Age) -> Option<String> {
    if last.revision == *revision {
        return None;
    }
    let lower = age.version.as_ref().zip(last.version.as_ref()).filter(|(version, last)| version < last);
    let older = age.listed.zip(last.listed).filter(|(listed, last)| listed < last);
    match (lower, older) {
        (Some((version, last)), _) => Some(format!("version {version} is lower than {last}")),
        (None, Some(_)) => Some("its index is older than the last one".to_owned()),
        (None, None) => None,
    }
}
