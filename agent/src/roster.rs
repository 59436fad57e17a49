//! The services that are followed. They begin and end while the agent runs: with the configuration, with what operators
//! assign, and with what matches a pattern. One task begins and ends them.
//!
//! A service that ends keeps its directory, and runs no hook. A file in the directory says since when; it is why the service
//! does not begin again at the next start, and when it may be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use tokio::sync::{mpsc, oneshot, watch};
use weir_protocol::name::ServiceName;
use weir_runtime::shutdown::Drain;

use crate::agent::Composition;
use crate::config::{Config, ServiceConfig};
use crate::metrics::ServiceGauge;
use crate::poll::{Command, ReceivedRow, Selection};
use crate::release::{ServiceDirectory, remove_tree};
use crate::status::ServiceStatus;
use crate::supervise::Task;

/// The file in the directory of a service that is no longer followed: the time since when.
const ENDED: &str = "unassigned-since";

/// The most messages that wait for the roster.
const MAX_MESSAGES: usize = 8;

/// The most services whose upstreams are remembered as unreachable.
const MAX_UNREACHABLE: usize = 100_000;

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

/// The services that are followed now.
pub(crate) struct Services {
    followed: RwLock<BTreeMap<ServiceName, Service>>,
    /// Whether an edge has said which services there are, if that matters.
    pub(crate) are_known: watch::Sender<bool>,
    /// Followed services of which an event said that they ended, since the last list with services.
    ended: Mutex<BTreeSet<ServiceName>>,
    /// The last list was empty, and no event has said why.
    pub(crate) is_list_doubted: AtomicBool,
    /// Services that are assigned, and that `allow` excludes.
    not_allowed: Mutex<BTreeSet<ServiceName>>,
    /// Since when upstreams are unreachable, as an edge says, also of services that are about to begin.
    unreachable: Mutex<BTreeMap<ServiceName, SystemTime>>,
}

