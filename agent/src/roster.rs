//! The services that are followed. They begin and end while the agent runs: with the configuration, with what operators
//! assign, and with what matches a pattern. One task begins and ends them.
//!
//! A service that ends keeps its directory, and runs no hook. A file in the directory says since when; it is why the service
//! does not begin again at the next start, and when it may be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;
use weir_protocol::name::ServiceName;
use weir_release::{ServiceDirectory, remove_pin, remove_tree};

use crate::absence::Listed;
use crate::composition::Composition;
use crate::config::{Config, ServiceConfig};
use crate::edge_client::Edges;
use crate::roster_messages::{List, MAX_MESSAGES, Message, RosterHandle};
use crate::selection::Selection;
use crate::services::{Services, mark_changes};
use crate::supervise::Task;

/// The file in the directory of a service that is no longer followed: the time since when.
const ENDED: &str = "unassigned-since";

/// The task that begins and ends services.
pub(crate) struct Roster {
    composition: Arc<Composition>,
    services: Arc<Services>,
    config: Config,
    /// The services that lists have or had, without those that the configuration names. At the start those that were followed
    /// before: silence ends no service.
    listed: Listed,
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

/// The services that are to be followed, with their hooks: those that the configuration names, and those of a list that it
/// takes.
fn wanted<'s>(
    config: &Config,
    selection: Option<&Selection>,
    listed: impl IntoIterator<Item = &'s ServiceName>,
) -> BTreeMap<ServiceName, ServiceConfig> {
    let taken = listed.into_iter().filter(|service| selection.is_some_and(|selection| selection.takes(service)));
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
                Message::Configured(new, done) => {
                    let (config, edges) = *new;
                    self.configure(config, Some(edges)).await;
                    let _ = done.send(());
                }
                Message::Listed(list, done) => {
                    let is_current = self.is_selected(&list.selection);
                    let spread = list.spread.unwrap_or(self.composition.config.spread);
                    if is_current {
                        self.take(list);
                        self.reconcile(spread).await;
                        self.show_unassigned();
                        self.services.are_known.send_replace(true);
                        self.remove_old().await;
                    }
                    let after = self.composition.config.unassign_after;
                    let _ = done.send(is_current && self.listed.is_overdue(after, Instant::now()));
                }
                Message::AllListed(selection, services) if self.is_selected(&selection) => {
                    self.listed.end(services.as_ref(), self.composition.config.unassign_after, Instant::now());
                    self.reconcile(self.composition.config.spread).await;
                }
                Message::AllListed(..) => {}
                Message::Ended(service) => {
                    self.ending.remove(&service);
                    self.reconcile(self.composition.config.spread).await;
                }
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        tracing::error!(error = message, "the roster of services panicked, which is a bug");
    }
}

impl Roster {
    /// Follows nothing yet. `before`: the services of an earlier process.
    pub(crate) fn new(composition: Arc<Composition>, services: Arc<Services>, before: BTreeSet<ServiceName>) -> Self {
        let (sender, messages) = mpsc::channel(MAX_MESSAGES);
        let config = composition.config.clone();
        let mut listed = Listed::default();
        listed.set(before);
        Self { composition, services, config, listed, ending: BTreeSet::new(), messages, sender }
    }

    pub(crate) fn handle(&self) -> RosterHandle {
        RosterHandle(self.sender.clone())
    }

    /// Follows the services of a configuration, at its edges.
    pub(crate) async fn configure(&mut self, config: Config, edges: Option<Edges>) {
        let (selection, followed) = (Selection::of(&config), self.followed());
        let listed = self.listed.services().map(|(service, _)| service).chain(followed.keys());
        let wanted = wanted(&config, selection.as_ref(), listed);
        if selection.is_none() {
            tracing::warn!("too many services for one batch poll: they are polled one by one; use patterns");
        }
        let is_named = !config.is_dynamic();
        // What has begun to end asks no edge any more: not those of this configuration either.
        for service in followed.keys().filter(|service| !wanted.contains_key(*service)) {
            self.end(service.clone(), false);
        }
        let has_changed = self.composition.edges.replace(edges, selection);
        if is_named || has_changed {
            self.services.are_known.send_replace(is_named);
        }
        let named: BTreeSet<_> = config.named().collect();
        self.listed.set(wanted.into_keys().filter(|service| !named.contains(service)));
        self.config = config;
        self.reconcile(Duration::ZERO).await;
    }

    fn is_selected(&self, selection: &Selection) -> bool {
        self.composition.edges.selection().as_ref() == Some(selection)
    }

    fn take(&mut self, List { mut services, selection, .. }: List) {
        let named: BTreeSet<_> = self.config.named().collect();
        services.retain(|service| !named.contains(service));
        let (taken, others): (BTreeSet<_>, _) = services.into_iter().partition(|service| selection.takes(service));
        self.listed.list(&taken, Instant::now());
        self.show_not_allowed(others.into_iter().filter(|service| selection.refuses(service)).collect());
    }

