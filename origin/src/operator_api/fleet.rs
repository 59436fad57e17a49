//! `/v1/agents`, `/v1/assignments` and `/v1/issuers`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::task::spawn_blocking;
use weir_protocol::access_list::Entry;
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::name::{AssignmentName, NodeName, ServiceName};
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;
use weir_upstream::DefinedBy;

use super::conditions::precondition;
use super::document::{Document, listing};
use super::page::Page;
use super::problems;
use super::route::Action;
use super::validation::{Object, ParsedDocument, explained};
use super::{OperatorApi, no_content, read, status_of, uncached};
use crate::catalog::Map;
use crate::config::{AssignmentConfig, EntryDocument};
use crate::fleet::{FleetChange, FleetEntry, FleetError, KnownFleet, Observed, dry_run};

/// Dry runs of assignments at a time.
pub(super) const ASSIGNMENT_DRY_RUNS: usize = 2;

impl OperatorApi {
    /// A page of the entries of a kind that apply.
    pub(super) async fn entries<T: FleetEntry>(&self, head: &Parts) -> Result<Response<Body>, Problem>
    where
        T::Name: FromStr<Err: Display>,
    {
        let page = Page::<T::Name>::parse(head.uri.query(), "`limit` and `page`", |_, _| Ok(false))?;
        self.fleet.read_again::<T>().await?;
        let fleet = self.fleet.current();
        let table = T::of(&fleet);
        let all: Map<T::Name, &T> = table.iter().map(|entry| (entry.name().clone(), entry)).collect();
        let (shown, next) = page.of(&all, |_, _| true);
        let author = |name| if table.is_of_file(name) { DefinedBy::File } else { DefinedBy::Api };
        let documents = shown.into_iter().map(|(name, entry)| Document::of_entry(*entry, author(name)));
        Ok(listing(T::KIND, documents, next.as_ref()))
    }

    /// Reads, replaces or deletes an entry.
    pub(super) async fn entry<D>(
        &self,
        name: &<D::Entry as Entry>::Name,
        action: Action,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem>
    where
        D: EntryDocument<Entry: FleetEntry> + Object + Send + 'static,
    {
        match action {
            Action::Put => {
                let status = self.put_entry::<D>(name, head, body).await?;
                Ok(self.shown::<D>(name)?.answer(status, &head.headers))
            }
            Action::Delete => {
                self.fleet.delete::<D::Entry>(name, &precondition(&head.headers)?).await?;
                Ok(no_content())
            }
            _ => {
                self.fleet.read_again::<D::Entry>().await?;
                Ok(self.shown::<D>(name)?.answer(StatusCode::OK, &head.headers))
            }
        }
    }

    fn shown<D: EntryDocument<Entry: FleetEntry>>(
        &self,
        name: &<D::Entry as Entry>::Name,
    ) -> Result<Document, Problem> {
        let missing = || FleetError::Missing { kind: <D::Entry as FleetEntry>::ONE, name: name.to_string() };
        let (entry, by) = self.fleet.get::<D::Entry>(name).ok_or_else(missing)?;
        Ok(Document::of_entry(&entry, by))
    }

    async fn put_entry<D>(
        &self,
        name: &<D::Entry as Entry>::Name,
        head: &Parts,
        body: Bytes,
    ) -> Result<StatusCode, Problem>
    where
        D: EntryDocument<Entry: FleetEntry> + Object + Send + 'static,
    {
        let kind = <D::Entry as FleetEntry>::ONE;
        let mut precondition = precondition(&head.headers)?;
        let ParsedDocument { document, based_on } = read::<D>(kind, name.to_string(), body, |_| Vec::new()).await?;
        precondition.based_on = based_on;
        let entry = document.entry().map_err(Problem::malformed)?;
        Ok(status_of(self.fleet.put(entry, &precondition).await?))
    }

    /// Replaces an assignment, and says what of it matches nothing. Only the change itself can fail.
    pub(super) async fn put_assignment(
        &self,
        name: &AssignmentName,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let status = self.put_entry::<AssignmentConfig>(name, head, body).await?;
        let document = self.shown::<AssignmentConfig>(name)?;
        let (fleet, services) = (self.fleet.current(), self.services_now().await.ok());
        let (observed, rule) = (self.observed.query(Observed::of).await.unwrap_or_default(), name.clone());
        let warnings = spawn_blocking(move || {
            let known = KnownFleet::new(&observed, &fleet, services.as_ref());
            fleet.assignments.get(&rule).map(|rule| known.warnings(rule)).unwrap_or_default()
        });
        Ok(document.with_warnings(warnings.await.unwrap_or_default()).answer(status, &head.headers))
    }

    /// Reads what other origins have just defined.
    pub(super) async fn read_services_again(&self) -> Result<(), Problem> {
        if let Some(members) = &self.members {
            members.replicas.read_all_again().await?;
        }
        Ok(())
    }

    /// The services that are defined, also those that other origins have just defined.
    async fn services_now(&self) -> Result<BTreeSet<ServiceName>, Problem> {
        self.read_services_again().await?;
        Ok(self.catalog.snapshot().definitions.services.keys().cloned().collect())
    }

    /// What a change of agents and assignments would start and stop. Nothing is changed.
    pub(super) async fn dry_run_of_assignments(&self, body: Bytes) -> Result<Response<Body>, Problem> {
        let _slot = self.assignment_dry_runs.clone().try_acquire_owned().map_err(|_| problems::busy())?;
        self.fleet.read_again::<Agent>().await?;
        self.fleet.read_again::<Assignment>().await?;
        let observed = self.observed.query(Observed::of).await.ok_or_else(problems::records_unreadable)?;
        let (services, fleet) = (self.services_now().await?, self.fleet.current());
        let list = self.access_list.borrow().clone();
        let effect = spawn_blocking(move || {
            let change: FleetChange = match body.is_empty() {
                true => FleetChange::default(),
                false => weir_protocol::json::from_slice(&body).map_err(|error| explained(&error))?,
            };
            let denied: BTreeSet<NodeName> = list.list().denied_agents().cloned().collect();
            let effect = dry_run(&fleet, &services, (&observed, &denied), &change)?;
            serde_json::to_value(effect).map_err(|error| error.to_string())
        });
        let effect = effect.await.map_err(problems::failed)?.map_err(Problem::malformed)?;
        Ok(uncached(&effect))
    }
}
