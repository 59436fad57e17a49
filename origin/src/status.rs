//! `/status`: the state of the origin as JSON.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::{NodeName, RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_publish::{Frozen, Time};
use weir_rollout::Freeze;
use weir_runtime::admin::Readiness;
use weir_source::{Condition, Lost, Pin, PollFailure, Service, ServiceConfig, WithoutPin};
use weir_upstream::{FetchSnapshot, RepositoryConfig};

use crate::catalog::{Defined, NotMirrored, RawDocument, Refused, Snapshot};
use crate::reconcile::{Handle, Health, LfsState, Phase, RepositoryState, WaitsFor};

/// What the origin is, and whether it can do its work.
pub(crate) fn head(name: &NodeName, started: SystemTime, ready: Readiness) -> Value {
    let (ready, reasons) = ready.into_parts();
    json!({
        "role": "origin",
        "name": name,
        "version": env!("CARGO_PKG_VERSION"),
        "started": time(started),
        "ready": ready,
        "reasons": reasons,
    })
}

/// A repository, with its definition and its state.
pub(crate) fn repository_entry(
    snapshot: &Snapshot,
    (name, defined): (&RepositoryName, &Defined<RepositoryConfig>),
) -> Value {
    let kind = defined.document.valid().map(|document| document.kind);
    let about = json!({ "name": name, "defined_by": defined.by.as_str(), "kind": kind });
    entry(about, state_of_repository(snapshot, name))
}

/// A service, with its definition and its state.
pub(crate) fn service_entry(snapshot: &Snapshot, (name, defined): (&ServiceName, &Defined<ServiceConfig>)) -> Value {
    let by = defined.by.as_str();
    let about = match &defined.document {
        RawDocument::Valid(document) => json!({
            "name": name,
            "defined_by": by,
            "repository": document.home(),
            "chart": document.chart,
            "ref": document.parts.is_empty().then_some(&document.followed_ref),
            "folder": document.parts.is_empty().then_some(&document.folder),
            "parts": document.parts,
        }),
        RawDocument::Refused(refused) => json!({
            "name": name,
            "defined_by": by,
            "repository": refused.field("repository"),
            "chart": refused.field("chart"),
            "ref": refused.field("ref"),
            "folder": refused.field("folder"),
            "parts": refused.field("parts"),
        }),
    };
    entry(about, state_of_service(snapshot, name, &defined.document))
}

/// The health of a repository in one word, as in its entry, or that it is suspended.
pub(crate) fn health_of(snapshot: &Snapshot, name: &RepositoryName) -> &'static str {
    if !snapshot.owns(name) {
        return "elsewhere";
    }
    match snapshot.workers.get(name) {
        Some(worker) if worker.suspension().is_some() => "suspended",
        Some(worker) => worker.state().health.as_str(),
        None if snapshot.not_mirrored.contains_key(name) => "unhealthy",
        None => "unknown",
    }
}

/// The condition of a service in one word, as in its entry.
pub(crate) fn condition_of(
    snapshot: &Snapshot,
    name: &ServiceName,
    document: &RawDocument<ServiceConfig>,
) -> &'static str {
    match snapshot.services.get(name) {
        Some(service) if !snapshot.owns(&service.repository) && !service.is_pinned() => "elsewhere",
        Some(service) => service.condition().as_str(),
        None if document.refused().is_some() => "unhealthy",
        None => "pending",
    }
}

/// The state of a repository, mirrored or not. Only its owner knows more than that it is owned elsewhere.
pub(crate) fn state_of_repository(snapshot: &Snapshot, name: &RepositoryName) -> Option<Value> {
    let not_mirrored = |NotMirrored { since, reason }: &NotMirrored| {
        json!({
            "health": "unhealthy",
            "since": time(*since),
            "failure": { "step": "document", "reason": reason, "timeout": false },
        })
    };
    if !snapshot.owns(name) {
        return Some(json!({ "health": "elsewhere" }));
    }
    let state = snapshot.workers.get(name).map(repository);
    state.or_else(|| snapshot.not_mirrored.get(name).map(not_mirrored))
}

