//! `/v1/freezes`: of which services nothing new is published for a while.

use std::time::SystemTime;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use weir_model::ValidationError;
use weir_protocol::name::FreezeName;
use weir_protocol::problem::Problem;
use weir_rollout::{Freeze, MAX_PATTERNS};
use weir_runtime::serve::Body;
use weir_upstream::DefinedBy;

use super::conditions::precondition;
use super::document::{Document, listing};
use super::page::no_keys;
use super::permissions::Permissions;
use super::route::Action;
use super::validation::{Object, ParsedDocument};
use super::versions::check_reason;
use super::{OperatorApi, no_content, read, status_of};
use crate::fleet::FleetError;

impl Object for Freeze {
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("name", "\"x\""), ("services", "[\"x\"]")];

    fn check(&self) -> Vec<ValidationError> {
        let number = self.services.len();
        let wrong = !(1..=MAX_PATTERNS).contains(&number);
        let error = || ValidationError::new("services", format!("{number} patterns: name from 1 to {MAX_PATTERNS}"));
        wrong.then(error).into_iter().collect()
    }
}

impl OperatorApi {
    /// Reads freezes and plans again, which another member has changed.
    pub(crate) async fn read_lists_again(&self) -> Result<(), Problem> {
        // Who asks may go before they are read: then they are read all the same.
        self.freezes.notify();
        self.plans.notify();
        let (freezes, plans) = tokio::join!(self.freezes.read_again(), self.plans.read_again());
        freezes.and(plans).map_err(Problem::from)
    }

    /// The freezes that the operator sees: those of services that it sees.
    pub(super) async fn list_freezes(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        no_keys(head)?;
        let snapshot = self.catalog.snapshot();
        let sees = |freeze: &Freeze| {
            may.has_all(&freeze.services) || snapshot.services.keys().any(|name| may.sees(name) && freeze.covers(name))
        };
        let all = self.freezes.list(SystemTime::now()).await?;
        let seen = all.iter().filter(|freeze| sees(freeze));
        Ok(listing("freezes", seen.map(|freeze| Document::of_entry(freeze, DefinedBy::Api)), None))
    }

    /// Reads, replaces or deletes a freeze.
    pub(super) async fn freeze(
        &self,
        name: &FreezeName,
        action: Action,
        head: &Parts,
        body: Bytes,
        may: &Permissions,
    ) -> Result<Response<Body>, Problem> {
        // Only of services that the operator may deliver, before and after.
        let check = |freeze: &Freeze| may.check_all(&freeze.services);
        match action {
            Action::Put => {
                let mut precondition = precondition(&head.headers)?;
                let ParsedDocument { document, based_on } =
                    read::<Freeze>("freeze", name.to_string(), body, |_| Vec::new()).await?;
                precondition.based_on = based_on;
                check_reason(document.reason.as_deref())?;
                if !document.is_in_force(SystemTime::now()) {
                    return Err(Problem::malformed("`until` is past: name a time to come, or leave it out."));
                }
                check(&document)?;
                let outcome = self.freezes.edit(name, Some(&document), &precondition, check).await?;
                Ok(Document::of_entry(&document, DefinedBy::Api).answer(status_of(outcome), &head.headers))
            }
            Action::Delete => {
                self.freezes.edit(name, None, &precondition(&head.headers)?, check).await?;
                Ok(no_content())
            }
            _ => {
                let all = self.freezes.list(SystemTime::now()).await?;
                let found = all.iter().find(|freeze| freeze.name == *name);
                let missing = || FleetError::Missing { kind: "freeze", name: name.to_string() };
                let found = found.ok_or_else(missing)?;
                check(found)?;
                Ok(Document::of_entry(found, DefinedBy::Api).answer(StatusCode::OK, &head.headers))
            }
        }
    }
}
