//! Brings what is published in line with the configuration, the keys and the floor of generations.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;

use super::repositories::{Handle, Repositories};
use super::repository::Repository;
use crate::decide::draft::{Draft, Rules};
use crate::error::PublishError;
use crate::stored::known::{KnownService, Retired};

/// Retires the services that are `gone`, signs versions again if other `keys` signed them, and republishes services
/// below the floor of generations. Returns what it has retired.
pub(crate) async fn update(
    handle: &Handle,
    rules: &Rules,
    gone: HashSet<ServiceName>,
    keys: String,
    now: SystemTime,
) -> Result<Vec<Retired>, PublishError> {
    // A suspended repository is served, and not written.
    if handle.repository.suspension().is_some() {
        return Ok(Vec::new());
    }
    let (services, is_signed) = due_for_update(&handle.repository, rules, &gone, &keys, now);
    if services.is_empty() && is_signed {
        return Ok(Vec::new());
    }
    let changed = services.clone();
    let apply = move |draft: &mut Draft<'_>| apply_update(draft, &services, &gone, keys, now);
    let Updated { raised, signed, retired } = handle.edit(changed, apply).await?;
    let repository = &handle.repository.name;
    if raised > 0 || signed > 0 || !retired.is_empty() {
        let retired = retired.len();
        tracing::info!(%repository, raised, signed, retired, "the published state was updated");
    }
    let retired = retired.into_iter();
    Ok(retired.map(|(service, generation)| Retired { repository: repository.clone(), service, generation }).collect())
}

/// The services that an update changes, and whether the keys are those that have signed.
fn due_for_update(
    repository: &Repository,
    rules: &Rules,
    gone: &HashSet<ServiceName>,
    keys: &str,
    now: SystemTime,
) -> (Vec<ServiceName>, bool) {
    let known = repository.known();
    let bounds = rules.bounds(now);
    let is_signed = known.record.signed_with == keys;
    let is_due = |service: &ServiceName, row: &KnownService| {
        let has_versions = row.current.is_some() || !row.retained.is_empty();
        gone.contains(service)
            || (row.holds() && row.generation_for_all < *bounds.start())
            || row.generation > *bounds.end()
            || row.has_unknown_audience
            || (!is_signed && has_versions)
    };
    let due = known.services.iter().filter(|(service, row)| is_due(service, row));
    (due.map(|(service, _)| service.clone()).collect(), is_signed)
}

/// What an update has changed.
#[derive(Default)]
struct Updated {
    /// Services that were published again within the bounds of generations.
    raised: usize,
    /// Versions that were signed again.
    signed: usize,
    retired: Vec<(ServiceName, Generation)>,
}

/// Applies an update to a repository.
fn apply_update(
    draft: &mut Draft<'_>,
    services: &[ServiceName],
    gone: &HashSet<ServiceName>,
    keys: String,
    now: SystemTime,
) -> Result<Updated, PublishError> {
    let mut updated = Updated::default();
    let signs = draft.record.signed_with != keys;
    let bounds = draft.rules.bounds(now);
    for service in services {
        if gone.contains(service) {
            updated.retired.extend(draft.retire(service, true, now)?.map(|generation| (service.clone(), generation)));
        }
        updated.raised += usize::from(draft.end_unknown_staging(service, now)?);
        updated.raised += usize::from(draft.republish_in_bounds(service, &bounds, now)?);
        if signs {
            updated.signed += draft.renew_signatures(service, now)?;
        }
    }
    if signs {
        draft.record.signed_with = keys;
        draft.set_changed();
    }
    Ok(updated)
}

/// Retires moved services in their old repository once the new one has published them.
pub(crate) async fn retire_moved_services(repositories: &Repositories, now: SystemTime) {
    let handles = repositories.handles();
    let mut newest: HashMap<ServiceName, Generation> = HashMap::new();
    for Handle { repository, .. } in &handles {
        for (service, known) in repository.known().services.iter().filter(|(_, known)| known.current.is_some()) {
            let generation = newest.entry(service.clone()).or_default();
            *generation = known.generation.max(*generation);
        }
    }
    for handle in handles.iter().filter(|handle| handle.repository.is_taken()) {
        let repository = &handle.repository;
        let is_older =
            |service: &ServiceName, generation| newest.get(service).is_some_and(|newest| generation < *newest);
        let moved: Vec<_> = {
            let known = repository.known();
            let current = known.services.iter().filter(|(_, known)| known.current.is_some());
            let moved = current.filter(|(service, known)| is_older(service, known.generation));
            moved.map(|(service, known)| (service.clone(), known.generation)).collect()
        };
        if moved.is_empty() || repository.suspension().is_some() {
            continue;
        }
        if let Err(error) = retire_at(handle, moved, now).await {
            tracing::warn!(repository = %repository.name, %error, "moved services cannot be deleted from their old repository yet");
        }
    }
}

/// Retires services that are still at these generations and that another repository has published since.
async fn retire_at(
    handle: &Handle,
    services: Vec<(ServiceName, Generation)>,
    now: SystemTime,
) -> Result<(), PublishError> {
    let names = services.iter().map(|(service, _)| service.clone()).collect();
    let retire = move |draft: &mut Draft<'_>| {
        for (service, generation) in services {
            if draft.row(&service)?.generation == generation {
                draft.retire(&service, false, now)?;
            }
        }
        Ok(())
    };
    handle.edit(names, retire).await
}
