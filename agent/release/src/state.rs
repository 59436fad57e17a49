//! The persistent state of a service, besides the symlink `current`. Pure; [`super::directory`] writes the file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_protocol::commit_id::CommitId;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;

use crate::name::ReleaseName;
use crate::tar_record::TarRecord;

const VERSION: u32 = 1;

/// The records of releases that are kept besides the current and the previous one, at most.
const MAX_EARLIER: usize = 16;

/// A release and the publication that an edge last confirmed for it.
///
/// Unknown fields are ignored, here and in [`State`]: a newer agent may have written them, and a file that counts as
/// damaged would reset the highest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRecord {
    /// The name of its directory.
    pub directory: ReleaseName,
    /// The generation last confirmed; 0 when it is unknown.
    pub generation: u64,
    /// The commit of that generation; `None` when it is unknown, or the revision is no commit.
    pub commit: Option<CommitId>,
    /// The revision of that generation, for any kind of source; `None` when it is unknown.
    #[serde(default)]
    pub revision_id: Option<RevisionId>,
    /// The version of that revision, if its source names it by one.
    #[serde(default)]
    pub version: Option<SourceVersion>,
    /// Its tar, which deltas may refer to; `None` when it is unknown or too large.
    #[serde(default)]
    pub tar: Option<TarRecord>,
}

/// Whether `exec` has run for the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookProgress {
    /// It has to run, or to run again.
    Pending,
    /// It succeeded.
    Done,
}

/// A pending run of `exec`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookJob {
    /// The release in force.
    pub release: ReleaseRecord,
    /// The release for which the hook last succeeded.
    pub previous: Option<ReleaseRecord>,
    /// Failed runs for this release.
    pub attempts: u32,
}

/// The contents of the file `state`. Unknown fields are ignored: they must not cost the highest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The highest generation seen, also of earlier releases: lower ones are rejected.
    pub highest_generation: u64,
    /// The release in force.
    pub release: Option<ReleaseRecord>,
    /// The one before it.
    pub previous: Option<ReleaseRecord>,
    /// Releases before the previous one, newest first: a rollback finds their generations and revisions here.
    #[serde(default)]
    pub earlier: Vec<ReleaseRecord>,
    /// The release before the current one for which the hook last succeeded.
    #[serde(default)]
    pub applied: Option<ReleaseRecord>,
    /// Whether `exec` has run for the release in force.
    pub hook: HookProgress,
    /// Failed runs of `exec` for this release.
    pub hook_attempts: u32,
    /// The hash of the hooks that last succeeded: `--once` runs others again.
    #[serde(default)]
    pub hooks: Option<String>,
    /// The hash of the labels with which the hooks last succeeded.
    #[serde(default)]
    pub labels: Option<String>,
    /// Unix seconds. Written along with other changes, so it may lag behind.
    last_success: Option<u64>,
    /// Unix seconds of the last successful `exec`, for any release.
    #[serde(default)]
    hook_last_success: Option<u64>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            highest_generation: 0,
            release: None,
            previous: None,
            earlier: Vec::new(),
            applied: None,
            hook: HookProgress::Done,
            hook_attempts: 0,
            hooks: None,
            labels: None,
            last_success: None,
            hook_last_success: None,
        }
    }
}

