//! A service that `weir-agent rollback` holds at a release.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use weir_protocol::digest::TarballDigest;
use weir_release::{Pin, Pins, ReleaseError, ReleaseName};

use super::follower::{Follower, Outcome, SwitchReason};
use super::request::{LocalState, Wanted};
use crate::status::{Pinned, ServiceStatus};

impl Follower {
    /// Whether the status shows another pin than there is.
    pub(super) fn pin_has_changed(&mut self) -> bool {
        is_changed(self.pins.borrow_and_update().get(&self.poller.service), &self.status)
    }

    /// Ends when a download or a check is to be abandoned: the drain has begun, or the service was pinned or unpinned.
    pub(super) fn interrupted(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut pins, status, drain) = (self.pins.clone(), self.status.clone(), self.drain.clone());
        let service = self.poller.service.clone();
        async move {
            let is_other = |pins: &Arc<Pins>| is_changed(pins.get(&service), &status);
            tokio::select! {
                () = drain.begun() => {}
                Ok(_) = pins.wait_for(is_other) => {}
            }
        }
    }

    /// Restores the directory, and switches to the pinned release if it is on disk; returns the pin.
    pub(super) async fn follow_pin(&mut self) -> Result<Option<TarballDigest>, ReleaseError> {
        let changed = self.pin_has_changed();
        let service = &self.poller.service;
        let pin = self.pins.borrow().get(service).cloned().transpose().map_err(ReleaseError::Pin)?;
        if changed {
            match pin {
                Some(pin) => tracing::warn!(%service, digest = %pin.digest, "pinned: changes are not followed"),
                None => tracing::info!(%service, "not pinned any more"),
            }
            self.metrics.pinned.set(pin.is_some().into());
            let pinned = pin.map(|pin| Pinned { digest: pin.digest, since: pin.since, offered: None });
            self.status.send_modify(|status| status.pinned = pinned);
        }
        self.restore().await?;
        let Some(pin) = pin else { return Ok(None) };
        if !self.is_at(pin.digest) {
            self.veto = None;
            match self.on_disk(move |directory| directory.roll_back(pin.digest)).await {
                Ok(()) => self.switched(SwitchReason::RolledBack, None),
                // An edge may have it.
                Err(ReleaseError::NotKept { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(pin.digest))
    }

    fn is_at(&self, digest: TarballDigest) -> bool {
        self.directory.state().release.is_some_and(|release| release.directory.digest() == digest)
    }

    /// Fetches the pinned version if it is not on disk, or for a refresh, and repairs the release. Returns whether the poll goes
    /// on; `None` when it was interrupted.
    pub(super) async fn refresh_pinned(&mut self, digest: TarballDigest, refresh: bool) -> Option<bool> {
        if self.is_at(digest) && !refresh {
            return Some(true);
        }
        let wanted = Wanted::Retained(self.directory.state().record_of(ReleaseName::new(digest, 0)).into());
        let started = Instant::now();
        let asked = self.ask(LocalState::default(), &wanted).await;
        self.parts.fetch = started.elapsed();
        let applied = match asked? {
            Ok((found, _)) => self.apply(found, SwitchReason::RolledBack).await?,
            Err(failed) if failed.is_not_found() => match self.is_at(digest) {
                true => Ok(Outcome::Unchanged),
                false => Err(ReleaseError::NotKept { digest }.into()),
            },
            Err(failed) => {
                self.schedule.failed(refresh, failed.retry_after, Instant::now(), fastrand::f64());
                self.failed(&failed);
                return Some(false);
            }
        };
        match applied {
            Ok(Outcome::Unchanged) => {}
            Ok(Outcome::Switched(why, transfer)) => self.switched(why, transfer),
            Err(error) => {
                self.schedule.failed(refresh, None, Instant::now(), fastrand::f64());
                self.record_failure((&error).into(), None);
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Whether a status shows another pin. One that cannot be read changes nothing.
fn is_changed(pin: Option<&Result<Pin, String>>, status: &watch::Sender<ServiceStatus>) -> bool {
    let shown = status.borrow().pinned.as_ref().map(|pinned| (pinned.digest, pinned.since));
    match pin {
        Some(Err(_)) => false,
        Some(Ok(pin)) => shown != Some((pin.digest, pin.since)),
        None => shown.is_some(),
    }
}
