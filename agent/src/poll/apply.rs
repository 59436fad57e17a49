//! From the result of a poll to a switch.

use std::time::Instant;

use weir_release::{Created, ReleaseError, ReleaseName, ReleaseRecord, ServiceDirectory, TarError, TarRecord};

use super::error::PollError;
use super::follower::{Follower, Outcome, SwitchReason};
use super::ready::Ready;
use super::request::PollResult;
use crate::fetch::{Tarball, TarballHeaders};
use crate::status::Activity;

/// A release that is complete on disk.
#[derive(Debug)]
enum Prepared {
    /// It is current and unmodified.
    Current,
    Ready(Created, SwitchReason, Option<TarRecord>),
}

impl Follower {
    /// Applies the result of a poll to the disk; `None` when it was interrupted. `changed`: the reason of a switch to
    /// other content.
    pub(super) async fn apply(
        &mut self,
        found: PollResult,
        changed: SwitchReason,
    ) -> Option<Result<Outcome, PollError>> {
        let (transfer, manifest);
        let (prepared, answer) = match found.refreshed() {
            PollResult::Unchanged(answer) => {
                // An edge that lags says nothing about the release that was refused.
                self.veto.take_if(|veto| veto.generation <= answer.generation);
                let confirmed = self.on_disk(move |directory| confirm(directory, &answer)).await;
                return Some(confirmed.map(|()| Outcome::Unchanged).map_err(PollError::from));
            }
            PollResult::Held(answer) => {
                let offered = answer.digest;
                self.status.send_modify(|status| {
                    status.pinned.as_mut().into_iter().for_each(|pinned| pinned.offered = offered);
                });
                return Some(Ok(Outcome::Unchanged));
            }
            PollResult::Staged(..) => return Some(Ok(Outcome::Unchanged)),
            PollResult::Unpacked(name, answer) => {
                let state = self.directory.state();
                let why = if state.release.is_none() { SwitchReason::First } else { SwitchReason::Changed };
                let ready = self.take_ready(name);
                (transfer, manifest) = (ready.transfer, ready.manifest);
                (Prepared::Ready(name.into(), why, ready.tar), answer)
            }
            PollResult::Fetched(mut tarball, answer) => {
                let expected = answer.clone();
                (transfer, manifest) = (Some(tarball.transfer), tarball.manifest.take());
                let started = Instant::now();
                let prepared = self.on_disk(move |directory| prepare(directory, &tarball, &expected, changed)).await;
                self.parts.unpack = started.elapsed();
                match prepared {
                    Ok(prepared) => (prepared, answer),
                    Err(error) => return Some(Err(error.into())),
                }
            }
        };
        let Prepared::Ready(Created { name, sync }, why, tar) = prepared else { return Some(Ok(Outcome::Unchanged)) };
        (self.parts.unpack, self.parts.sync) = (self.parts.unpack.saturating_sub(sync), sync);
        let record = record(name, tar, &answer);
        // A repair restores content that has passed, and a rollback goes to what somebody has chosen.
        if !matches!(why, SwitchReason::Repaired | SwitchReason::RolledBack) {
            if let Some(waits) = self.waits().map(PollError::from) {
                self.poller.metrics.attempt_failed(waits.kind());
                self.ready = Some(Ready { name, tar: record.tar, manifest, transfer });
                return Some(Err(waits));
            }
            if let Err(error) = self.check(&record).await? {
                return Some(Err(error));
            }
        }
        // Somebody may have pinned the service while it was fetched or checked.
        let digest = record.directory.digest();
        let pinned = self.on_disk(move |directory| directory.is_pinned_elsewhere(digest)).await;
        match pinned {
            Ok(false) => {}
            Ok(true) => return Some(Ok(Outcome::Unchanged)),
            Err(error) => return Some(Err(error.into())),
        }
        (self.veto, self.ready) = (None, None);
        self.show(Activity::Switching);
        let started = Instant::now();
        let switched = self.on_disk(move |directory| directory.switch(&record)).await;
        self.parts.switch = started.elapsed();
        if switched.is_ok() {
            self.prune().await;
        }
        if let Some(manifest) = manifest.filter(|_| switched.is_ok())
            && let Err(error) = self.on_disk(move |directory| directory.store_frames(digest, &manifest)).await
        {
            tracing::warn!(service = %self.poller.service, %error, "the frames of a release cannot be stored");
        }
        Some(switched.map(|()| Outcome::Switched(why, transfer)).map_err(PollError::from))
    }

