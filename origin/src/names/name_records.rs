//! The names records: which repository has the name of a service, atomically over the whole cluster.
//!
//! All requests of this origin that wait for a record go into one compare-and-set ([`NameWriter`]). Writers of many records
//! run at once, a few at a time, so that requests gather in those that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use prometheus::{IntCounterVec, Registry};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use weir_ownership::{Entry, NAME_BUCKETS, NameAnswer, NameRequest, NameStep, NameWriter, Names};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Validity, WritePace, unix_milliseconds};
use weir_runtime::bounds::Bounds;
use weir_runtime::metric_families;
use weir_store::{Expect, PutOutcome, RecordKey, Records, Version};

use crate::shared_read::SharedRead;

const FORMAT: u32 = 1;

/// Callers at a time; others wait.
const MAX_CALLERS: usize = 1024;

/// Records that are read or written at a time.
const CONCURRENT_BUCKETS: usize = 16;

/// Writes that may follow each other after a pause, and the time between two others, on an engine that bills or shares them:
/// each record may be written once within three seconds.
const WRITE_BURST: u32 = 128;
const WRITE_INTERVAL: Duration = Duration::from_millis(15);

/// The pause after a request that failed, or was refused.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Callers are given up after this time without an answer of the engine.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

metric_families! {
    /// The families of names.
    pub(crate) struct NameMetrics {
        /// Writes of names records; one may hold the names of many services. `conflict`: another origin came first, and it was
        /// repeated. `unknown`: the outcome was read back later.
        writes: IntCounterVec = "weir_origin_name_writes_total" { result: ["done", "conflict", "unknown"] };
    }
}

/// It is not known whether the names were changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the records of names cannot be read or written now; the origin's log has the reason")]
pub(crate) struct NamesUnavailable;

/// A names record as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredNames {
    format: u32,
    names: Names,
}

/// Clones are cheap.
#[derive(Clone)]
pub(crate) struct NameRecords(Arc<Shared>);

struct Shared {
    records: Records,
    validity: Validity,
    metrics: NameMetrics,
    buckets: Vec<Mutex<Bucket>>,
    callers: Arc<Semaphore>,
    slots: Semaphore,
    pace: Mutex<WritePace>,
    all: SharedRead<Arc<AllNames>, NamesUnavailable>,
}

/// All names, as they were at one time.
#[derive(Debug, Default)]
pub(crate) struct AllNames {
    holders: BTreeMap<ServiceName, RepositoryName>,
    held: BTreeMap<RepositoryName, Vec<ServiceName>>,
}

impl AllNames {
    fn of(entries: impl Iterator<Item = (ServiceName, Entry)>) -> Self {
        let mut all = Self::default();
        for (service, entry) in entries {
            if let Entry::Held { repository, .. } = entry {
                all.held.entry(repository.clone()).or_default().push(service.clone());
                all.holders.insert(service, repository);
            }
        }
        all
    }

    /// The repository that has a name.
    pub(crate) fn holder(&self, service: &ServiceName) -> Option<&RepositoryName> {
        self.holders.get(service)
    }

    /// The names that a repository has.
    pub(crate) fn of_repository(&self, repository: &RepositoryName) -> &[ServiceName] {
        self.held.get(repository).map_or(&[], Vec::as_slice)
    }
}

type Caller = oneshot::Sender<Vec<NameAnswer>>;

#[derive(Default)]
struct Bucket {
    writer: NameWriter<Version, Caller>,
    is_running: bool,
}

impl NameRecords {
    /// # Errors
    /// The metrics are registered already.
    pub(crate) fn new(
        records: Records,
        validity: Validity,
        registry: &Registry,
        bounds: &Bounds,
    ) -> prometheus::Result<Self> {
        let pace = if records.are_local() {
            WritePace::Unlimited
        } else {
            WritePace::limited(WRITE_INTERVAL, WRITE_BURST, Instant::now())
        };
        Ok(Self(Arc::new(Shared {
            records,
            validity,
            metrics: NameMetrics::register(registry)?,
            buckets: (0..NAME_BUCKETS).map(|_| Mutex::default()).collect(),
            callers: bounds.semaphore("name_requests", MAX_CALLERS),
            slots: Semaphore::new(CONCURRENT_BUCKETS),
            pace: Mutex::new(pace),
            all: SharedRead::default(),
        })))
    }