    /// Shows which services are followed although the last list lacks them.
    fn show_unassigned(&self) {
        let followed = self.services.read();
        for (name, is_absent) in self.listed.services() {
            let Some(service) = followed.get(name) else { continue };
            service.status.send_if_modified(|status| {
                let is_news = status.unassigned_since.is_some() != is_absent;
                if is_news {
                    status.unassigned_since = is_absent.then(SystemTime::now);
                }
                is_news
            });
        }
    }

    /// Shows what is assigned and not followed. Logged once, not with each list.
    fn show_not_allowed(&self, services: BTreeSet<ServiceName>) {
        let count = services.len();
        self.composition.metrics.services_not_allowed.set(i64::try_from(count).unwrap_or(i64::MAX));
        let mut known = self.services.not_allowed();
        if let Some(service) = services.iter().find(|service| !known.contains_key(*service)) {
            tracing::warn!(%service, count, "services are assigned to this agent, and its `allow` excludes them");
        }
        let before = mem::take(&mut *known);
        let now = SystemTime::now();
        known.extend(services.into_iter().map(|service| {
            let since = before.get(&service).copied().unwrap_or(now);
            (service, since)
        }));
        // All of them: only the first ones have rows, and others may be the first now.
        if !known.keys().eq(before.keys()) {
            self.services.changed().extend(before.into_keys().chain(known.keys().cloned()));
        }
    }

    fn followed(&self) -> BTreeMap<ServiceName, ServiceConfig> {
        self.services.read().iter().map(|(name, service)| (name.clone(), service.hooks.clone())).collect()
    }

    /// Begins and ends services until those are followed that should be. Only the configuration and the list of an edge end
    /// one: never an error, and never silence. `within`: the first polls are spread over this.
    async fn reconcile(&mut self, within: Duration) {
        let listed = self.listed.services().map(|(service, _)| service);
        let wanted = wanted(&self.config, self.composition.edges.selection().as_ref(), listed);
        self.services.set_wanted(wanted.keys().cloned().collect());
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
                tracing::warn!(service = %name, %error, "cannot record that the service is followed again");
            }
            _ => {}
        }
        tracing::info!(service = %name, "the service is followed");
        let service = self.composition.follow(name, &self.services, directory, self.config.hooks_of(name), within);
        let (status, part) = (service.status.subscribe(), service.part.clone());
        service.part.spawn(mark_changes(name.clone(), status, self.services.clone(), part));
        self.services.write().insert(name.clone(), service);
        self.services.show_upstream(name);
    }

    /// `goes_on`: it begins again when its tasks have ended.
    fn end(&mut self, name: ServiceName, goes_on: bool) {
        let Some(service) = self.services.write().remove(&name) else { return };
        self.services.changed().insert(name.clone());
        if goes_on {
            tracing::info!(service = %name, "the hooks of the service have changed");
        } else {
            tracing::warn!(service = %name, "the service is not followed any more; its directory stays");
            let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
            if let Err(error) = std::fs::write(self.path(&name).join(ENDED), since) {
                tracing::warn!(service = %name, %error, "cannot record that the service was unassigned");
            }
        }
        self.ending.insert(name.clone());
        let all_ended = service.part.end();
        self.composition.monitor.iter().for_each(|monitor| monitor.unwatch(&name));
        let (composition, ended) = (self.composition.clone(), self.sender.clone());
        self.composition.drain.spawn(async move {
            all_ended.await;
            composition.metrics.forget(&name);
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
            tracing::warn!(%error, "cannot remove the directories of services that are no longer followed");
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
        if !entry.path().join(weir_release::RELEASES).is_dir() {
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
            // The pin first: what is left of the directory is removed next time.
            let removed = remove_pin(root, &service).and_then(|_| remove_tree(&root.join(service.as_str())));
            match removed {
                Ok(()) => tracing::info!(%service, "the directory of an unassigned service was removed, and its pin"),
                Err(error) => {
                    tracing::warn!(%service, %error, "cannot remove the directory of an unassigned service");
                }
            }
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
    fn directories_tell_what_was_followed_and_what_may_go() {
        let root = tempfile::tempdir().unwrap();
        for name in ["followed", "ended", "again"] {
            std::fs::create_dir_all(root.path().join(name).join("releases")).unwrap();
        }
        std::fs::create_dir(root.path().join("other")).unwrap();
        let digest = weir_protocol::digest::TarballDigest::of(b"one");
        for service in names(&["again", "ended", "followed"]) {
            weir_release::write_pin(root.path(), &service, digest, weir_release::Modes::default()).unwrap();
        }
        let pinned = || weir_release::read_pins(root.path()).unwrap().into_keys().collect::<BTreeSet<_>>();
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
        assert_eq!(pinned(), names(&["again", "followed"]), "assigned again, it would stay at a release that is gone");
    }
}
