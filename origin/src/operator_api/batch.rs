//! `POST /v1/batch`: registers many agents, assignments and issuers in one request. Records can be changed only one by one, so
//! all documents are checked before the first is written. What breaks off after that is completed by the same request.

use std::collections::BTreeSet;
use std::str::FromStr;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use weir_protocol::access_list::Entry;
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_runtime::admin;
use weir_runtime::serve::Body;

use super::access::Caller;
use super::validation::{self, Object, ParsedDocument, explained};
use super::{OperatorApi, audit, problems};
use crate::catalog::{Outcome, Precondition, version};
use crate::config::{AgentConfig, AssignmentConfig, EntryDocument, IssuerDocument};
use crate::fleet::{FleetEntry, FleetError};

/// The longest batch, in bytes.
pub(super) const MAX_BATCH_BYTES: usize = 4 << 20;

/// The most documents of a batch.
const MAX_BATCH_DOCUMENTS: usize = 1_000;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Batch {
    agents: Vec<Value>,
    assignments: Vec<Value>,
    issuers: Vec<Value>,
}

/// The documents of a batch.
#[derive(Default)]
struct Documents {
    agents: Vec<(Agent, Precondition)>,
    assignments: Vec<(Assignment, Precondition)>,
    issuers: Vec<(Issuer, Precondition)>,
}

/// What became of the documents, by kind.
#[derive(Default)]
struct Stored {
    answer: serde_json::Map<String, Value>,
    /// Whether each was stored.
    each: Vec<Value>,
}

impl Stored {
    fn number(&self) -> usize {
        self.each.iter().filter(|each| each["stored"] == true).count()
    }
}

impl Batch {
    /// The documents, or an error for each that is not valid.
    fn read(body: &[u8]) -> Result<Documents, Problem> {
        let batch: Self =
            weir_protocol::json::from_slice(body).map_err(|error| Problem::malformed(explained(&error)))?;
        let number = batch.agents.len() + batch.assignments.len() + batch.issuers.len();
        if number > MAX_BATCH_DOCUMENTS {
            let detail = format!("The batch has {number} documents, more than {MAX_BATCH_DOCUMENTS}: send several.");
            return Err(Problem::malformed(detail));
        }
        let mut errors = Vec::new();
        let documents = Documents {
            agents: of_kind::<AgentConfig>(&batch.agents, &mut errors),
            assignments: of_kind::<AssignmentConfig>(&batch.assignments, &mut errors),
            issuers: of_kind::<IssuerDocument>(&batch.issuers, &mut errors),
        };
        if errors.is_empty() { Ok(documents) } else { Err(invalid(&errors, number)) }
    }
}

/// The documents of a kind.
fn of_kind<D>(documents: &[Value], errors: &mut Vec<Value>) -> Vec<(D::Entry, Precondition)>
where
    D: EntryDocument<Entry: FleetEntry> + Object,
    <D::Entry as Entry>::Name: FromStr,
{
    let (mut read, mut names) = (Vec::with_capacity(documents.len()), BTreeSet::new());
    for document in documents {
        let name = document.get("name").and_then(Value::as_str).unwrap_or_default();
        let mut refuse = |detail: String| {
            errors.push(json!({ "kind": <D::Entry as FleetEntry>::ONE, "name": name, "problem": "invalid-document",
                "detail": detail }));
        };
        match validation::read::<D>(name, document.to_string().as_bytes(), |_| Vec::new()) {
            Err(wrong) => refuse(weir_model::joined(&wrong)),
            Ok(_) if !names.insert(name) => refuse(format!("`{name}` is in the batch twice.")),
            Ok(ParsedDocument { document, based_on }) => match document.entry() {
                Ok(entry) => read.push((entry, Precondition { based_on, ..Precondition::default() })),
                Err(detail) => refuse(detail),
            },
        }
    }
    read
}

fn invalid(errors: &[Value], number: usize) -> Problem {
    let detail = format!(
        "{} of {number} documents cannot be stored, so none was: `errors` has the reason of each.",
        errors.len()
    );
    Problem::new(StatusCode::BAD_REQUEST, "invalid-batch", "The batch is invalid", detail).with_errors(errors.into())
}

