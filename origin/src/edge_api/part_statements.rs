//! What other members state of the services that are parts of what this origin publishes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use tokio::time::timeout;
use weir_protocol::freshness::{Freshness, HeartbeatRequest, MAX_SERVICES};
use weir_protocol::name::ServiceName;
use weir_publish::Signer;

use crate::member_client::MemberClient;

/// How long a statement counts.
const MAX_AGE: Duration = Duration::from_secs(60);

/// When a member is asked again, whether it has answered or not.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// How long edges wait for it. An answer that is later counts from then on.
const PATIENCE: Duration = Duration::from_secs(1);

/// The statements of other members. Clones are cheap.
#[derive(Clone)]
pub(crate) struct PartStatements {
    client: Arc<MemberClient>,
    known: Arc<Mutex<HashMap<ServiceName, Known>>>,
}

struct Known {
    asked: Instant,
    statement: Option<Freshness>,
    /// Why there is none.
    why: &'static str,
}

impl PartStatements {
    pub(crate) fn new(client: Arc<MemberClient>) -> Self {
        Self { client, known: Arc::default() }
    }

    /// A statement that counts, or why there is none.
    pub(super) fn get(&self, part: &ServiceName, now: SystemTime) -> Result<Freshness, &'static str> {
        let known = self.known();
        let known = known.get(part).ok_or("it has no owner now")?;
        known.statement.clone().filter(|stated| counts(stated, now)).ok_or(known.why)
    }

    /// Asks members, by their URLs, for statements of parts. Members have the same keys. The services of one request of an edge
    /// have few parts, so that each owner gets few requests.
    pub(super) async fn ask(&self, of_owners: BTreeMap<String, BTreeSet<ServiceName>>, signer: &Arc<Signer>) {
        let (now, mut asked) = (Instant::now(), Vec::new());
        for (url, parts) in of_owners {
            let mut known = self.known();
            let is_due = |part: &ServiceName| known.get(part).is_none_or(|known| now >= known.asked + ASK_AFTER);
            let due: Vec<_> = parts.into_iter().filter(is_due).collect();
            for part in &due {
                let none = Known { asked: now, statement: None, why: "its owner has not answered yet" };
                known.entry(part.clone()).or_insert(none).asked = now;
            }
            for services in due.chunks(MAX_SERVICES) {
                let (statements, signer, url) = (self.clone(), signer.clone(), url.clone());
                let services = services.iter().cloned().collect();
                // A task, so that an answer after the patience counts too.
                asked.push(tokio::spawn(async move { statements.ask_one(&url, services, &signer).await }));
            }
        }
        // What is not known when this ends is not stated.
        let _ = timeout(PATIENCE, join_all(asked)).await;
        self.known().retain(|_, known| now < known.asked + 2 * MAX_AGE);
    }

    async fn ask_one(&self, url: &str, services: BTreeSet<ServiceName>, signer: &Signer) {
        let request = HeartbeatRequest { services };
        let answer = self.client.statements(url, &request).await;
        let why = if answer.is_ok() { "its owner states none" } else { "its owner does not answer" };
        let stated = answer.map(|answer| answer.services).unwrap_or_default();
        let mut known = self.known();
        for mut statement in stated.iter().filter_map(|each| signer.read_freshness(&each.envelope)) {
            // A clock that is ahead vouches for nothing that is to come.
            statement.time = statement.time.min(SystemTime::now());
            if let Some(known) = known.get_mut(&statement.service) {
                known.statement = Some(statement);
            }
        }
        for part in &request.services {
            known.entry(part.clone()).and_modify(|known| known.why = why);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ServiceName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn counts(statement: &Freshness, now: SystemTime) -> bool {
    now.duration_since(statement.time).is_ok_and(|age| age < MAX_AGE)
}
