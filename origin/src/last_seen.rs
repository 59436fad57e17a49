//! The record `cluster/last-seen`: names of agents and edges with the times when they were last heard, so that a silent
//! agent stays known, and an edge counts as missing until it reports again, after a restart of everything. All origins
//! of a cluster replace it by compare-and-set; of two times the later one counts.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use weir_observed::{AGENT_FORGOTTEN_AFTER, EDGE_FORGOTTEN_AFTER, LastSeen, Names};
use weir_protocol::token::unix_seconds;
use weir_runtime::shutdown::Drain;

use crate::observed::{Deletion, Forgotten, NotForgotten, Observed};
use weir_store::{Expect, MAX_RECORD_BYTES, PutOutcome, RecordKey, Records};

const KEY: &str = "cluster/last-seen";

const ZSTD_LEVEL: i32 = 9;

/// The largest JSON of the record.
const MAX_JSON_BYTES: usize = 16 << 20;

/// How often the table is looked at: for what is forgotten, and for edges that the record lacks.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time between two reads of the record, and how old its times may become.
const STORE_INTERVAL: Duration = Duration::from_secs(600);

/// How often a write is tried when other origins write too.
const ATTEMPTS: usize = 10;

/// Reads the record, and writes it until the drain and once more then.
pub(crate) fn start(records: Records, observed: Observed, deletions: mpsc::Receiver<Deletion>, drain: &Drain) {
    let task = Task { records, observed, stored: Arc::default(), logged: String::new() };
    drain.spawn(task.run(deletions, drain.clone()));
}

struct Task {
    records: Records,
    observed: Observed,
    /// The record as it was last seen.
    stored: Arc<Names>,
    /// The last logged error, so that each is logged once.
    logged: String,
}

impl Task {
    async fn run(mut self, mut deletions: mpsc::Receiver<Deletion>, drain: Drain) {
        let mut next_read = Instant::now();
        loop {
            let is_due = Instant::now() >= next_read || self.lacks_edges().await;
            if is_due && self.sync(None).await.is_ok() {
                next_read = Instant::now() + STORE_INTERVAL;
            }
            tokio::select! {
                () = drain.begun() => break,
                () = tokio::time::sleep(INTERVAL) => self.observed.expire().await,
                Some((name, done)) = deletions.recv() => {
                    let outcome = self.sync(Some(&name)).await;
                    // The operator may have gone.
                    let _ = done.send(outcome);
                }
            }
        }
        // The outcome was logged.
        let _ = self.sync(None).await;
    }

    async fn lacks_edges(&self) -> bool {
        let stored = self.stored.clone();
        self.observed.look(move |table, now| table.has_news_of_edges(&stored, now)).await.unwrap_or_default()
    }

    /// Joins the record and the table, and logs a failure once.
    async fn sync(&mut self, deleted: Option<&Forgotten>) -> Result<(), NotForgotten> {
        let outcome = self.join(deleted).await;
        match &outcome {
            Err(NotForgotten::Unwritten(error)) if *error != self.logged => {
                tracing::warn!(
                    error,
                    record = KEY,
                    "the names of agents and edges could not be stored; it is tried again"
                );
                self.logged.clone_from(error);
            }
            Err(_) => {}
            Ok(()) => self.logged.clear(),
        }
        outcome
    }

    async fn join(&mut self, deleted: Option<&Forgotten>) -> Result<(), NotForgotten> {
        let key: RecordKey = KEY.parse().map_err(failed)?;
        for _ in 0..ATTEMPTS {
            let (stored, expect) = match self.records.get(&key).await.map_err(failed)? {
                None => (None, Expect::Absent),
                Some(record) => (Some(record.bytes), Expect::Version(record.version)),
            };
            let names =
                self.observed.look(|table, now| table.names(now)).await.ok_or_else(|| failed("it is stopping"))?;
            let deleted = deleted.cloned();
            let joining = spawn_blocking(move || joined(stored, names, deleted.as_ref()));
            let (joined, bytes) = joining.await.map_err(failed)??;
            if let Some(bytes) = bytes {
                match self.records.put(&key, bytes, expect).await {
                    PutOutcome::Done(_) => {}
                    PutOutcome::Conflict => continue,
                    PutOutcome::Unknown(error) => return Err(failed(error)),
                }
            }
            self.stored = Arc::new(joined);
            self.observed.learn(self.stored.clone()).await;
            return Ok(());
        }
        Err(failed("other origins write it all the time"))
    }
}