impl Service {
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
            are_known: watch::Sender::new(false),
            ended: Mutex::default(),
            is_list_doubted: AtomicBool::new(false),
            not_allowed: Mutex::default(),
            unreachable: Mutex::default(),
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ServiceName, Service>> {
        self.followed.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<ServiceName, Service>> {
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

    /// The present status of each. A release that readers do not find on disk is none.
    pub(crate) fn statuses(&self) -> Vec<(ServiceName, ServiceStatus)> {
        let status = |service: &Service| (service.status.borrow().clone(), service.directory.clone());
        let all: Vec<_> = self.read().iter().map(|(name, service)| (name.clone(), status(service))).collect();
        let on_disk = all.into_iter().map(|(name, (mut status, directory))| {
            status.release.take_if(|_| !directory.has_current());
            (name, status)
        });
        on_disk.collect()
    }

    /// Passes a command on. A full queue already has the same command, or the next row says the same.
    pub(crate) fn command(&self, service: &ServiceName, command: Command) {
        if let Some(service) = self.read().get(service) {
            let _ = service.commands.try_send(command);
        }
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
    fn show_upstream(&self, name: &ServiceName) {
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

    /// An event says that a service is no longer assigned. An empty list ends it from now on.
    pub(crate) fn tell_ended(&self, service: ServiceName) {
        if self.read().contains_key(&service) {
            self.ended().insert(service);
        }
    }

    /// The services of which an event has said that they ended.
    pub(crate) fn ended(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Services that are assigned, and that `allow` excludes.
    pub(crate) fn not_allowed(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.not_allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a row on to the task of its service, if it is followed.
    pub(crate) fn tell(&self, received: ReceivedRow) {
        let service = received.row.service.clone();
        self.command(&service, Command::Row(Box::new(received)));
    }
}

/// What the roster reacts to.
enum Message {
    /// The configuration has changed.
    Configured(Box<Config>, oneshot::Sender<()>),
    /// An edge said which services there are.
    Listed(List, oneshot::Sender<()>),
    /// All tasks of a service have ended.
    Ended(ServiceName),
}

/// The services that there are, as an edge says.
pub(crate) struct List {
    pub(crate) services: BTreeSet<ServiceName>,
    /// What it was asked for.
    pub(crate) selection: Selection,
    /// What had ended by events before it was asked.
    pub(crate) ended_before: BTreeSet<ServiceName>,
}

/// Sends to the roster.
#[derive(Clone)]
pub(crate) struct RosterHandle(mpsc::Sender<Message>);

impl RosterHandle {
    /// Follows the services of a configuration. Blocks.
    ///
    /// # Errors
    /// The agent is stopping. Nothing has changed.
    pub(crate) fn configure(&self, config: Config) -> anyhow::Result<()> {
        let (done, result) = oneshot::channel();
        // An error: the result never comes.
        let _ = self.0.blocking_send(Message::Configured(Box::new(config), done));
        result.blocking_recv().context("the agent is stopping")
    }

    /// An edge said which services there are. Returns once they are followed.
    pub(crate) async fn listed(&self, list: List) {
        let (done, applied) = oneshot::channel();
        let _ = self.0.send(Message::Listed(list, done)).await;
        let _ = applied.await;
    }
}

/// The task that begins and ends services.
pub(crate) struct Roster {
    composition: Arc<Composition>,
    services: Arc<Services>,
    config: Config,
    /// What edges are asked for; `None`: each service is polled by itself.
    selection: watch::Sender<Option<Selection>>,
    /// The services of the last list, or those that were followed before there was one: silence ends no service.
    listed: BTreeSet<ServiceName>,
    /// Services whose tasks are ending.
    ending: BTreeSet<ServiceName>,
    messages: mpsc::Receiver<Message>,
    sender: mpsc::Sender<Message>,
}

/// What has to change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    begin: Vec<ServiceName>,
    /// Some of them begin again, with other hooks.
    end: Vec<ServiceName>,
}

/// The list that follows on a list. `ended`: the services of which an event has said it. An empty list alone ends nothing: an
/// edge that has lost its memory gives one, too.
fn next_list(
    last: &BTreeSet<ServiceName>,
    list: BTreeSet<ServiceName>,
    ended: &BTreeSet<ServiceName>,
) -> BTreeSet<ServiceName> {
    if list.is_empty() { last.difference(ended).cloned().collect() } else { list }
}

/// The services that are to be followed, with their hooks: those that the configuration names, and those of a list that it
/// takes.
fn wanted(
    config: &Config,
    selection: Option<&Selection>,
    listed: &BTreeSet<ServiceName>,
) -> BTreeMap<ServiceName, ServiceConfig> {
    let taken = listed.iter().filter(|service| selection.is_some_and(|selection| selection.takes(service)));
    let all = config.named().chain(taken.cloned());
    all.map(|service| (service.clone(), config.hooks_of(&service))).collect()
}

fn changes(followed: &BTreeMap<ServiceName, ServiceConfig>, wanted: &BTreeMap<ServiceName, ServiceConfig>) -> Changes {
    Changes {
        begin: wanted.keys().filter(|service| !followed.contains_key(*service)).cloned().collect(),
        end: followed
            .iter()
            .filter(|(name, hooks)| wanted.get(*name) != Some(hooks))
            .map(|(name, _)| name.clone())
            .collect(),
    }
}

impl Task for Roster {
    async fn run(&mut self) {
        loop {
            let message = tokio::select! {
                () = self.composition.drain.begun() => return,
                Some(message) = self.messages.recv() => message,
            };
            match message {
                Message::Configured(config, done) => {
                    self.configure(*config).await;
                    let _ = done.send(());
                }
                Message::Listed(list, done) => {
                    if self.selection.borrow().as_ref() == Some(&list.selection) {
                        self.take(list);
                        self.reconcile(self.composition.config.spread).await;
                        self.services.are_known.send_replace(true);
                        self.remove_old().await;
                    }
                    let _ = done.send(());
                }
                Message::Ended(service) => {
                    self.ending.remove(&service);
                    self.reconcile(self.composition.config.spread).await;
                }
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        tracing::error!(message, "the roster of services panicked, which is a bug");
    }
}

impl Roster {
    /// Follows nothing yet. `before`: the services of an earlier process.
    pub(crate) fn new(composition: Arc<Composition>, services: Arc<Services>, before: BTreeSet<ServiceName>) -> Self {
        let (sender, messages) = mpsc::channel(MAX_MESSAGES);
        let (config, selection) = (composition.config.clone(), watch::Sender::new(None));
        Self { composition, services, config, selection, listed: before, ending: BTreeSet::new(), messages, sender }
    }

    pub(crate) fn handle(&self) -> RosterHandle {
        RosterHandle(self.sender.clone())
    }

    /// What edges are asked for, now and later.
    pub(crate) fn selection(&self) -> watch::Receiver<Option<Selection>> {
        self.selection.subscribe()
    }

    /// Follows the services of a configuration.
    pub(crate) async fn configure(&mut self, config: Config) {
        let (selection, followed) = (Selection::of(&config), self.followed());
        let listed = self.listed.iter().chain(followed.keys()).cloned().collect();
        let wanted = wanted(&config, selection.as_ref(), &listed);
        let listed = wanted.keys().cloned().collect();
        if selection.is_none() {
            tracing::warn!("there are too many services for one request: each is polled by itself. Use patterns");
        }
        let is_named = !config.is_dynamic();
        let has_changed =
            self.selection.send_if_modified(|known| std::mem::replace(known, selection.clone()) != selection);
        if is_named || has_changed {
            self.services.are_known.send_replace(is_named);
        }
        (self.config, self.listed) = (config, listed);
        self.reconcile(Duration::ZERO).await;
    }

    fn take(&mut self, list: List) {
        let is_empty = list.services.is_empty();
        self.listed = next_list(&self.listed, list.services, &self.services.ended());
        if !is_empty {
            // What an event says after the question may be newer than the answer.
            self.services.ended().retain(|service| !list.ended_before.contains(service));
        }
        let named: BTreeSet<_> = self.config.named().collect();
        let is_refused = |service: &&ServiceName| list.selection.refuses(service) && !named.contains(*service);
        self.show_not_allowed(self.listed.iter().filter(is_refused).cloned().collect());
        let is_doubted = is_empty && !self.listed.is_subset(&named);
        if is_doubted && !self.services.is_list_doubted.load(Ordering::Relaxed) {
            tracing::warn!("an edge lists no service for this agent; what it follows stays until an event ends it");
        }
        self.services.is_list_doubted.store(is_doubted, Ordering::Relaxed);
    }

    /// Shows what is assigned and not followed. Logged once, not with each list.
    fn show_not_allowed(&self, services: BTreeSet<ServiceName>) {
        let count = services.len();
        self.composition.metrics.services_not_allowed.set(i64::try_from(count).unwrap_or(i64::MAX));
        let mut known = self.services.not_allowed();
        if let Some(service) = services.difference(&known).next() {
            tracing::warn!(%service, count, "services are assigned to this agent, and its `allow` excludes them");
        }
        *known = services;
    }

    fn followed(&self) -> BTreeMap<ServiceName, ServiceConfig> {
        self.services.read().iter().map(|(name, service)| (name.clone(), service.hooks.clone())).collect()
    }

    /// Begins and ends services until those are followed that should be. Only the configuration and the list of an edge end
    /// one: never an error, and never silence. `within`: the first polls are spread over this.
    async fn reconcile(&mut self, within: Duration) {
        let wanted = wanted(&self.config, self.selection.borrow().as_ref(), &self.listed);
        let Changes { begin, end } = changes(&self.followed(), &wanted);
        for service in end {
            let goes_on = wanted.contains_key(&service);
            self.end(service, goes_on);
        }
        for service in begin.iter().filter(|service| !self.ending.contains(*service)) {
            let directory = self.composition.open(service).await;
            self.begin(service, directory, within);
        }
        self.composition.metrics.services.set(i64::try_from(self.services.read().len()).unwrap_or(i64::MAX));
    }

    /// `within`: the first poll is spread over this.
    fn begin(&self, name: &ServiceName, directory: Arc<ServiceDirectory>, within: Duration) {
        match std::fs::remove_file(self.path(name).join(ENDED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(service = %name, %error, "that the service has begun again cannot be recorded");
            }
            _ => {}
        }
        tracing::info!(service = %name, "the service is followed from now on");
        let service = self.composition.follow(name, directory, self.config.hooks_of(name), within);
        self.services.write().insert(name.clone(), service);
        self.services.show_upstream(name);
    }

    /// `goes_on`: it begins again when its tasks have ended.
    fn end(&mut self, name: ServiceName, goes_on: bool) {
        let Some(service) = self.services.write().remove(&name) else { return };
        if goes_on {
            tracing::info!(service = %name, "the service has other hooks from now on");
        } else {
            tracing::warn!(service = %name, "the service is not followed any more; its directory stays");
            let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
            if let Err(error) = std::fs::write(self.path(&name).join(ENDED), since) {
                tracing::warn!(service = %name, %error, "that the service has ended cannot be recorded");
            }
        }
        self.ending.insert(name.clone());
        let (composition, ended) = (self.composition.clone(), self.sender.clone());
        self.composition.drain.spawn(async move {
            service.part.end().await;
            composition.metrics.forget(&name);
            composition.monitor.iter().for_each(|monitor| monitor.unwatch(&name));
            // Nobody listens any more when the agent stops.
            let _ = ended.send(Message::Ended(name)).await;
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
        let in_use: BTreeSet<_> = self.services.names().into_iter().chain(self.ending.clone()).collect();
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
pub(crate) fn followed_before(root: &Path) -> std::io::Result<BTreeSet<ServiceName>> {
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

    fn config(services: &[(&str, &str)]) -> Config {
        let mut config = Config::new(Vec::new(), "ca.pem", "root");
        let service = |(name, exec): &(&str, &str)| {
            let exec = Some((*exec).into());
            ServiceConfig { exec, ..ServiceConfig::of(name.parse().unwrap()) }
        };
        config.services = services.iter().map(service).collect();
        config
    }

    fn difference(before: &Config, listed: &[&str], now: &Config, listed_now: &[&str]) -> [BTreeSet<ServiceName>; 2] {
        let wanted = |config: &Config, listed: &[&str]| wanted(config, Selection::of(config).as_ref(), &names(listed));
        let Changes { begin, end } = changes(&wanted(before, listed), &wanted(now, listed_now));
        [begin, end].map(|services| services.into_iter().collect())
    }

    #[test]
    fn a_list_begins_and_ends_all_but_what_the_configuration_names() {
        let config = config(&[("fixed", "a"), ("*", "b")]);
        assert_eq!(
            difference(&config, &["old", "stays"], &config, &["new", "stays"]),
            [names(&["new"]), names(&["old"])]
        );
        let none = [names(&[]), names(&[])];
        assert_eq!(difference(&config, &["stays"], &config, &["fixed", "stays"]), none);
    }

    #[test]
    fn a_configuration_begins_and_ends_services_and_changes_their_hooks() {
        let before = config(&[("gone", "a"), ("other", "a"), ("same", "a")]);
        let now = config(&[("new", "a"), ("other", "b"), ("same", "a")]);
        assert_eq!(difference(&before, &[], &now, &[]), [names(&["new"]), names(&["gone", "other"])]);
        let (all, some) = (config(&[("*", "a")]), config(&[("shop-*", "a"), ("shop-b", "b")]));
        let listed = ["docs", "shop-a", "shop-b"];
        assert_eq!(difference(&all, &listed, &some, &listed), [names(&[]), names(&["docs", "shop-b"])]);
    }

    #[test]
    fn an_empty_list_ends_what_an_event_has_ended() {
        let last = names(&["docs", "shop"]);
        assert_eq!(next_list(&last, names(&["shop"]), &names(&[])), names(&["shop"]));
        assert_eq!(next_list(&last, names(&[]), &names(&[])), last);
        assert_eq!(next_list(&last, names(&[]), &names(&["docs", "other"])), names(&["shop"]));
        assert_eq!(next_list(&last, names(&["docs"]), &names(&["docs"])), names(&["docs"]), "it is assigned again");
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
        assert_eq!(followed_before(root.path()).unwrap(), names(&["followed"]));
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