impl OperatorApi {
    /// Creates or replaces the documents of a batch. With `?dry_run=true` they are only checked.
    pub(super) async fn batch(
        &self,
        head: &Parts,
        body: Bytes,
        (by, facts): (&Caller, &mut audit::Facts),
    ) -> Result<Response<Body>, Problem> {
        let mut is_dry_run = false;
        for (key, value) in query::pairs(head.uri.query().unwrap_or_default())? {
            match key {
                "dry_run" => is_dry_run = query::parsed(key, &value)?,
                other => return Err(query::QueryError::unknown(other, "`dry_run`").into()),
            }
        }
        let documents = spawn_blocking(move || Batch::read(&body)).await.map_err(problems::failed)??;
        let (mut errors, mut stored) = (Vec::new(), Stored::default());
        self.check(&documents.agents, &mut errors, &mut stored).await?;
        self.check(&documents.assignments, &mut errors, &mut stored).await?;
        self.check(&documents.issuers, &mut errors, &mut stored).await?;
        if !errors.is_empty() {
            let number = documents.agents.len() + documents.assignments.len() + documents.issuers.len();
            return Err(invalid(&errors, number));
        }
        if !is_dry_run {
            // Issuers come last: they let agents in, which then find what they are to follow.
            let mut failed = self.store(&documents.agents, None, by, &mut stored).await;
            failed = self.store(&documents.assignments, failed, by, &mut stored).await;
            failed = self.store(&documents.issuers, failed, by, &mut stored).await;
            facts.documents = Some(stored.number());
            if let Some(error) = failed {
                return Err(incomplete(error, stored));
            }
        }
        let mut response = admin::json(&Value::Object(stored.answer));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    async fn check<T: FleetEntry>(
        &self,
        documents: &[(T, Precondition)],
        errors: &mut Vec<Value>,
        stored: &mut Stored,
    ) -> Result<(), Problem> {
        let mut shown = Vec::new();
        for ((entry, _), checked) in documents.iter().zip(self.fleet.check_all(documents).await?) {
            match checked.map_err(Problem::from) {
                Ok(outcome) => shown.push(row(entry, outcome)),
                Err(problem) => errors.push(json!({ "kind": T::ONE, "name": entry.name().to_string(),
                    "problem": problem.kind(), "detail": problem.detail() })),
            }
        }
        stored.answer.insert(T::KIND.to_owned(), shown.into());
        Ok(())
    }

    /// Stores the documents of a kind, unless something `failed` before.
    async fn store<T: FleetEntry>(
        &self,
        documents: &[(T, Precondition)],
        failed: Option<FleetError>,
        by: &Caller,
        stored: &mut Stored,
    ) -> Option<FleetError> {
        let versions =
            |(entry, _): &(T, Precondition)| self.fleet.get::<T>(entry.name()).map(|(before, _)| version(&before));
        let before: Vec<_> = documents.iter().map(versions).collect();
        let (outcomes, error) = match failed {
            Some(error) => (Default::default(), Some(error)),
            None => self.fleet.put_all(documents).await,
        };
        let mut shown = Vec::new();
        for ((entry, _), before) in documents.iter().zip(before) {
            let (name, outcome) = (entry.name().to_string(), outcomes.get(entry.name()).copied());
            stored.each.push(json!({ "kind": T::ONE, "name": name, "stored": outcome.is_some() }));
            if let Some(outcome) = outcome {
                let after = version(entry);
                audit::log_part(by, (T::KIND, &name), before.as_deref(), (outcome.into_str(), &after));
                shown.push(row(entry, outcome));
            }
        }
        stored.answer.insert(T::KIND.to_owned(), shown.into());
        error
    }
}

fn row<T: FleetEntry>(entry: &T, outcome: Outcome) -> Value {
    json!({ "name": entry.name().to_string(), "outcome": outcome.into_str(), "version": version(entry) })
}

/// A part of a batch was stored.
fn incomplete(error: FleetError, stored: Stored) -> Problem {
    let problem = Problem::from(error);
    let detail = format!(
        "{} {} of {} documents are stored; `errors` says which. Send the batch again: it completes what is missing, and \
         changes nothing of the rest.",
        problem.detail(),
        stored.number(),
        stored.each.len()
    );
    let title = "A part of the batch was stored";
    let incomplete = Problem::new(problem.status(), "batch-incomplete", title, detail).with_errors(stored.each.into());
    incomplete.retry_after(problems::SOON)
}
