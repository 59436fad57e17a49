//! The services that are followed. Some begin and end while the agent runs: those that operators assign, and those that
//! match a pattern.
//!
//! A service that ends keeps its directory, and runs no hook. A file in the directory says since when; it is why the service
//! does not begin again at the next start, and when it may be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::agent::Composition;
use crate::metrics::ServiceGauge;
use crate::poll::{Command, ReceivedRow, Selection};
use crate::release::remove_tree;
use crate::status::ServiceStatus;

/// The file in the directory of a service that is no longer followed: the time since when.
const ENDED: &str = "unassigned-since";

/// A service that is followed.
pub(crate) struct Service {
    pub(crate) status: watch::Sender<ServiceStatus>,
    pub(crate) commands: mpsc::Sender<Command>,
    /// The tasks of this service.
    pub(crate) part: Drain,
    /// Whether the origin cannot reach the upstream, by the events of an edge. `None`: signed statements say it.
    pub(crate) upstream_unreachable: Option<ServiceGauge>,
    /// Named by the configuration: it never ends.
    pub(crate) is_fixed: bool,
}

/// The services that are followed now.
pub(crate) struct Services {
    followed: RwLock<BTreeMap<ServiceName, Service>>,
    /// Whether an edge has said which services there are, if that matters.
    pub(crate) are_known: watch::Sender<bool>,
    /// Services of which an event said that they ended, since the last list with services.
    ended: Mutex<BTreeSet<ServiceName>>,
    /// The last list was empty, and no event has said why.
    pub(crate) is_list_doubted: AtomicBool,
}

impl Services {
    pub(crate) fn new(followed: BTreeMap<ServiceName, Service>, are_known: bool) -> Self {
        let are_known = watch::Sender::new(are_known);
        Self { followed: followed.into(), are_known, ended: Mutex::default(), is_list_doubted: AtomicBool::new(false) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ServiceName, Service>> {
        self.followed.read().unwrap_or_else(PoisonError::into_inner)
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
        self.read().iter().map(|(name, service)| (name.clone(), service.status.borrow().clone())).collect()
    }

    /// Passes a command on. A full queue already has the same command, or the next row says the same.
    pub(crate) fn command(&self, service: &ServiceName, command: Command) {
        if let Some(service) = self.read().get(service) {
            let _ = service.commands.try_send(command);
        }
    }

    /// An edge says since when the upstream of these services is unreachable.
    pub(crate) fn tell_upstream<'s>(&self, services: impl Iterator<Item = &'s ServiceName>, since: Option<SystemTime>) {
        let followed = self.read();
        for service in services.filter_map(|service| followed.get(service)) {
            service.upstream_unreachable.iter().for_each(|gauge| gauge.set(f64::from(u8::from(since.is_some()))));
            service.status.send_if_modified(|status| {
                let is_new = status.upstream_unreachable_since != since;
                status.upstream_unreachable_since = since;
                is_new
            });
        }
    }

    /// An event says that a service is no longer assigned. The next list ends it.
    pub(crate) fn tell_ended(&self, service: ServiceName) {
        self.ended().insert(service);
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a row on to the task of its service, if it is followed.
    pub(crate) fn tell(&self, received: ReceivedRow) {
        let service = received.row.service.clone();
        self.command(&service, Command::Row(Box::new(received)));
    }
}

/// Begins and ends services.
pub(crate) struct Roster {
    pub(crate) composition: Arc<Composition>,
    pub(crate) services: Arc<Services>,
    /// Services whose tasks are ending.
    ending: Arc<Mutex<BTreeSet<ServiceName>>>,
}

/// What a list changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    begin: Vec<ServiceName>,
    end: Vec<ServiceName>,
}

/// `followed`: the services, and whether each is fixed. `listed`: sorted. `ended`: those of which an event has said it. An
/// empty list alone ends nothing: an edge that has lost its memory gives one, too.
fn changes(
    followed: &BTreeMap<ServiceName, bool>,
    listed: &BTreeSet<ServiceName>,
    ended: &BTreeSet<ServiceName>,
) -> Changes {
    let gone = followed.iter().filter(|(service, is_fixed)| !**is_fixed && !listed.contains(*service));
    let gone = gone.filter(|(service, _)| !listed.is_empty() || ended.contains(*service));
    Changes {
        begin: listed.iter().filter(|service| !followed.contains_key(*service)).cloned().collect(),
        end: gone.map(|(service, _)| service.clone()).collect(),
    }
}

impl Roster {
    pub(crate) fn new(composition: Arc<Composition>, services: Arc<Services>) -> Self {
        Self { composition, services, ending: Arc::default() }
    }

    /// An edge said which services there are. Only such an answer ends a service: never an error, and never silence.
    pub(crate) async fn apply(&self, rows: impl Iterator<Item = &ServiceName>, selection: &Selection) {
        let listed: BTreeSet<_> = rows.filter(|service| selection.takes(service)).cloned().collect();
        let followed = self.services.read().iter().map(|(name, service)| (name.clone(), service.is_fixed)).collect();
        let Changes { begin, end } = changes(&followed, &listed, &self.services.ended());
        if !listed.is_empty() {
            self.services.ended().clear();
        }
        for service in end {
            self.end(service);
        }
        for service in begin {
            // The tasks of one that has just ended may still write; the next list comes soon.
            if self.ending().contains(&service) {
                continue;
            }
            if let Err(error) = self.begin(&service).await {
                tracing::error!(%service, error = format!("{error:#}"), "a service cannot be followed");
            }
        }
        let is_doubted = listed.is_empty() && self.services.read().values().any(|service| !service.is_fixed);
        if is_doubted && !self.services.is_list_doubted.swap(is_doubted, Ordering::Relaxed) {
            tracing::warn!(
                "an edge lists no service for this agent; those that it follows stay until an event ends them"
            );
        }
        self.services.is_list_doubted.store(is_doubted, Ordering::Relaxed);
        self.composition.metrics.services.set(i64::try_from(self.services.read().len()).unwrap_or(i64::MAX));
        self.services.are_known.send_replace(true);
        self.remove_old().await;
    }