    /// Removes old releases. No part of the switch: readers have the new one.
    async fn prune(&self) {
        let prune = |directory: &ServiceDirectory| {
            directory.prune();
            Ok(())
        };
        if let Err(error) = self.on_disk(prune).await {
            tracing::warn!(service = %self.poller.service, %error, "old releases are removed later");
        }
    }

    /// Runs the check, unless it refused this content a moment ago; `None` when it was interrupted.
    async fn check(&mut self, record: &ReleaseRecord) -> Option<Result<(), PollError>> {
        let Some(check) = &self.check else { return Some(Ok(())) };
        let refused = self.veto.as_ref().filter(|veto| !veto.allows(record.directory, Instant::now()));
        if let Some(veto) = refused {
            return Some(Err(PollError::from(veto)));
        }
        self.show(Activity::Checking);
        let started = Instant::now();
        let result = tokio::select! {
            () = self.interrupted() => return None,
            result = check.run(&self.directory, record.clone(), self.veto.as_ref()) => result,
        };
        self.parts.check = started.elapsed();
        if result.is_err() {
            self.poller.metrics.attempt_failed("check");
        }
        Some(result.map_err(|veto| {
            let failed = PollError::from(&veto);
            self.veto = Some(veto);
            failed
        }))
    }
}

fn record(directory: ReleaseName, tar: Option<TarRecord>, answer: &TarballHeaders) -> ReleaseRecord {
    ReleaseRecord {
        directory,
        tar,
        generation: answer.generation,
        commit: answer.commit.clone(),
        revision_id: answer.revision_id.clone(),
        version: answer.version.clone(),
    }
}

/// Records that the release is current, perhaps under a new generation and revision.
fn confirm(directory: &ServiceDirectory, answer: &TarballHeaders) -> Result<(), ReleaseError> {
    let current = directory.state().release.map(|release| record(release.directory, release.tar, answer));
    directory.confirm(answer.generation, current)
}

/// Makes a complete release of a tarball, unless it is in force and unmodified.
fn prepare(
    directory: &ServiceDirectory,
    tarball: &Tarball,
    answer: &TarballHeaders,
    changed: SwitchReason,
) -> Result<Prepared, ReleaseError> {
    let current = directory.state().release.map(|release| release.directory);
    let (why, first_name) = match current {
        None if changed != SwitchReason::RolledBack => (SwitchReason::First, 0),
        Some(current) if current.digest() == tarball.digest => match directory.compare(&tarball.file, current)? {
            None if directory.points_at(current)? => {
                confirm(directory, answer)?;
                return Ok(Prepared::Current);
            }
            None => {
                tracing::warn!(digest = %tarball.digest, "`current` does not point at the release");
                (SwitchReason::Repaired, 0)
            }
            Some(difference) => {
                tracing::warn!(digest = %tarball.digest, %difference, "the files on disk were modified");
                (SwitchReason::Repaired, 1)
            }
        },
        _ => (changed, 0),
    };
    // A repair trusts no file on disk.
    let before = current.filter(|_| why != SwitchReason::Repaired);
    let created = directory.create_release(&tarball.file, tarball.digest, first_name, before)?;
    let tar = TarRecord::of(&tarball.file).map_err(TarError::Read)?;
    Ok(Prepared::Ready(created, why, tar))
}
