//! The services that are followed now, with the newest status of each: written by the roster and by the task of each service,
//! read by all others.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use weir_protocol::batch_poll::BatchRow;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;
use weir_release::ServiceDirectory;
use weir_runtime::shutdown::Drain;

use crate::config::ServiceConfig;
use crate::dependencies::{Progress, Waiting, Waits, waits};
use crate::edge_client::Protocol;
use crate::metrics::ServiceGauge;
use crate::status::ServiceStatus;

/// The age of an answer beyond which the other edges are asked as well: the edge may be cut off from its origins.
pub(crate) const OLD: Duration = Duration::from_secs(30);

/// The most services whose upstreams are remembered as unreachable.
const MAX_UNREACHABLE: usize = 100_000;

/// A command to the task of a service.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Poll,
    Refresh,
    /// What an edge says about the service, in a batch poll or an event.
    Row(Box<ReceivedRow>),
}

/// A row, with the version of HTTP over which it came.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRow {
    pub(crate) row: BatchRow,
    pub(crate) protocol: Protocol,
    /// Over what a fetch that follows is spread, if not over the agent's own `spread`.
    pub(crate) spread: Option<Duration>,
}

/// A service that is followed.
pub(crate) struct Service {
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) commands: mpsc::Sender<Command>,
    /// The tasks of this service.
    pub(crate) part: Drain,
    /// Whether the origin cannot reach the upstream, by the events of an edge. `None`: signed statements say it.
    pub(crate) upstream_unreachable: Option<ServiceGauge>,
    /// What they run before and after a switch.
    pub(crate) hooks: ServiceConfig,
}

/// Why no edge said which services there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListError {
    pub(crate) message: String,
    /// Whether a retry may succeed without a change of configuration.
    pub(crate) is_retryable: bool,
}

/// The services that are followed now.
pub(crate) struct Services {
    followed: RwLock<BTreeMap<ServiceName, Service>>,
    /// Why no edge answered the last request for the services that there are.
    pub(crate) list_error: watch::Sender<Option<ListError>>,
    /// Whether an edge has said which services there are, if that matters.
    pub(crate) are_known: watch::Sender<bool>,
    /// When an origin confirmed the last answer with all services, if that was long before the answer.
    cut_off: Mutex<Option<Instant>>,
    /// Services that are assigned, and that `allow` excludes, with the time since when.
    not_allowed: Mutex<BTreeMap<ServiceName, SystemTime>>,
    /// Services whose status may have changed.
    changed: Mutex<BTreeSet<ServiceName>>,
    /// The services that are to be followed, also those that are about to begin, or to begin again.
    wanted: Mutex<BTreeSet<ServiceName>>,
    waiting: Mutex<Waiting>,
    /// Since when upstreams are unreachable, as an edge says, also of services that are about to begin.
    unreachable: Mutex<BTreeMap<ServiceName, SystemTime>>,
}

/// A status, without a release that readers do not find on disk.
fn on_disk((mut status, directory): (ServiceStatus, Arc<ServiceDirectory>)) -> ServiceStatus {
    status.release.take_if(|_| !directory.has_current());
    status
}

/// Marks a service whenever its status changes, and wakes those that waited for it, until its tasks end.
pub(crate) async fn mark_changes(
    name: ServiceName,
    mut status: watch::Receiver<ServiceStatus>,
    services: Arc<Services>,
    part: Drain,
) {
    loop {
        services.changed().insert(name.clone());
        services.wake_waiters(&name);
        tokio::select! {
            () = part.begun() => return,
            changed = status.changed() => if changed.is_err() { return },
        }
    }
}

impl Service {
    fn present(&self) -> (ServiceStatus, Arc<ServiceDirectory>) {
        (self.status.borrow().clone(), self.directory.clone())
    }

    fn show_upstream(&self, since: Option<SystemTime>) {
        self.upstream_unreachable.iter().for_each(|gauge| gauge.set(f64::from(u8::from(since.is_some()))));
        self.status.send_if_modified(|status| {
            let is_new = status.upstream_unreachable_since != since;
            status.upstream_unreachable_since = since;
            is_new
        });
    }
}

impl Services {
    pub(crate) fn new() -> Self {
        Self {
            followed: RwLock::default(),
            list_error: watch::Sender::new(None),
            are_known: watch::Sender::new(false),
            cut_off: Mutex::default(),
            not_allowed: Mutex::default(),
            changed: Mutex::default(),
            wanted: Mutex::default(),
            waiting: Mutex::default(),
            unreachable: Mutex::default(),
        }
    }

