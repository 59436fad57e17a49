//! Issuers of tokens beside Weir, and their keys as they change.

mod entry;
mod fetch;
mod followed;
mod key_owners;
mod of_origins;
mod table;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Semaphore;
use weir_protocol::access_list::{Shard, Table};
use weir_protocol::issuer::Issuer;
use weir_protocol::token::{IssuerPolicy, JwkSet, MAX_JWK_SET_BYTES};
use weir_runtime::shutdown::Drain;

use super::Inner;
use crate::config::{IssuerConfig, KeySource};

pub(crate) use entry::IssuerEntry;
pub(super) use fetch::KeyRequest;
use fetch::{Fetcher, Location};
pub(crate) use followed::FollowedKeys;
pub(crate) use key_owners::KeyOwners;
pub(crate) use table::{IssuerTable, KeyConflict};

/// How often the files of keys are read.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);

/// The most fetches of key sets of the configuration at a time.
const MAX_FETCHES: usize = 8;

/// Why keys could not be read when they were tried last, by [`IssuerEntry::source`]. Their last valid set applies.
#[derive(Default)]
pub(super) struct KeyFailures(Mutex<BTreeMap<String, String>>);

impl KeyFailures {
    /// The failures, a sentence each.
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Notes a result. Returns whether it differs from the one before.
    fn note(&self, source: &str, failure: Option<&str>) -> bool {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match failure {
            Some(failure) => failures.insert(source.to_owned(), failure.to_owned()),
            None => failures.remove(source),
        };
        before.as_deref() != failure
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Reads the issuers of the configuration, with the keys of files. Blocks.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn read(configs: &[IssuerConfig]) -> anyhow::Result<Vec<IssuerEntry>> {
    let mut entries = Vec::new();
    for config in configs {
        let (keys, unknown_key) = match &config.jwks {
            KeySource::File(path) => (read_keys(path)?, None),
            KeySource::Url(_) => (JwkSet::default(), Some(Arc::default())),
        };
        let source = format!("{} {}", config.issuer, config.jwks);
        let (issuer, keys) = (Arc::new(config.issuer()), Arc::new(keys));
        entries.push(IssuerEntry { source, created: 0, issuer, keys, keys_at: None, unknown_key });
    }
    Ok(entries)
}

/// The issuers of the shards that origins announce. Those of a shard are made once.
#[derive(Default)]
pub(super) struct AnnouncedIssuers(Vec<MadeOfShard>);

type MadeOfShard = (Arc<Shard<Issuer>>, Arc<[IssuerEntry]>);

impl AnnouncedIssuers {
    /// All issuers, the oldest first. One that this version cannot use is left out.
    pub(super) fn entries(&mut self, issuers: &Table<Issuer>) -> Vec<IssuerEntry> {
        let is_made = |of: &Arc<Shard<Issuer>>, shard| Arc::ptr_eq(of, shard);
        let made = issuers.shards().iter().enumerate().map(|(index, shard)| match self.0.get(index) {
            Some((of, made)) if is_made(of, shard) => (shard.clone(), made.clone()),
            _ => (shard.clone(), shard.created().filter_map(|(created, issuer)| announced(issuer, created)).collect()),
        });
        self.0 = made.collect();
        // Not left out above: a document comes forth when its entry of the file goes.
        let of_file: HashSet<_> = issuers.file().map(source).collect();
        let documents = self.0.iter().flat_map(|(_, made)| made.iter());
        let documents = documents.filter(|entry| !of_file.contains(&entry.source)).cloned();
        let mut entries: Vec<_> = issuers.file().filter_map(|issuer| announced(issuer, 0)).chain(documents).collect();
        entries.sort_by(|one, other| (one.created, &one.source).cmp(&(other.created, &other.source)));
        entries
    }
}

fn source(issuer: &Issuer) -> String {
    format!("issuers/{}", issuer.name)
}

fn announced(issuer: &Issuer, created: u64) -> Option<IssuerEntry> {
    let read = || -> anyhow::Result<IssuerEntry> {
        let (source, keys_at) = (source(issuer), issuer.keys_at().map(Arc::new));
        let Issuer { issuer, audience, subjects, jwks, agent, services, .. } = issuer.clone();
        let keys = if keys_at.is_some() { JwkSet::default() } else { JwkSet::parse(jwks.to_string().as_bytes())? };
        let policy = IssuerPolicy { issuer, audience, subjects, agent: agent.parse()?, services };
        let (issuer, keys) = (Arc::new(policy), Arc::new(keys));
        Ok(IssuerEntry { source, created, issuer, keys, keys_at, unknown_key: None })
    };
    let entry = read();
    if let Err(error) = &entry {
        tracing::error!(name = %issuer.name, error = format!("{error:#}"), "an issuer that an origin announces is ignored");
    }
    entry.ok()
}

fn read_keys(path: &Path) -> anyhow::Result<JwkSet> {
    let read = || -> anyhow::Result<JwkSet> {
        let mut json = Vec::new();
        File::open(path)?.take(MAX_JWK_SET_BYTES as u64 + 1).read_to_end(&mut json)?;
        Ok(JwkSet::parse(&json)?)
    };
    read().with_context(|| format!("cannot use the key set {} of an issuer", path.display()))
}

/// Follows the files and URLs of keys until the drain.
pub(super) fn follow(inner: &Arc<Inner>, configs: &[IssuerConfig], entries: &[IssuerEntry], drain: &Drain) {
    let mut files = Vec::new();
    let permits = Arc::new(Semaphore::new(MAX_FETCHES));
    for (position, (config, entry)) in configs.iter().zip(entries).enumerate() {
        match &config.jwks {
            KeySource::File(path) => files.push((position, path.clone())),
            KeySource::Url(url) => {
                let location = Location::OfFile(url.clone(), config.ca.clone().unwrap_or_default());
                let unknown_key = entry.unknown_key.clone().unwrap_or_default();
                let mut fetcher = Fetcher::new(location, unknown_key, permits.clone());
                let (inner, draining) = (inner.clone(), drain.clone());
                drain.spawn(async move {
                    loop {
                        let keys = tokio::select! { keys = fetcher.next() => keys, () = draining.begun() => return };
                        let is_applied = inner.keys_read(position, keys);
                        inner.metrics.key_set_fetched(is_applied);
                        fetcher.applied(is_applied);
                    }
                });
            }
        }
    }
    if inner.keys_from_origins {
        drain.spawn(of_origins::follow(inner.clone(), drain.clone()));
    }
    if !files.is_empty() {
        let (inner, draining) = (inner.clone(), drain.clone());
        drain.spawn(async move {
            tokio::select! { () = reread(&inner, files) => {}, () = draining.begun() => {} }
        });
    }
}

/// Reads all files again and again. A file that is half written is no JSON, so it is not applied.
async fn reread(inner: &Arc<Inner>, files: Vec<(usize, PathBuf)>) {
    let files = Arc::new(files);
    loop {
        tokio::time::sleep(REREAD_INTERVAL).await;
        let reading = files.clone();
        let read = move || reading.iter().map(|(position, path)| (*position, read_keys(path))).collect::<Vec<_>>();
        for (position, keys) in tokio::task::spawn_blocking(read).await.expect("reading does not panic") {
            inner.keys_read(position, keys);
        }
    }
}

impl Inner {
    /// Applies the keys of an issuer of the configuration, or notes why there are none. Returns whether they are in use.
    fn keys_read(&self, position: usize, keys: anyhow::Result<JwkSet>) -> bool {
        let source = self.lists().issuers[position].source.clone();
        self.note_keys(&source, keys.map(|keys| self.set_keys(position, &source, keys)))
    }

    /// Notes whether the keys of an issuer are in use, with a key that another entry keeps, or why not. Returns whether they are.
    fn note_keys(&self, source: &str, conflict: anyhow::Result<Option<KeyConflict>>) -> bool {
        let is_applied = conflict.is_ok();
        let failure = match conflict {
            Ok(conflict) => conflict.map(|conflict| conflict.to_string()),
            Err(error) => Some(format!("{error:#}; the last valid keys apply")),
        };
        let is_new = self.key_failures.note(source, failure.as_deref());
        self.metrics.issuers_failing.set(i64::try_from(self.key_failures.len()).unwrap_or(i64::MAX));
        if let (true, Some(error)) = (is_new, &failure) {
            tracing::error!(error, "keys of an issuer cannot be used");
        }
        is_applied
    }

    /// Replaces the keys of an issuer of the configuration. Returns one that another entry keeps.
    fn set_keys(&self, position: usize, source: &str, keys: JwkSet) -> Option<KeyConflict> {
        if *self.lists().issuers[position].keys != keys {
            self.change(|lists| {
                lists.set_issuer_keys(position, keys);
                tracing::info!(issuer = lists.issuers[position].issuer.issuer, "the keys of an issuer have changed");
            });
        }
        self.conflict_of(source)
    }

    /// A key of an issuer that another entry keeps.
    fn conflict_of(&self, source: &str) -> Option<KeyConflict> {
        self.lists().key_conflicts.iter().find(|conflict| conflict.entry == source).cloned()
    }
}

#[cfg(test)]
mod tests;