    fn ending(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(&self, name: &ServiceName) -> anyhow::Result<()> {
        let directory = self.composition.open(name).await?;
        match std::fs::remove_file(self.path(name).join(ENDED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        tracing::info!(service = %name, "the service is followed from now on");
        let service = self.composition.follow(name, directory, false, self.composition.config.spread);
        self.services.followed.write().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), service);
        Ok(())
    }

    fn end(&self, name: ServiceName) {
        let mut followed = self.services.followed.write().unwrap_or_else(PoisonError::into_inner);
        let Some(service) = followed.remove(&name) else { return };
        tracing::warn!(service = %name, "the service is not followed any more; its directory stays");
        let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        if let Err(error) = std::fs::write(self.path(&name).join(ENDED), since) {
            tracing::warn!(service = %name, %error, "that the service has ended cannot be recorded");
        }
        self.ending().insert(name.clone());
        let (composition, ending) = (self.composition.clone(), self.ending.clone());
        self.composition.drain.spawn(async move {
            service.part.end().await;
            composition.metrics.forget(&name);
            composition.monitor.iter().for_each(|monitor| monitor.unwatch(&name));
            ending.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        });
    }

    fn path(&self, service: &ServiceName) -> PathBuf {
        self.composition.config.root.join(service.as_str())
    }

    /// Removes the directories of services that ended long ago.
    async fn remove_old(&self) {
        let keep = self.composition.config.remove_unassigned_after;
        if keep.is_zero() {
            return;
        }
        let in_use: BTreeSet<_> = self.services.names().into_iter().chain(self.ending().clone()).collect();
        let root = self.composition.config.root.clone();
        let removed = tokio::task::spawn_blocking(move || remove_ended(&root, &in_use, keep, SystemTime::now())).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "directories of services that ended cannot be removed");
        }
    }
}

/// The services whose directories are in a root, with the time at which each ended.
fn directories(root: &Path) -> std::io::Result<Vec<(ServiceName, Option<SystemTime>)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let Some(service) = entry.file_name().to_str().and_then(|name| name.parse::<ServiceName>().ok()) else {
            continue;
        };
        if !entry.path().join(crate::release::RELEASES).is_dir() {
            continue;
        }
        let ended = match std::fs::read_to_string(entry.path().join(ENDED)) {
            // Torn when the machine failed: it ends again.
            Ok(text) => Some(humantime::parse_rfc3339(text.trim()).unwrap_or_else(|_| SystemTime::now())),
            Err(_) => None,
        };
        found.push((service, ended));
    }
    Ok(found)
}

/// The services that an earlier process followed to its end.
pub(crate) fn followed_before(root: &Path) -> std::io::Result<Vec<ServiceName>> {
    let found = directories(root)?.into_iter();
    Ok(found.filter(|(_, ended)| ended.is_none()).map(|(service, _)| service).collect())
}

fn remove_ended(root: &Path, in_use: &BTreeSet<ServiceName>, keep: Duration, now: SystemTime) -> std::io::Result<()> {
    for (service, ended) in directories(root)? {
        let is_old = ended.is_some_and(|ended| now.duration_since(ended).is_ok_and(|since| since >= keep));
        if is_old && !in_use.contains(&service) {
            remove_tree(&root.join(service.as_str())).map_err(std::io::Error::other)?;
            tracing::info!(%service, "the directory of a service that ended was removed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<ServiceName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_list_begins_and_ends_all_but_what_the_configuration_names() {
        let followed = [("fixed", true), ("old", false), ("stays", false)];
        let followed = followed.map(|(name, is_fixed)| (name.parse().unwrap(), is_fixed)).into();
        let changed = |listed: &[&str], ended: &[&str]| {
            let Changes { begin, end } = changes(&followed, &names(listed), &names(ended));
            (begin.into_iter().collect(), end.into_iter().collect())
        };
        assert_eq!(changed(&["new", "stays"], &[]), (names(&["new"]), names(&["old"])));
        assert_eq!(changed(&[], &[]), (names(&[]), names(&[])), "an empty list alone ends nothing");
        assert_eq!(changed(&[], &["fixed", "old"]), (names(&[]), names(&["old"])));
    }

    #[test]
    fn directories_tell_what_was_followed_and_what_may_go() {
        let root = tempfile::tempdir().unwrap();
        for name in ["followed", "ended", "again"] {
            std::fs::create_dir_all(root.path().join(name).join("releases")).unwrap();
        }
        std::fs::create_dir(root.path().join("other")).unwrap();
        let at = humantime::parse_rfc3339("2026-11-20T09:30:00Z").unwrap();
        for name in ["ended", "again"] {
            std::fs::write(root.path().join(name).join(ENDED), "2026-11-20T09:30:00Z").unwrap();
        }
        assert_eq!(followed_before(root.path()).unwrap(), ["followed".parse().unwrap()]);
        let (keep, in_use) = (Duration::from_secs(3600), names(&["again"]));
        let left = || {
            names(
                &["again", "ended", "followed"].map(|name| if root.path().join(name).exists() { name } else { "gone" }),
            )
        };
        remove_ended(root.path(), &in_use, keep, at + keep - Duration::from_secs(1)).unwrap();
        assert_eq!(left(), names(&["again", "ended", "followed"]));
        remove_ended(root.path(), &in_use, keep, at + keep).unwrap();
        assert_eq!(left(), names(&["again", "gone", "followed"]));
    }
}
