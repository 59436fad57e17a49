//! Follows the keys of the issuers of origins at their URLs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use weir_protocol::token::JwkSet;
use weir_runtime::shutdown::Drain;

use super::fetch::{Fetcher, KeyRequest, Location};
use super::followed::Followed;
use super::table::KeyConflict;
use crate::access::Inner;

/// The most fetches at a time. One that gets no answer takes ten seconds, and those of the configuration do not wait for it.
const MAX_FETCHES: usize = 64;

/// The least time between two changes of the keys: each makes the table of all issuers again.
const APPLY_INTERVAL: Duration = Duration::from_secs(1);

/// The most sets of keys that wait to be applied together.
const MAX_WAITING: usize = 1024;

/// Keys that differ from those before.
struct Fetched {
    source: String,
    unknown_key: Arc<KeyRequest>,
    keys: JwkSet,
    /// Told once they apply.
    applied: oneshot::Sender<()>,
}

/// The fetches of an issuer. They end with it.
struct Running {
    unknown_key: Arc<KeyRequest>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows the keys until the drain. Whose they are changes with the lists of origins.
pub(super) async fn follow(inner: Arc<Inner>, drain: Drain) {
    let mut fleet = inner.fleet.subscribe();
    let (sender, fetched) = mpsc::channel(MAX_WAITING);
    let permits = Arc::new(Semaphore::new(MAX_FETCHES));
    let (mut tasks, mut running) = (JoinSet::new(), HashMap::<String, Running>::new());
    tasks.spawn(apply(inner.clone(), fetched));
    loop {
        let wanted = inner.lists().followed.all();
        running.retain(|source, it| {
            let stays = wanted.get(source).is_some_and(|followed| followed.is(&it.unknown_key));
            if !stays {
                // Its last failure is of no interest any longer.
                inner.note_keys(source, Ok(None));
            }
            stays
        });
        for (source, followed) in wanted {
            running.entry(source).or_insert_with_key(|source| {
                let unknown_key = followed.unknown_key.clone();
                let task = run(inner.clone(), source.clone(), followed, permits.clone(), sender.clone());
                Running { unknown_key, task: tasks.spawn(task) }
            });
        }
        tokio::select! {
            changed = fleet.changed() => if changed.is_err() { return },
            Some(_) = tasks.join_next() => {}
            () = drain.begun() => return,
        }
    }
}

async fn run(
    inner: Arc<Inner>,
    source: String,
    followed: Followed,
    permits: Arc<Semaphore>,
    fetched: mpsc::Sender<Fetched>,
) {
    let Followed { keys_at, unknown_key, .. } = followed;
    let mut fetcher = Fetcher::new(Location::OfOrigin(keys_at), unknown_key.clone(), permits);
    loop {
        let outcome = match fetcher.next().await {
            Err(error) => Err(error),
            Ok(keys) => {
                let is_known = inner.lists().followed.has(&source, &keys);
                if !is_known {
                    let (applied, is_applied) = oneshot::channel();
                    let (source, unknown_key) = (source.clone(), unknown_key.clone());
                    // Without a reader the edge stops.
                    let _ = fetched.send(Fetched { source, unknown_key, keys, applied }).await;
                    let _ = is_applied.await;
                }
                Ok(inner.conflict_of(&source))
            }
        };
        let is_applied = inner.note_followed(&source, &unknown_key, outcome);
        inner.metrics.key_set_fetched(is_applied);
        fetcher.applied(is_applied);
    }
}

/// Applies keys: those that come within a second together, and the first at once.
async fn apply(inner: Arc<Inner>, mut fetched: mpsc::Receiver<Fetched>) {
    let mut due = Instant::now();
    while let Some(first) = fetched.recv().await {
        sleep_until(due).await;
        let mut together = vec![first];
        while let Some(next) = (together.len() < MAX_WAITING).then(|| fetched.try_recv().ok()).flatten() {
            together.push(next);
        }
        let inner = inner.clone();
        if spawn_blocking(move || inner.apply_fetched(together)).await.is_err() {
            return;
        }
        due = Instant::now() + APPLY_INTERVAL;
    }
}

impl Inner {
    /// Replaces keys of issuers of origins. Blocks.
    fn apply_fetched(&self, fetched: Vec<Fetched>) {
        let mut applied = Vec::new();
        self.change(|lists| {
            for Fetched { source, unknown_key, keys, applied: told } in fetched {
                lists.followed.set_keys(&source, &unknown_key, keys);
                applied.push(told);
            }
            lists.use_followed_keys();
        });
        for told in applied {
            // The task of an entry that is gone does not wait.
            let _ = told.send(());
        }
    }

    /// Notes whether the keys of an issuer of an origin are in use, as long as it has the entry.
    fn note_followed(
        &self,
        source: &str,
        unknown_key: &Arc<KeyRequest>,
        outcome: anyhow::Result<Option<KeyConflict>>,
    ) -> bool {
        // Held meanwhile: what is noted of an entry that is gone would stay.
        let lists = self.lists();
        lists.followed.is(source, unknown_key) && self.note_keys(source, outcome)
    }
}