    /// Carries out requests. Returns their answers in the same order.
    ///
    /// # Errors
    /// The engine did not answer, or the session has ended. The requests may have been carried out.
    pub(crate) async fn request(&self, requests: Vec<NameRequest>) -> Result<Vec<NameAnswer>, NamesUnavailable> {
        let _caller = self.0.callers.acquire().await;
        self.begin(requests).await
    }

    /// The same, in the order of the calls: after what was requested before, and before what is requested then.
    pub(crate) fn begin(
        &self,
        requests: Vec<NameRequest>,
    ) -> impl Future<Output = Result<Vec<NameAnswer>, NamesUnavailable>> + use<> {
        let mut of: BTreeMap<u8, (Vec<usize>, Vec<NameRequest>)> = BTreeMap::new();
        let count = requests.len();
        for (position, request) in requests.into_iter().enumerate() {
            let (positions, requests) = of.entry(Names::bucket(&request.name)).or_default();
            positions.push(position);
            requests.push(request);
        }
        let submitted: Vec<_> =
            of.into_iter().map(|(bucket, (positions, requests))| (positions, self.submit(bucket, requests))).collect();
        async move {
            let mut all = vec![NameAnswer::Superseded; count];
            for (positions, answers) in submitted {
                let answers = answers.await.map_err(|_| NamesUnavailable)?;
                positions.into_iter().zip(answers).for_each(|(position, answer)| all[position] = answer);
            }
            Ok(all)
        }
    }

    fn submit(&self, number: u8, requests: Vec<NameRequest>) -> oneshot::Receiver<Vec<NameAnswer>> {
        let (caller, answers) = oneshot::channel();
        let mut bucket = self.0.bucket(number);
        bucket.writer.submit(requests, caller);
        if !std::mem::replace(&mut bucket.is_running, true) {
            tokio::spawn(run(self.0.clone(), number));
        }
        answers
    }

    /// All names, as they were at most so long ago. Callers that wait share one read, and its failure.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn all(&self, max_age: Duration) -> Result<Arc<AllNames>, NamesUnavailable> {
        self.0.all.run(max_age, self.read_all()).await
    }

    /// The repository that has a name now, of which one record is read.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn holder(&self, service: &ServiceName) -> Result<Option<RepositoryName>, NamesUnavailable> {
        let key = RecordKey::names(Names::bucket(service));
        let (names, _) = self.0.read(&key).await.map_err(|error| {
            tracing::warn!(%key, error, "the names of services cannot be read");
            NamesUnavailable
        })?;
        Ok(AllNames::of(names.into_iter().filter(|(name, _)| name == service)).holder(service).cloned())
    }

    async fn read_all(&self) -> Result<Arc<AllNames>, NamesUnavailable> {
        let failed = |key: String, error: String| {
            tracing::warn!(key, error, "the names of services cannot be read");
            NamesUnavailable
        };
        let keys = self.0.records.list(RecordKey::NAMES).await;
        let keys = keys.map_err(|error| failed(RecordKey::NAMES.to_owned(), error.to_string()))?;
        let reads = stream::iter(keys.into_iter().map(|key| async move {
            let read = self.0.read(&key).await;
            read.map(|(names, _)| names).map_err(|error| failed(key.to_string(), error))
        }));
        let read: Vec<Names> = reads.buffer_unordered(CONCURRENT_BUCKETS).try_collect().await?;
        Ok(Arc::new(AllNames::of(read.into_iter().flatten())))
    }
}

