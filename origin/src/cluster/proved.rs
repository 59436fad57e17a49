//! Proves the engine before this origin trusts it with records for the first time.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::catalog::version;
use crate::config::{ClusterConfig, Config};
use crate::record_engine::prove;
use weir_runtime::durable_file;
use weir_store::proof::{Proof, ProofError};

/// What was proved by this data directory. A proof takes about 220 requests, so it is not repeated at each start.
const FILE: &str = "cluster-proved";

/// After these pauses an engine that did not answer is checked again: it may be busy with the checks of origins that started
/// at the same time. None begins later than [`PATIENCE`].
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// A wrong endpoint or credential is reported before a liveness probe ends the process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Proves the engine of `[cluster]`, unless this data directory has proved the same one before.
///
/// # Errors
/// The engine is not proved.
pub(crate) async fn ensure_proved(config: &Config, cluster: &ClusterConfig, data_dir: &Path) -> anyhow::Result<()> {
    let store = &config.store;
    let endpoints = cluster.etcd.as_ref().map(|etcd| (&etcd.endpoints, &etcd.prefix));
    let engine = version(&(cluster.engine, &store.url, &store.endpoint, endpoints));
    if fs::read_to_string(data_dir.join(FILE)).is_ok_and(|proved| proved.trim_end() == engine) {
        return Ok(());
    }
    tracing::info!(engine = %cluster.engine, "checking that the engine can hold the records of several origins");
    let refused = || format!("[cluster] engine = \"{}\"", cluster.engine);
    let proof = until_answered(async || Box::pin(prove(config)).await).await;
    let Proof { races, writers, .. } = proof.with_context(refused)?;
    tracing::info!(engine = %cluster.engine, races, writers, "the engine can hold the records of several origins");
    durable_file::replace(&data_dir.join(FILE), format!("{engine}\n").as_bytes()).context("data_dir cannot be written")
}

/// Checks again while nothing is known. What an engine did wrong, it would do again.
async fn until_answered<T>(mut check: impl AsyncFnMut() -> Result<T, ProofError>) -> Result<T, ProofError> {
    let begun = tokio::time::Instant::now();
    for pause in PAUSES {
        match check().await {
            Err(error @ ProofError::Unavailable(_)) if begun.elapsed() < PATIENCE => {
                let pause = pause.mul_f64(0.5 + fastrand::f64());
                tracing::warn!(%error, ?pause, "the engine did not answer all requests, and is checked again");
                tokio::time::sleep(pause).await;
            }
            known => return known,
        }
    }
    check().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_does_not_answer_is_checked_again_for_a_while() {
        let unavailable = || Err(ProofError::Unavailable("no answer".to_owned()));
        let refused = || Err(ProofError::Refused("two winners".to_owned()));
        // What the checks find one after the other, and how many there are.
        for (found, checks, result) in [
            (vec![Ok(1)], 1, "Ok(1)"),
            (vec![unavailable(), unavailable(), Ok(3)], 3, "Ok(3)"),
            (vec![unavailable(), refused(), Ok(3)], 2, "Err(Refused(\"two winners\"))"),
            ((0..9).map(|_| unavailable()).collect(), 5, "Err(Unavailable(\"no answer\"))"),
        ] {
            let (mut found, mut count) = (found.into_iter(), 0);
            let ended = until_answered(async || {
                count += 1;
                found.next().unwrap()
            });
            assert_eq!(format!("{:?}", ended.await), result);
            assert_eq!(count, checks, "{result}");
        }
    }
}