/// The state of a service, even if its document is invalid and names no repository.
pub(crate) fn state_of_service(
    snapshot: &Snapshot,
    name: &ServiceName,
    document: &RawDocument<ServiceConfig>,
) -> Option<Value> {
    let refused = |refused: &Arc<Refused>| {
        json!({
            "condition": "unhealthy",
            "waits_for_lfs_since": null,
            "building_since": null,
            "failure": { "of": "service", "since": null, "step": "document", "reason": refused.reason },
            "stepping_back": null,
            "seen": null,
            "pinned": null,
            "frozen": null,
            "published": null,
        })
    };
    let state = snapshot.services.get(name).map(|each| {
        let mut state = service(each, snapshot);
        state["condition"] = condition_of(snapshot, name, document).into();
        state
    });
    state.or_else(|| document.refused().map(refused))
}

/// Merges an object's definition with its state.
fn entry(mut about: Value, state: Option<Value>) -> Value {
    if let (Value::Object(about), Some(Value::Object(state))) = (&mut about, state) {
        about.extend(state);
    }
    about
}

fn repository(worker: &Handle) -> Value {
    let RepositoryState {
        phase,
        building,
        health,
        mirrored,
        polls: _,
        applied_polls,
        consecutive_failures,
        last_success,
        next_poll,
        held_until,
        waits_for,
        lfs,
        left_out,
        stepping_back: _,
        first_poll: _,
    } = worker.state();
    let word = health.as_str();
    let (since, failure) = match health {
        Health::Unknown => (None, None),
        Health::Healthy { since } => (Some(since), None),
        Health::Unhealthy { since, failure } => (Some(since), Some(failure)),
    };
    json!({
        "phase": phase.as_str(),
        "building": building.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "progress": match &phase {
            Phase::Fetching { progress: at } | Phase::Polling { progress: at } => progress(at),
            Phase::Idle | Phase::Examining | Phase::Overdue => Value::Null,
        },
        "health": word,
        "since": since.map(time),
        "failure": failure.map(|failure| json!({
            "step": failure.step, "reason": failure.reason, "timeout": failure.timeout,
        })),
        "mirrored": mirrored,
        "suspended": worker.suspension().map(|why| json!({ "since": time(why.since), "reason": why.reason })),
        "polls": applied_polls,
        "consecutive_failures": consecutive_failures,
        "last_success": last_success.map(time),
        "next_poll": next_poll.map(time),
        "held_until": held_until.map(time),
        "waits_for": waits_for.map(WaitsFor::as_str),
        "lfs": lfs.map(|lfs| self::lfs(&lfs)),
        "left_out_refs":
            left_out.iter().map(|each| json!({ "ref": each.name, "reason": each.failure.reason })).collect::<Vec<_>>(),
    })
}

fn lfs(wanted: &LfsState) -> Value {
    json!({
        "services": wanted.services.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "objects": wanted.objects,
        "fetching": wanted.fetching,
        "waits_for": wanted.waits_for.map(WaitsFor::as_str),
        "failure": wanted.failure.as_ref().map(|failure| json!({
            "since": time(failure.since), "reason": failure.reason, "attempts": failure.attempts,
        })),
        "next_attempt": wanted.next_attempt.map(time),
        "held_until": wanted.held_until.map(time),
    })
}

pub(crate) fn progress(at: &FetchSnapshot) -> Value {
    json!({ "phase": at.phase, "done": at.done, "total": at.total, "bytes": at.bytes })
}