    pub(crate) fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ServiceName, Service>> {
        self.followed.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<ServiceName, Service>> {
        self.followed.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their names, sorted.
    pub(crate) fn names(&self) -> Vec<ServiceName> {
        self.read().keys().cloned().collect()
    }

    /// The status of one.
    pub(crate) fn status(&self, service: &ServiceName) -> Option<watch::Receiver<ServiceStatus>> {
        self.read().get(service).map(|service| service.status.subscribe())
    }

    /// The present status of each.
    pub(crate) fn statuses(&self) -> Vec<(ServiceName, ServiceStatus)> {
        let all: Vec<_> = self.read().iter().map(|(name, service)| (name.clone(), service.present())).collect();
        all.into_iter().map(|(name, present)| (name, on_disk(present))).collect()
    }

    /// The present status of one.
    pub(crate) fn present(&self, service: &ServiceName) -> Option<ServiceStatus> {
        let present = self.read().get(service).map(Service::present);
        present.map(on_disk)
    }

    /// The services whose status may have changed since the last call, those that began or ended included.
    pub(crate) fn take_changed(&self) -> BTreeSet<ServiceName> {
        mem::take(&mut *self.changed())
    }

    pub(crate) fn changed(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a command on. A full queue already has the same command, or the next row says the same.
    pub(crate) fn command(&self, service: &ServiceName, command: Command) {
        if let Some(service) = self.read().get(service) {
            let _ = service.commands.try_send(command);
        }
    }

    /// What a switch of a service waits for, by its `depends_on`. The service polls again once that is done.
    pub(crate) fn waits(&self, service: &ServiceName, depends_on: &[NameGlob]) -> Option<Waits> {
        if depends_on.is_empty() {
            return None;
        }
        // Locked first: what is done from here on wakes the service.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = match *self.are_known.borrow() {
            false => Some(Waits::NoList),
            true => waits(service, depends_on, &*wanted, |name| self.progress(name)),
        };
        waiting.record(service, waits)
    }

    fn progress(&self, service: &ServiceName) -> Progress {
        self.read().get(service).map_or(Progress::Unknown, |service| service.status.borrow().progress())
    }

    /// Lets the services poll that wait for this one, if it is done.
    fn wake_waiters(&self, service: &ServiceName) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_awaited(service) && self.progress(service) == Progress::Done {
            waiting.take(service).iter().for_each(|waiter| self.command(waiter, Command::Poll));
        }
    }

    /// Replaces the services that are to be followed.
    pub(crate) fn set_wanted(&self, services: BTreeSet<ServiceName>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take_all_but(&services).iter().for_each(|waiter| self.command(waiter, Command::Poll));
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = services;
    }

    /// An edge says since when the upstream of these services is unreachable; `None`: it is reachable.
    pub(crate) fn tell_upstream(&self, services: &[ServiceName], since: Option<SystemTime>) {
        let (mut unreachable, followed) = (self.unreachable(), self.read());
        for name in services {
            match since {
                Some(since) if unreachable.len() < MAX_UNREACHABLE => drop(unreachable.insert(name.clone(), since)),
                _ => drop(unreachable.remove(name)),
            }
            followed.get(name).inspect(|service| service.show_upstream(unreachable.get(name).copied()));
        }
    }

    /// Shows what is known of the upstream of a service that has just begun.
    pub(crate) fn show_upstream(&self, name: &ServiceName) {
        let since = self.unreachable();
        self.read().get(name).inspect(|service| service.show_upstream(since.get(name).copied()));
    }

    /// Nothing is known of the upstreams: another edge will tell.
    pub(crate) fn forget_upstreams(&self) {
        self.unreachable().clear();
        self.read().values().for_each(|service| service.show_upstream(None));
    }

    fn unreachable(&self) -> MutexGuard<'_, BTreeMap<ServiceName, SystemTime>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Services that are assigned, and that `allow` excludes, with the time since when.
    pub(crate) fn not_allowed(&self) -> MutexGuard<'_, BTreeMap<ServiceName, SystemTime>> {
        self.not_allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An edge answered with all services: an origin confirmed them so long ago. `None`: it does not say, or no edge is asked
    /// for all any more.
    pub(crate) fn answered(&self, age: Option<Duration>, now: Instant) {
        let confirmed = age.filter(|age| *age > OLD).and_then(|age| now.checked_sub(age));
        *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner) = confirmed;
    }

    /// How long ago an origin confirmed the last answer, if the edge was cut off then.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        let confirmed = *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.map_or(Duration::ZERO, |confirmed| now.duration_since(confirmed))
    }

    /// Passes a row on to the task of its service, if it is followed.
    pub(crate) fn tell(&self, received: ReceivedRow) {
        let service = received.row.service.clone();
        self.command(&service, Command::Row(Box::new(received)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_an_old_answer_grows_until_the_next_one() {
        let (services, now, second) = (Services::new(), Instant::now(), Duration::from_secs(1));
        services.answered(Some(OLD + second), now);
        assert_eq!(services.age(now + OLD), 2 * OLD + second);
        for (age, why) in [(Some(OLD), "young"), (None, "no edge is asked for all")] {
            services.answered(Some(OLD + second), now);
            services.answered(age, now);
            assert_eq!(services.age(now + OLD), Duration::ZERO, "{why}");
        }
    }
}
