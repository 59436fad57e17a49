//! Proves a record store before origins trust it, by writers that race for the same records.
//!
//! Some servers check every condition correctly while requests come one by one, and let several writers win a race.

use std::array;

use bytes::Bytes;
use futures_util::future::join_all;

use super::engine::{Engine, SharedEngine};
use super::{Expect, PutOutcome, Record, RecordError, RecordKey, Version};

/// The writers of a race.
pub(crate) const WRITERS: usize = 8;
/// The records that are raced for.
const RECORDS: usize = 6;
/// The races for each record: the first creates it, the others replace it.
const RACES: usize = 4;
/// How often a race is run again if nobody wins it: a server may tell all writers that others are in their way.
const ATTEMPTS: usize = 3;

/// What was done to prove an engine.
#[derive(Debug)]
pub struct Proof {
    /// The number of races. Each had one winner.
    pub races: usize,
    /// The writers in each race.
    pub writers: usize,
    /// The number of records that were created, replaced, listed and deleted.
    pub records: usize,
}

/// An engine is not proved.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The section `[cluster]` or `[store]` of the configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// Origins would overwrite each other's records.
    #[error("it must not hold the records of several origins: {0}")]
    Refused(String),
    /// A request failed, so nothing is known.
    #[error("it could not be checked: {0}")]
    Unavailable(String),
}

/// Proves an engine. Its records begin with `cluster/proof-`, and are deleted at the end. Origins may be
/// running.
///
/// # Errors
/// The engine is not proved.
pub async fn prove(engine: SharedEngine<'_>) -> Result<Proof, ProofError> {
    prove_engine(&Engine::shared(engine).map_err(ProofError::Config)?).await
}

pub(crate) async fn prove_engine(engine: &Engine) -> Result<Proof, ProofError> {
    let prefix = format!("cluster/proof-{:016x}-", fastrand::u64(..));
    let keys: [RecordKey; RECORDS] =
        array::from_fn(|index| format!("{prefix}{index}").parse().expect("the name has the alphabet of keys"));
    let raced = race_for(engine, &prefix, &keys).await;
    let mut deleted = Ok(());
    for key in &keys {
        deleted = deleted.and(match engine.get(key).await {
            Ok(Some(record)) => engine.delete(key, &record.version).await,
            read => read.map(drop),
        });
    }
    raced?;
    deleted.map_err(|error| unavailable(&error))?;
    Ok(Proof { races: RECORDS * RACES, writers: WRITERS, records: RECORDS })
}

async fn race_for(engine: &Engine, prefix: &str, keys: &[RecordKey]) -> Result<(), ProofError> {
    for key in keys {
        let mut expect = Expect::Absent;
        for _ in 0..RACES {
            expect = Expect::Version(race(engine, key, &expect).await?);
        }
    }
    let listed = engine.list(prefix).await.map_err(|error| unavailable(&error))?;
    if !listed.iter().map(|(key, _)| key).eq(keys) {
        let reason = format!("{} records exist, and a listing shows {}", keys.len(), listed.len());
        return Err(ProofError::Refused(reason));
    }
    Ok(())
}

/// Lets all writers write one record at once. Returns the winner's version.
async fn race(engine: &Engine, key: &RecordKey, expect: &Expect) -> Result<Version, ProofError> {
    for _ in 0..ATTEMPTS {
        let id = fastrand::u64(..);
        let written: [Bytes; WRITERS] = array::from_fn(|writer| format!("race {id:016x}, writer {writer}").into());
        let writes = written.iter().map(|bytes| engine.put(key, bytes.clone(), expect.clone()));
        let outcomes = join_all(writes).await;
        let read = engine.get(key).await.map_err(|error| unavailable(&error))?;
        if let Some(version) = winner(expect, &written, &outcomes, read.as_ref())? {
            return Ok(version);
        }
    }
    Err(ProofError::Refused(format!(
        "in {ATTEMPTS} races in a row none of {WRITERS} writers could {} a record",
        verb(expect)
    )))
}

