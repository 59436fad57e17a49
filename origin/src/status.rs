//! `/status`: what a person wants to see, as JSON.

use std::time::SystemTime;

use serde_json::{Value, json};
use weir_shared::name::NodeName;

use crate::catalog::{Catalog, DefinedBy, Snapshot};
use crate::mirror::FetchSnapshot;
use crate::publication::history::Time;
use crate::repository_agent::{Handle, Health, Phase, RepositoryState, WaitsFor};
use crate::service::{Condition, Otherwise, Service};

/// All repositories and services, with their states.
pub(crate) fn status(name: &NodeName, started: SystemTime, catalog: &Catalog) -> Value {
    let snapshot = catalog.snapshot();
    json!({
        "role": "origin",
        "name": name,
        "version": env!("CARGO_PKG_VERSION"),
        "started": time(started),
        "repositories": repositories(&snapshot),
        "services": services(&snapshot),
    })
}

fn repositories(snapshot: &Snapshot) -> Vec<Value> {
    let defined = snapshot.definitions.repositories.iter();
    let shown = defined.map(|(name, defined)| {
        let state = snapshot.agents.get(name).map(repository);
        entry(json!({ "name": name, "defined_by": defined.by.as_str() }), state)
    });
    shown.collect()
}

fn services(snapshot: &Snapshot) -> Vec<Value> {
    let shown = snapshot.services.values().map(|each| {
        let by = snapshot.definitions.services.get(&each.name).map_or(DefinedBy::File, |defined| defined.by);
        let about = json!({
            "name": each.name,
            "defined_by": by.as_str(),
            "repository": each.repository,
            "ref": each.revision.to_string(),
            "folder": each.selection.folder,
        });
        entry(about, Some(service(each)))
    });
    shown.collect()
}

/// What an object is, and how.
fn entry(mut about: Value, state: Option<Value>) -> Value {
    if let (Value::Object(about), Some(Value::Object(state))) = (&mut about, state) {
        about.extend(state);
    }
    about
}

/// How a repository is.
pub(crate) fn repository(agent: &Handle) -> Value {
    let RepositoryState {
        phase,
        health,
        mirrored,
        attempts,
        consecutive_failures,
        last_success,
        next_poll,
        held_until,
        waits_for,
    } = agent.state();
    let (health, since, failure) = match health {
        Health::Unknown => ("unknown", None, None),
        Health::Healthy { since } => ("healthy", Some(since), None),
        Health::Unhealthy { since, failure } => ("unhealthy", Some(since), Some(failure)),
    };
    json!({
        "phase": phase.as_str(),
        "progress": match &phase {
            Phase::Cloning { progress: at } | Phase::Polling { progress: at } => progress(at),
            Phase::FetchingLfs { service } | Phase::Building { service } => json!({ "service": service }),
            Phase::Idle | Phase::Overdue => Value::Null,
        },
        "health": health,
        "since": since.map(time),
        "failure": failure.map(|failure| json!({
            "step": failure.step, "reason": failure.reason, "timeout": failure.timeout,
        })),
        "mirrored": mirrored,
        "polls": attempts,
        "consecutive_failures": consecutive_failures,
        "last_success": last_success.map(time),
        "next_poll": next_poll.map(time),
        "held_until": held_until.map(time),
        "waits_for": waits_for.map(WaitsFor::as_str),
    })
}

fn progress(at: &FetchSnapshot) -> Value {
    json!({ "phase": at.phase, "done": at.done, "total": at.total, "bytes": at.bytes })
}

/// How a service is.
pub(crate) fn service(service: &Service) -> Value {
    let condition = service.condition();
    let current = service.current();
    json!({
        "condition": condition.as_str(),
        "failure": match &condition {
            Condition::Unhealthy { since, step, reason } => {
                json!({ "since": time(*since), "step": step, "reason": reason })
            }
            Condition::Pending | Condition::Following | Condition::Pinned { .. } => Value::Null,
        },
        "pinned": match &condition {
            Condition::Pinned { since, otherwise } => json!({ "since": time(*since), "otherwise": would_be(otherwise) }),
            _ => Value::Null,
        },
        "published": current.map(|descriptor| {
            let publication = descriptor.publication();
            json!({
                "generation": publication.generation,
                "revision": descriptor.revision(),
                "digest": publication.digest,
                "commit": publication.commit,
                "size": publication.size,
                "published_at": time(publication.published_at),
                "omitted": publication.omitted.len(),
                "representations": descriptor.representations(),
            })
        }),
    })
}

/// What a pinned service would be at.
fn would_be(otherwise: &Otherwise) -> Value {
    match otherwise {
        Otherwise::Unknown => Value::Null,
        Otherwise::At(commit) => json!({ "commit": commit }),
        Otherwise::Unhealthy { step, reason } => json!({ "failure": { "step": step, "reason": reason } }),
    }
}

fn time(time: SystemTime) -> String {
    // Some of them come from rows of the disk, and may say anything.
    Time::from(time).into()
}
