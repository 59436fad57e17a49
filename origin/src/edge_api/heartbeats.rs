//! `POST /v1/heartbeats`: signed freshness statements, of the services that this origin owns and may vouch for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use http::{HeaderValue, Method, Request, Response, header};
use tokio::task::spawn_blocking;
use weir_protocol::descriptor::{Publication, Selector};
use weir_protocol::event::RevisionSeen;
use weir_protocol::freshness::{Freshness, HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES, SignedFreshness};
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::{Body, RequestBody};
use weir_source::Service;

use super::problems;
use super::{EdgeApi, InCluster};
use crate::catalog::Snapshot;
use crate::cluster::{Owner, owner};
use crate::reconcile::{Health, RepositoryState};

/// Composed services without a statement: of each the part, and why.
pub(super) type Unstated = HashMap<ServiceName, (ServiceName, &'static str)>;

/// The most composed services without a statement of which it is remembered that this was logged.
const MAX_UNSTATED: usize = 1_000;

impl EdgeApi {
    /// Signs a statement for each service of the request that this origin owns and has published. The others are absent.
    pub(super) async fn heartbeats(&self, request: Request<RequestBody>) -> Result<Response<Body>, Problem> {
        if request.method() != Method::POST {
            return Err(Problem::method_not_allowed("POST"));
        }
        let body = request.into_body().read(MAX_REQUEST_BYTES).await?;
        let request = HeartbeatRequest::parse(&body).map_err(|error| Problem::malformed(error.to_string()))?;
        let snapshot = self.catalog.snapshot();
        self.ask_owners_of_parts(&snapshot, &request.services).await;
        let now = SystemTime::now();
        let statements: Vec<_> =
            request.services.into_iter().filter_map(|service| self.statement(&snapshot, service, now)).collect();
        let signer = self.signer.clone();
        let sign = move |(statement, staged): (Freshness, Option<Freshness>)| {
            let envelope = signer.freshness(&statement)?;
            let staged = staged.and_then(|staged| signer.freshness(&staged));
            Some(SignedFreshness { service: statement.service, envelope, staged })
        };
        // 256 signatures take some milliseconds for each key.
        let signed = spawn_blocking(move || statements.into_iter().filter_map(sign).collect::<Vec<_>>());
        let services = signed.await.map_err(|_| problems::overloaded())?;
        // A session that ended while it signed: another origin may have published since.
        let services = if self.may_vouch() { services } else { Vec::new() };
        self.metrics.statements.inc_by(services.len() as u64);
        let mut response = Response::new(Body::from(HeartbeatAnswer { services }.to_json()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// What is true now of a service that this origin owns, and of its staged version.
    fn statement(
        &self,
        snapshot: &Snapshot,
        name: ServiceName,
        now: SystemTime,
    ) -> Option<(Freshness, Option<Freshness>)> {
        let service = snapshot.services.get(&name).filter(|service| self.is_owner(snapshot, &service.repository))?;
        let current = service.current()?;
        // Another repository may have published it since it was withdrawn here.
        if !self.publisher.repositories.unheld(&service.repository, std::slice::from_ref(&name)).is_empty() {
            return None;
        }
        // Of a composed service the upstream of a part that is unreachable for the longest time.
        let (mut unreachable, mut time) = (unreachable_since(snapshot, service)?, now);
        for part in service.part_services() {
            let of_part = self.of_part(snapshot, part, now);
            // What its owner said is true as of then.
            let (stated, since) = of_part.inspect_err(|why| self.note_unstated(&name, Some((part, *why)))).ok()?;
            time = time.min(stated);
            unreachable = unreachable.into_iter().chain(since).min();
        }
        if service.part_services().next().is_some() {
            self.note_unstated(&name, None);
        }
        let staged = current.fields().staged.as_ref();
        let staged = staged.and_then(|staged| staged.later_than(current.publication()));
        let statement = Freshness {
            service: name,
            selector: Selector,
            generation: current.publication().generation,
            digest: current.publication().digest,
            time,
            upstream_unreachable_since: unreachable,
        };
        let staged = staged.map(|staged| {
            let Publication { generation, digest, .. } = *staged.publication();
            Freshness { generation, digest, ..statement.clone() }
        });
        Some((statement, staged))
    }

    /// Until when it is known of a part since when its upstream is unreachable, or why that is not known.
    fn of_part(
        &self,
        snapshot: &Snapshot,
        name: &ServiceName,
        now: SystemTime,
    ) -> Result<(SystemTime, Option<SystemTime>), &'static str> {
        let part = snapshot.services.get(name).ok_or("it is deleted")?;
        if self.is_owner(snapshot, &part.repository) {
            let unknown = "it is not published, or its repository was not polled since the start";
            return Ok((now, unreachable_since(snapshot, part).ok_or(unknown)?));
        }
        let stated = self.cluster.as_ref().ok_or("it has no owner")?.statements.get(name, now)?;
        Ok((stated.time, stated.upstream_unreachable_since))
    }

    /// Logs once which part of a composed service has no statement, and why.
    fn note_unstated(&self, name: &ServiceName, of: Option<(&ServiceName, &'static str)>) {
        let mut unstated = self.unstated.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((part, why)) = of else { return drop(unstated.remove(name)) };
        if is_news(&mut unstated, name, (part.clone(), why)) {
            tracing::warn!(service = %name, %part, why, "no freshness statement: nobody knows how fresh this part is");
        }
    }

    /// Has the owners of parts state what is true of these, for the composed services that this origin owns.
    async fn ask_owners_of_parts(&self, snapshot: &Snapshot, services: &BTreeSet<ServiceName>) {
        let Some(InCluster { cluster, statements, .. }) = &self.cluster else { return };
        let view = cluster.view();
        let composed = services.iter().filter_map(|name| snapshot.services.get(name));
        let composed = composed.filter(|service| self.is_owner(snapshot, &service.repository));
        let mut of_owners = BTreeMap::<String, BTreeSet<ServiceName>>::new();
        for part in composed.flat_map(|service| service.part_services()) {
            let Some(repository) = snapshot.services.get(part).map(|part| &part.repository) else { continue };
            let claim = self.publisher.repositories.claim(repository);
            if let Owner::Other(member) = owner(&view, repository, claim.as_ref()) {
                of_owners.entry(member.url).or_default().insert(part.clone());
            }
        }
        statements.ask(of_owners, &self.signer).await;
    }

    fn may_vouch(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.cluster.validity().holds())
    }
}

/// Remembers a part without a statement, and why. Whether this was not known.
fn is_news(unstated: &mut Unstated, name: &ServiceName, now: (ServiceName, &'static str)) -> bool {
    if unstated.len() >= MAX_UNSTATED && !unstated.contains_key(name) {
        unstated.clear();
    }
    unstated.insert(name.clone(), now.clone()) != Some(now)
}

/// Since when an upstream that a service follows is unreachable. `None`: nobody knows whether one is.
fn unreachable_since(snapshot: &Snapshot, service: &Arc<Service>) -> Option<Option<SystemTime>> {
    let current = service.current()?;
    let mut unreachable: Option<SystemTime> = None;
    for follower in service.followers() {
        let worker = snapshot.workers.get(&follower.repository)?;
        let since = match worker.revision(current.followed_ref()) {
            Some(RevisionSeen { upstream, .. }) => (!upstream.reachable).then_some(upstream.since),
            None => match worker.state() {
                // Not polled since the start: nobody knows.
                RepositoryState { health: Health::Unknown, .. } => return None,
                RepositoryState { health: Health::Unhealthy { since, .. }, consecutive_failures: 1.., .. } => {
                    Some(since)
                }
                _ => None,
            },
        };
        unreachable = unreachable.into_iter().chain(since).min();
    }
    Some(unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_no_news_at_the_bound() {
        let (mut unstated, part) = (Unstated::new(), "part".parse::<ServiceName>().unwrap());
        let mut news = |number: usize, why: &'static str| {
            is_news(&mut unstated, &format!("s{number}").parse().unwrap(), (part.clone(), why))
        };
        for expected in [true, false] {
            assert!((0..MAX_UNSTATED).all(|number| news(number, "it is deleted") == expected), "{expected}");
        }
        assert!(news(0, "it has no owner"));
        assert!(!news(1, "it is deleted"));
        assert!(news(MAX_UNSTATED, "it is deleted") && news(1, "it is deleted"), "the others are forgotten");
    }
}