/// A state file of which nothing can be used.
#[derive(Debug, thiserror::Error)]
#[error("the state file is damaged: {0}")]
pub struct StateError(#[from] serde_json::Error);

impl State {
    /// Reads a state. Of another version, or of one that this agent cannot read in full, the highest generation is kept:
    /// every version has it under this name. The rest is then repaired to match the symlink.
    ///
    /// # Errors
    /// The highest generation is not in it.
    pub fn parse(bytes: &[u8]) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        struct EveryVersion {
            version: u64,
            highest_generation: u64,
        }
        let EveryVersion { version, highest_generation } = serde_json::from_slice(bytes)?;
        match serde_json::from_slice(bytes) {
            Ok(state) if version == u64::from(VERSION) => Ok(state),
            _ => Ok(Self { highest_generation, ..Self::default() }),
        }
    }

    /// The contents of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a state is plain data");
        bytes.push(b'\n');
        bytes
    }

    /// The state after a switch to `record`. Written before the symlink changes, so that a crash cannot lose a run of
    /// `exec`.
    pub fn switched_to(&self, record: ReleaseRecord) -> Self {
        let mut earlier = self.earlier.clone();
        earlier.splice(0..0, self.previous.clone());
        let is_named = |earlier: &ReleaseRecord| {
            [Some(&record), self.release.as_ref()].into_iter().flatten().any(|r| r.directory == earlier.directory)
        };
        earlier.retain(|earlier| !is_named(earlier));
        earlier.truncate(MAX_EARLIER);
        Self {
            highest_generation: self.highest_generation.max(record.generation),
            previous: self.release.clone(),
            earlier,
            applied: self.last_applied().cloned(),
            release: Some(record),
            hook: HookProgress::Pending,
            hook_attempts: 0,
            ..self.clone()
        }
    }

    /// The highest generation seen, without those above `credible`: no origin gave them out. Then the records tell.
    pub fn highest_generation_within(&self, credible: u64) -> u64 {
        let records = [&self.release, &self.previous, &self.applied].into_iter().flatten().chain(&self.earlier);
        let seen = records.map(|record| record.generation).chain([self.highest_generation]);
        seen.filter(|generation| *generation <= credible).max().unwrap_or(0)
    }

    /// What is known of a release on disk, or of another copy of its content.
    pub fn record_of(&self, name: ReleaseName) -> ReleaseRecord {
        let mut records = [&self.release, &self.previous, &self.applied].into_iter().flatten().chain(&self.earlier);
        match records.find(|record| record.directory.digest() == name.digest()) {
            Some(known) => ReleaseRecord { directory: name, ..known.clone() },
            None => ReleaseRecord {
                directory: name,
                generation: 0,
                commit: None,
                revision_id: None,
                version: None,
                tar: None,
            },
        }
    }

    /// Repairs the state to match the symlink, which is authoritative. `None` when they match.
    pub fn repaired(&self, link: Option<ReleaseName>) -> Option<Self> {
        if self.release.as_ref().map(|release| release.directory) == link {
            return None;
        }
        let Some(name) = link else { return Some(self.without_release()) };
        // When the state was lost, the release is intact all the same: it was verified before it got its name.
        let release = Some(self.record_of(name));
        Some(Self { release, hook: HookProgress::Pending, ..self.without_release() })
    }

    /// The state after somebody deleted the release.
    pub fn without_release(&self) -> Self {
        let earlier =
            self.release.iter().chain(&self.previous).chain(&self.earlier).take(MAX_EARLIER).cloned().collect();
        Self { release: None, previous: None, earlier, hook: HookProgress::Done, hook_attempts: 0, ..self.clone() }
    }

    /// The pending run of `exec`, if any.
    pub fn hook_job(&self) -> Option<HookJob> {
        let release = self.release.clone().filter(|_| self.hook == HookProgress::Pending)?;
        Some(HookJob { release, previous: self.applied.clone(), attempts: self.hook_attempts })
    }

    /// The release for which `exec` last succeeded.
    pub fn last_applied(&self) -> Option<&ReleaseRecord> {
        match self.hook {
            HookProgress::Done => self.release.as_ref(),
            HookProgress::Pending => self.applied.as_ref(),
        }
    }

    /// When an edge last confirmed the release, as of the last write.
    pub fn last_success(&self) -> Option<SystemTime> {
        self.last_success.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// An edge confirmed the release, or sent it.
    pub fn succeeded(&mut self, now: SystemTime) {
        self.last_success = seconds(now);
    }

    /// When `exec` last succeeded, as of the last write.
    pub fn hook_last_success(&self) -> Option<SystemTime> {
        self.hook_last_success.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Lets the hooks run again for the release, unless it is these that have succeeded.
    pub fn require_hooks(&mut self, hooks: &str) {
        if self.release.is_some() && self.hook == HookProgress::Done && self.hooks.as_deref() != Some(hooks) {
            (self.hook, self.hook_attempts) = (HookProgress::Pending, 0);
        }
    }

    /// Whether the hooks have to run again for the release, because it is with other labels that they have succeeded.
    pub fn requires_labels(&self, labels: &str) -> bool {
        self.release.is_some() && self.hook == HookProgress::Done && self.labels.as_deref() != Some(labels)
    }

    /// Marks the hooks as pending if they last succeeded with other labels. With these nothing has been applied yet.
    pub fn require_labels(&mut self, labels: &str) {
        if self.requires_labels(labels) {
            (self.hook, self.hook_attempts, self.applied) = (HookProgress::Pending, 0, None);
        }
    }

    /// `hooks`: the hash of those that ran. `labels`: that of the labels that they got.
    pub fn hook_ended(&mut self, succeeded: bool, hooks: &str, labels: Option<&str>, now: SystemTime) {
        if succeeded {
            self.hook = HookProgress::Done;
            self.hooks = Some(hooks.to_owned());
            self.labels = labels.map(str::to_owned);
            self.hook_last_success = seconds(now);
        } else {
            self.hook_attempts = self.hook_attempts.saturating_add(1);
        }
    }
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::digest::TarballDigest;

    fn record(content: &[u8], generation: u64) -> ReleaseRecord {
        let commit = "a".repeat(40).parse().unwrap();
        let revision_id = Some(RevisionId::from(&commit));
        let directory = ReleaseName::new(TarballDigest::of(content), 0);
        ReleaseRecord { directory, generation, commit: Some(commit), revision_id, version: None, tar: None }
    }

    fn two() -> State {
        let mut state = State::default().switched_to(record(b"one", 5));
        state.hook = HookProgress::Done;
        state.switched_to(record(b"two", 7))
    }

    #[test]
    fn the_state_round_trips() {
        let mut state = two();
        state.succeeded(UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert_eq!(State::parse(&state.to_bytes()).unwrap(), state);
    }

    #[test]
    fn hooks_compare_with_the_last_success_and_rollbacks_find_their_records() {
        let mut state = State::default().switched_to(record(b"one", 1));
        assert_eq!(state.hook_job().unwrap().previous, None);
        state.hook_ended(true, "a", None, UNIX_EPOCH);
        state = state.switched_to(record(b"two", 2));
        assert_eq!(state.hook_job().unwrap().previous, Some(record(b"one", 1)));
        state.hook_ended(false, "a", None, UNIX_EPOCH);
        state = state.switched_to(record(b"three", 3));
        assert_eq!(state.hook_job().unwrap().previous, Some(record(b"one", 1)), "the second never succeeded");
        state = state.switched_to(record(b"four", 4));
        assert_eq!(state.earlier, [record(b"two", 2), record(b"one", 1)]);
        // Back to the first.
        let known = state.record_of(record(b"one", 0).directory);
        assert_eq!(known, record(b"one", 1));
        state = state.switched_to(known);
        assert_eq!((state.highest_generation, state.release.as_ref().unwrap().generation), (4, 1));
        assert_eq!(state.earlier, [record(b"three", 3), record(b"two", 2)]);
        assert_eq!(state.record_of(record(b"unknown", 5).directory).generation, 0);
        // A generation of the far future.
        let lied = state.switched_to(record(b"lie", u64::MAX));
        assert_eq!((lied.highest_generation, lied.highest_generation_within(1000)), (u64::MAX, 4));
        for number in 10..100 {
            state = state.switched_to(record(&[number], u64::from(number)));
        }
        assert_eq!(state.earlier.len(), MAX_EARLIER);
    }

    #[test]
    fn other_labels_let_the_hooks_run_again_with_all_paths() {
        let mut state = two();
        state.require_labels("canary");
        assert!(!state.requires_labels("canary"), "a run is due in any case");
        state.hook_ended(true, "a", Some("canary"), UNIX_EPOCH);
        state.require_labels("canary");
        assert_eq!(state.hook_job(), None);
        state.require_labels("all");
        let job = state.hook_job().unwrap();
        assert_eq!((job.release, job.previous), (record(b"two", 7), None));
        let mut none = State::default();
        none.require_labels("all");
        assert_eq!(none, State::default(), "there is no release");
    }

    #[test]
    fn files_of_earlier_and_later_agents_keep_the_highest_generation() {
        let text = String::from_utf8(two().to_bytes()).unwrap();
        assert_eq!(text.matches("\"tar\": null").count(), 3, "of the release, the previous and the applied one");
        let earlier = text.replace(",\n    \"tar\": null", "");
        assert_ne!(earlier, text);
        assert_eq!(State::parse(earlier.as_bytes()).unwrap(), two());
        let later = text.replace("\"tar\": null", "\"tar\": null, \"later\": 1");
        assert_eq!(State::parse(later.as_bytes()).unwrap().highest_generation, 7);
    }

    #[test]
    fn the_state_is_repaired_to_match_the_symlink() {
        let state = two();
        let name = |content: &[u8]| Some(record(content, 0).directory);
        assert_eq!(state.repaired(name(b"two")), None);
        // Killed between state and symlink: the previous release is in force, and its `exec` runs again.
        let repaired = state.repaired(name(b"one")).unwrap();
        assert_eq!((repaired.release, repaired.hook), (Some(record(b"one", 5)), HookProgress::Pending));
        assert_eq!(repaired.highest_generation, 7, "it never decreases");
        let repaired = State::default().repaired(name(b"one")).unwrap();
        assert_eq!((repaired.release.unwrap().generation, repaired.hook), (0, HookProgress::Pending));
        // The symlink was never created, or was removed.
        let repaired = state.repaired(None).unwrap();
        assert_eq!((repaired.release, repaired.hook, repaired.highest_generation), (None, HookProgress::Done, 7));
        assert_eq!(State::default().repaired(None), None);
    }
}