/// The record and the names of the table, without a deleted name; and the bytes to write, if it is time.
fn joined(
    stored: Option<Bytes>,
    names: Names,
    deleted: Option<&Forgotten>,
) -> Result<(Names, Option<Bytes>), NotForgotten> {
    let stored = stored.map(|bytes| decode(&bytes)).transpose().unwrap_or_else(|error| {
        // It has nothing but names that edges report again; without it no question about the fleet could be answered.
        tracing::error!(error, record = KEY, "the names of agents and edges cannot be read, and are replaced");
        None
    });
    let stored = stored.unwrap_or_default();
    let mut joined = stored.clone().merged(names);
    if let Some(name) = deleted {
        mark_deleted(&mut joined, name)?;
    }
    let before = |period: Duration| (unix_seconds(SystemTime::now()).saturating_sub(period.as_secs())) / 60;
    joined.forget(before(EDGE_FORGOTTEN_AFTER), before(AGENT_FORGOTTEN_AFTER));
    let is_due = deleted.is_some() || stored.lacks(&joined, STORE_INTERVAL.as_secs() / 60);
    let bytes = is_due.then(|| encode(&mut joined)).transpose().map_err(failed)?;
    Ok((joined, bytes))
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: impl ToString) -> NotForgotten {
    NotForgotten::Unwritten(error.to_string())
}

/// Replaces a name by its deletion.
fn mark_deleted(names: &mut Names, name: &Forgotten) -> Result<(), NotForgotten> {
    let mut seen: Vec<&mut LastSeen> = match name {
        Forgotten::Agent(name) => names.agents.get_mut(name).into_iter().collect(),
        Forgotten::Edge(name) => {
            names.edges.iter_mut().filter(|(it, _)| it.edge == *name).map(|(_, seen)| seen).collect()
        }
    };
    seen.retain(|seen| !seen.deleted);
    for seen in &mut seen {
        // A clock of another origin may be ahead.
        **seen = LastSeen { at: seen.at.max(unix_seconds(SystemTime::now()) / 60), deleted: true };
    }
    if seen.is_empty() { Err(NotForgotten::Unknown) } else { Ok(()) }
}

fn decode(bytes: &[u8]) -> Result<Names, String> {
    let json = zstd::bulk::decompress(bytes, MAX_JSON_BYTES).map_err(|error| error.to_string())?;
    serde_json::from_slice(&json).map_err(|error| error.to_string())
}

/// The bytes of the record. Beyond its bound the agents that were seen longest ago are left out.
fn encode(names: &mut Names) -> Result<Bytes, String> {
    loop {
        let json = serde_json::to_vec(names).map_err(|error| error.to_string())?;
        // Names that are alike take little room once they are compressed.
        if json.len() <= MAX_JSON_BYTES || names.agents.is_empty() {
            let bytes = zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| error.to_string())?;
            if bytes.len() <= MAX_RECORD_BYTES || names.agents.is_empty() {
                return Ok(bytes.into());
            }
        }
        names.keep_agents(names.agents.len() * 3 / 4);
        tracing::warn!(
            agents = names.agents.len(),
            record = KEY,
            "the record is full: the names seen longest ago are not stored"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_of_a_record_the_names_seen_longest_ago_are_left_out() {
        let name = |i: u64| blake3::hash(&i.to_le_bytes()).to_hex().parse().unwrap();
        let agents = (0..60_000).map(|i| (name(i), LastSeen { at: 30_000_000 + i, deleted: false })).collect();
        let mut names = Names { agents, ..Names::default() };
        let bytes = encode(&mut names).unwrap();
        assert!(bytes.len() <= MAX_RECORD_BYTES && names.agents.len() < 60_000, "{}", names.agents.len());
        assert!(names.agents.contains_key(&name(59_999)) && !names.agents.contains_key(&name(0)));
        assert_eq!(decode(&bytes).unwrap(), names);
    }

    #[test]
    fn a_record_can_be_read_whatever_names_are_in_it_and_one_that_cannot_is_replaced() {
        let name = |i: u64| format!("{}{i:06}", "a".repeat(94)).parse().unwrap();
        let agents = (0..150_000).map(|i| (name(i), LastSeen { at: 30_000_000, deleted: false })).collect();
        let mut names = Names { agents, ..Names::default() };
        let bytes = encode(&mut names).unwrap();
        assert!(names.agents.len() > 100_000, "{}", names.agents.len());
        assert_eq!(decode(&bytes).unwrap(), names);

        let seen = LastSeen { at: unix_seconds(SystemTime::now()) / 60, deleted: false };
        let known = Names { agents: [(name(1), seen)].into(), ..Names::default() };
        let (joined, bytes) = joined(Some(Bytes::from_static(b"damaged")), known.clone(), None).unwrap();
        assert_eq!((&joined, decode(&bytes.unwrap()).unwrap()), (&known, known.clone()));
    }
}