impl Shared {
    fn bucket(&self, number: u8) -> MutexGuard<'_, Bucket> {
        self.buckets[usize::from(number)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, key: &RecordKey) -> Result<(Names, Option<Version>), String> {
        let Some(record) = self.records.get(key).await.map_err(|error| error.to_string())? else {
            return Ok((Names::default(), None));
        };
        let stored: StoredNames = serde_json::from_slice(&record.bytes).map_err(|error| error.to_string())?;
        if stored.format != FORMAT {
            return Err(format!(
                "it has format {}, and this version knows {FORMAT}: upgrade this origin",
                stored.format
            ));
        }
        Ok((stored.names, Some(record.version)))
    }

    async fn write(&self, key: &RecordKey, expect: Option<Version>, names: Names) -> PutOutcome {
        let bytes = serde_json::to_vec(&StoredNames { format: FORMAT, names }).expect("names are plain data");
        let outcome = self.records.put(key, Bytes::from(bytes), expect.map_or(Expect::Absent, Expect::Version)).await;
        let result = match &outcome {
            PutOutcome::Done(_) => "done",
            PutOutcome::Conflict => "conflict",
            PutOutcome::Unknown(_) => "unknown",
        };
        self.metrics.writes.with_label_values(&[result]).inc();
        outcome
    }

    /// Waits until the engine bears another write.
    async fn paced(&self) {
        let allowed = {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            let allowed = pace.next_write();
            pace.count_write(allowed.map_or_else(Instant::now, |allowed| allowed.max(Instant::now())));
            allowed
        };
        if let Some(allowed) = allowed {
            sleep_until(allowed).await;
        }
    }
}

/// Answers all callers of a record, then ends.
async fn run(shared: Arc<Shared>, number: u8) {
    let key = RecordKey::names(number);
    // A store that hangs keeps nobody for longer than one attempt after this, however many records wait.
    let mut ends = Instant::now() + GIVE_UP_AFTER;
    shared.paced().await;
    let _slot = shared.slots.acquire().await;
    while let Some(step) = shared.next(number) {
        match shared.carry_out(step, number, &key).await {
            Ok(answered) => {
                ends = if answered.is_empty() { ends } else { Instant::now() + GIVE_UP_AFTER };
                // Callers may have gone.
                answered.into_iter().for_each(|(caller, answers)| drop(caller.send(answers)));
            }
            Err(error) if Instant::now() >= ends || !shared.validity.holds() => {
                tracing::warn!(%key, error, "the names of services cannot be read or written");
                drop(shared.bucket(number).writer.give_up());
            }
            Err(_) => {
                shared.bucket(number).writer.failed(true);
                sleep(RETRY_AFTER).await;
            }
        }
    }
}

impl Shared {
    /// `None`: all callers are answered.
    fn next(&self, number: u8) -> Option<NameStep<Version, Caller>> {
        let mut bucket = self.bucket(number);
        let step = bucket.writer.next(unix_milliseconds(SystemTime::now()));
        bucket.is_running = !matches!(step, NameStep::Rest);
        bucket.is_running.then_some(step)
    }