/// The version of the only writer that won a race. `None`: nothing was written.
fn winner(
    expect: &Expect,
    written: &[Bytes],
    outcomes: &[PutOutcome],
    read: Option<&Record>,
) -> Result<Option<Version>, ProofError> {
    let refused = |reason: &str| Err(ProofError::Refused(reason.to_owned()));
    let winners: Vec<_> = outcomes.iter().filter(|outcome| matches!(outcome, PutOutcome::Done(_))).collect();
    let unknown = outcomes.iter().find_map(|outcome| match outcome {
        PutOutcome::Unknown(error) => Some(error),
        _ => None,
    });
    // The outcome of the writer whose bytes are stored.
    let stored = read.and_then(|read| {
        let writer = written.iter().position(|bytes| *bytes == read.bytes)?;
        Some((&outcomes[writer], read.version.clone()))
    });
    let is_unchanged = *expect == read.map_or(Expect::Absent, |read| Expect::Version(read.version.clone()));
    match (winners.len(), stored) {
        (0, Some((PutOutcome::Unknown(_), version))) => Ok(Some(version)),
        (0, _) => match unknown {
            Some(error) => Err(unavailable(error)),
            None if is_unchanged => Ok(None),
            None => refused("all writers were told that they failed, and the record has changed"),
        },
        (1, _) if is_unchanged => refused("a write succeeded, and the record has the same ETag as before"),
        (1, Some((PutOutcome::Done(told), version))) if *told == version => Ok(Some(version)),
        (1, _) => refused("a write succeeded, and the read after it did not return its bytes and its ETag"),
        (number, _) => {
            let verb = verb(expect);
            let reason =
                format!("{number} of {WRITERS} writers that raced to {verb} a record were told that they succeeded");
            refused(&reason)
        }
    }
}

fn verb(expect: &Expect) -> &'static str {
    match expect {
        Expect::Absent => "create",
        Expect::Version(_) => "replace",
    }
}

fn unavailable(error: &RecordError) -> ProofError {
    ProofError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version(text.into())
    }

    /// What two writers of `a` and `b` prove by their outcomes and the record that is read back. They expect version 1.
    fn proves(outcomes: &[PutOutcome; 2], read: Option<(&'static str, &str)>) -> String {
        let read = read.map(|(bytes, text)| Record { bytes: bytes.into(), version: version(text), recovered: None });
        match winner(&Expect::Version(version("1")), &["a".into(), "b".into()], outcomes, read.as_ref()) {
            Ok(version) => version.map_or("nobody won".to_owned(), |version| version.0.to_string()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_race_has_one_winner_whose_record_is_read_back() {
        let done = || PutOutcome::Done(version("2"));
        let unknown = || PutOutcome::Unknown(RecordError::Unavailable { key: "k".into(), cause: "no answer".into() });
        let lost = || PutOutcome::Conflict;
        for (outcomes, read, expected) in [
            ([done(), lost()], Some(("a", "2")), "2"),
            ([done(), unknown()], Some(("a", "2")), "2"),
            ([unknown(), lost()], Some(("a", "2")), "2"),
            ([lost(), lost()], Some(("old", "1")), "nobody won"),
            ([unknown(), lost()], Some(("old", "1")), "could not be checked: record k: no answer"),
            ([done(), done()], Some(("b", "2")), "2 of 8 writers that raced to replace"),
            ([done(), lost()], Some(("b", "2")), "did not return its bytes"),
            ([done(), lost()], Some(("a", "3")), "did not return its bytes"),
            ([done(), lost()], None, "did not return its bytes"),
            ([done(), lost()], Some(("a", "1")), "the same ETag as before"),
            ([lost(), lost()], Some(("a", "2")), "the record has changed"),
            ([lost(), lost()], None, "the record has changed"),
        ] {
            let found = proves(&outcomes, read);
            assert!(found.contains(expected), "{expected}: {found}");
        }
    }
}