/// The state of a service. A failure is its own, or otherwise that of a repository that it follows.
fn service(service: &Arc<Service>, snapshot: &Snapshot) -> Value {
    let worker = snapshot.workers.get(&service.repository);
    let condition = service.condition();
    let current = service.current();
    let state = worker.map(Handle::state);
    let building = state.as_ref().and_then(|state| state.building.iter().find(|(name, _)| *name == service.name));
    let lfs = state.as_ref().and_then(|state| state.lfs.as_ref());
    let waits = lfs.and_then(|lfs| lfs.services.iter().find(|(name, _)| *name == service.name));
    let seen = worker.and_then(|worker| worker.revision(&service.followed.to_string()));
    let mut stepping_back = state.iter().flat_map(|state| state.stepping_back.iter());
    json!({
        // Meanwhile the current version is not the one of its ref.
        "waits_for_lfs_since": waits.map(|(_, since)| time(*since)),
        "building_since": building.map(|(_, since)| time(*since)),
        "failure": match &condition {
            Condition::Unhealthy { since, step, reason } => {
                json!({ "of": "service", "since": time(*since), "step": step, "reason": reason })
            }
            Condition::Pinned { lost: Some(Lost { since, reason }), .. } => {
                json!({ "of": "service", "since": time(*since), "step": "store", "reason": reason })
            }
            Condition::Pending | Condition::Following | Condition::Pinned { .. } => {
                let mut workers = service.followers().filter_map(|each| snapshot.workers.get(&each.repository));
                workers.find_map(|worker| match worker.state().health {
                    Health::Unhealthy { since, failure: PollFailure { step, reason, .. } } => Some(json!({
                        "of": "repository", "repository": worker.config().name, "since": time(since),
                        "step": step, "reason": reason,
                    })),
                    Health::Unknown | Health::Healthy { .. } => None,
                }).unwrap_or(Value::Null)
            }
        },
        "stepping_back": stepping_back.find(|each| each.service == service.name).map(|each| json!({
            "revision_id": each.revision_id,
            "version": each.version,
            "reason": each.reason,
            "since": time(each.since),
            "until": time(each.until),
        })),
        "seen": seen.as_ref().map(|seen| {
            let unreachable = (!seen.upstream.reachable).then(|| time(seen.upstream.since));
            json!({
                "revision_id": seen.revision_id,
                "seen_at": time(seen.seen_at),
                "upstream_unreachable_since": unreachable,
            })
        }),
        "pinned": match &condition {
            Condition::Pinned { pin, without_pin, .. } => {
                let mut shown = self::shown(pin);
                shown["otherwise"] = would_be(without_pin, seen.as_ref());
                shown
            }
            _ => Value::Null,
        },
        "frozen": worker.and_then(|worker| worker.frozen(&service.name)).map(|frozen| frozen_by(&frozen)),
        "published": current.map(|descriptor| published(&descriptor)),
    })
}

/// Nothing new is published of a service meanwhile. Of what has never been read only the reason is known.
fn frozen_by(frozen: &Frozen) -> Value {
    match frozen {
        Frozen::By(Freeze { name, until, reason, .. }) => {
            json!({ "name": name, "until": until.map(time), "reason": reason })
        }
        Frozen::Unknown => json!({ "name": null, "until": null, "reason": frozen.to_string() }),
    }
}

fn published(descriptor: &Descriptor) -> Value {
    let publication = descriptor.publication();
    json!({
        "generation": publication.generation,
        "revision": descriptor.revision(),
        "digest": publication.digest,
        "commit": publication.commit,
        "revision_id": publication.revision_id,
        "version": publication.version,
        "parts": publication.parts,
        "size": publication.size,
        "published_at": time(publication.published_at),
        "omitted": publication.omitted.len(),
        "representations": descriptor.representations(),
    })
}

fn shown(Pin { since, by, reason }: &Pin) -> Value {
    json!({ "since": time(*since), "by": by, "reason": reason })
}

/// The pin of a service, and where it stays. `None`: it is not pinned.
pub(crate) fn pin(service: &Service) -> Option<Value> {
    let Condition::Pinned { pin, .. } = service.condition() else { return None };
    let published = service.current().map(|descriptor| {
        let publication = descriptor.publication();
        json!({
            "generation": publication.generation,
            "digest": publication.digest,
            "commit": publication.commit,
            "revision_id": publication.revision_id,
            "version": publication.version,
        })
    });
    Some(json!({ "service": service.name, "pinned": shown(&pin), "published": published }))
}

/// `seen`: the newest revision of its ref. Before the first poll since it was pinned nobody has examined it.
fn would_be(without_pin: &WithoutPin, seen: Option<&RevisionSeen>) -> Value {
    let as_of = seen.map(|seen| time(seen.seen_at));
    let at = |revision: &RevisionId, examined: bool| json!({ "commit": revision.commit(), "revision_id": revision, "as_of": as_of, "examined": examined });
    match without_pin {
        WithoutPin::Unknown => seen.map_or(Value::Null, |seen| at(&seen.revision_id, false)),
        WithoutPin::At(revision) => at(revision, true),
        WithoutPin::Unhealthy { step, reason } => json!({ "failure": { "step": step, "reason": reason } }),
    }
}

pub(crate) fn time(time: SystemTime) -> String {
    // Stored times may be out of range.
    Time::from(time).into()
}