    /// Returns whom to answer.
    async fn carry_out(
        &self,
        step: NameStep<Version, Caller>,
        number: u8,
        key: &RecordKey,
    ) -> Result<Vec<(Caller, Vec<NameAnswer>)>, String> {
        match step {
            NameStep::Rest => Ok(Vec::new()),
            NameStep::Answer(answered) => Ok(answered),
            NameStep::Read => {
                let (names, version) = self.read(key).await?;
                self.bucket(number).writer.read(names, version);
                Ok(Vec::new())
            }
            NameStep::Write { .. } if !self.validity.holds() => Err("the session has ended".to_owned()),
            NameStep::Write { expect, names } => match self.write(key, expect, names).await {
                PutOutcome::Done(version) => Ok(self.bucket(number).writer.written(version)),
                PutOutcome::Conflict => {
                    self.bucket(number).writer.failed(false);
                    sleep(RETRY_AFTER.mul_f64(fastrand::f64())).await;
                    Ok(Vec::new())
                }
                PutOutcome::Unknown(error) => Err(error.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_ownership::NameChange;
    use weir_store::StoreMetrics;
    use weir_store::testing::{FaultyEngine, WriteFault};

    use super::*;

    fn origin(dir: &Path, faults: impl IntoIterator<Item = WriteFault>) -> NameRecords {
        let engine = FaultyEngine::local(dir);
        engine.fail_writes(faults);
        let registry = Registry::new();
        let records = Records::over(engine, StoreMetrics::register(&registry).unwrap());
        NameRecords::new(records, Validity::always(), &registry, &Bounds::default()).unwrap()
    }

    fn take(name: &str, repository: &str) -> NameRequest {
        let (name, repository) = (name.parse().unwrap(), repository.parse().unwrap());
        NameRequest { name, repository, fence: 1, change: NameChange::Take }
    }

    #[tokio::test]
    async fn of_several_origins_at_one_time_one_gets_each_name() {
        const NAMES: usize = 10_000;
        const OF_A_REPOSITORY: usize = 100;
        let dir = tempfile::tempdir().unwrap();
        // They share one engine, as the origins of a cluster do: its locks are those of one process.
        let registry = Registry::new();
        let metrics = StoreMetrics::register(&registry).unwrap();
        let records = Records::over(FaultyEngine::local(dir.path()), metrics);
        let origins = [(); 3].map(|()| {
            NameRecords::new(records.clone(), Validity::always(), &Registry::new(), &Bounds::default()).unwrap()
        });
        let began = Instant::now();
        // All want the names of the first repository, and each a third of the others.
        let taken = (0..NAMES / OF_A_REPOSITORY).flat_map(|number| (0..3).map(move |index| (number, index)));
        let taken = taken.filter(|(number, index)| *number == 0 || number % 3 == *index).map(|(number, index)| {
            let names = number * OF_A_REPOSITORY..(number + 1) * OF_A_REPOSITORY;
            let requests = names.map(|name| take(&format!("s{name}"), &format!("r{number}-{index}"))).collect();
            let origin = &origins[index];
            async move { origin.request(requests).await.unwrap() }
        });
        let taken = futures_util::future::join_all(taken).await;
        for name in 0..OF_A_REPOSITORY {
            let done = taken[..3].iter().filter(|answers| answers[name] == NameAnswer::Done { last: 0 });
            assert_eq!(done.count(), 1, "s{name}");
        }
        assert!(taken[3..].iter().flatten().all(|answer| *answer == NameAnswer::Done { last: 0 }));
        let requests: f64 = registry
            .gather()
            .iter()
            .filter(|family| family.name().contains("record_requests"))
            .flat_map(|family| family.get_metric())
            .map(|metric| metric.get_counter().get_value())
            .sum();
        println!("{NAMES} names of 3 origins: {requests} requests, {:?}", began.elapsed());
        assert!(requests <= 3000.0, "{requests} requests");
        assert_eq!(origins[0].all(Duration::ZERO).await.unwrap().holders.len(), NAMES);
    }

    #[tokio::test(start_paused = true)]
    async fn all_names_are_read_again_only_when_the_last_read_is_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let origin = origin(dir.path(), []);
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let first = origin.all(minutes(0)).await.unwrap();
        tokio::time::advance(minutes(9)).await;
        assert!(Arc::ptr_eq(&first, &origin.all(minutes(10)).await.unwrap()));
        assert!(!Arc::ptr_eq(&first, &origin.all(minutes(8)).await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_outcome_is_read_back() {
        for fault in [WriteFault::Lost, WriteFault::Unconfirmed, WriteFault::Refused] {
            let dir = tempfile::tempdir().unwrap();
            let origin = origin(dir.path(), [fault]);
            let answers = origin.request(vec![take("a", "shop"), take("a", "blog")]).await.unwrap();
            let expected = [NameAnswer::Done { last: 0 }, NameAnswer::HeldBy("shop".parse().unwrap())];
            assert_eq!(answers, expected, "{fault:?}");
        }
    }
}
