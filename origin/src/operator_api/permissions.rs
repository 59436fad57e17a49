//! Pure: what an operator may do.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::problem::Problem;

use super::named_source::NamedSource;
use super::route::{Action, Needs, Route, Subject};
use crate::catalog::Definitions;
use crate::config::{OperatorConfig, OperatorRole};

/// Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Permissions {
    pub(super) role: OperatorRole,
    /// `None`: all.
    pub(super) services: Option<Arc<[NameGlob]>>,
    /// Of what services may be made. `None`: of all.
    repositories: Option<Arc<[NameGlob]>>,
}

impl Permissions {
    /// All that the role allows.
    pub(super) fn of_role(role: OperatorRole) -> Self {
        Self { role, services: None, repositories: None }
    }

    pub(super) fn of(config: &OperatorConfig) -> Self {
        let list = |globs: &Option<Vec<NameGlob>>| globs.as_deref().map(Arc::from);
        Self { role: config.role, services: list(&config.services), repositories: list(&config.repositories) }
    }

    /// Whether the operator sees a service.
    pub(super) fn sees(&self, service: &ServiceName) -> bool {
        matches(self.services.as_ref(), service.as_str())
    }

    /// The repositories of which the operator sees a service. `None`: all.
    pub(super) fn repositories_seen<'a>(&self, at: &'a Definitions) -> Option<BTreeSet<&'a RepositoryName>> {
        self.services.as_ref()?;
        let seen = at.services.iter().filter(|(name, _)| self.sees(name));
        Some(seen.map(|(_, defined)| defined.document.repository()).collect())
    }

    /// Decides by the path, before the body is read.
    ///
    /// # Errors
    /// The operator may not do this. The answer is the same whether the object exists or not.
    pub(super) fn check(&self, route: &Route, needs: Needs, at: &Definitions) -> Result<(), Problem> {
        let role = needs.role().ok_or_else(Problem::no_such_path)?;
        if self.role < role {
            let (has, needed) = (self.role.as_str(), role.as_str());
            return Err(refused(&format!("The role of this operator is `{has}`, and this request needs `{needed}`.")));
        }
        let is_allowed = match route.subject() {
            _ if self.services.is_none() => true,
            Subject::Service(name) => self.sees(&name),
            Subject::Repository(name) => self.repositories_seen(at).is_none_or(|seen| seen.contains(&name)),
            Subject::Any => needs != Needs::ViewAll,
        };
        let not_allowed = || {
            let globs: Vec<_> = self.services.iter().flat_map(|globs| globs.iter()).map(NameGlob::to_string).collect();
            let globs = globs.join("`, `");
            refused(&format!(
                "This operator is limited to the services `{globs}`, and the request is not about these alone."
            ))
        };
        if is_allowed { Ok(()) } else { Err(not_allowed()) }
    }

    /// Decides by the document of a service: of what it may be made.
    ///
    /// # Errors
    /// It names a repository or a service that the operator may not use; or its sources cannot be read.
    pub(super) fn check_document(&self, route: &Route, action: Action, body: &[u8]) -> Result<(), Problem> {
        let is_document = matches!(route, Route::Service(_) | Route::DryRun(_)) && action != Action::Delete;
        if self.role == OperatorRole::Admin || !is_document || body.is_empty() {
            return Ok(());
        }
        let read: NamedSource = weir_protocol::json::from_slice(body)
            .map_err(|error| Problem::malformed(format!("the document: {error}.")))?;
        let (repositories, services) = read.all();
        if let Some(name) = repositories.iter().find(|name| !matches(self.repositories.as_ref(), name.as_str())) {
            return Err(refused(&format!("This operator may not make services of repository `{name}`.")));
        }
        if let Some(name) = services.iter().find(|name| !self.sees(name)) {
            return Err(refused(&format!("This operator may not make services of service `{name}`.")));
        }
        Ok(())
    }
}

fn matches(globs: Option<&Arc<[NameGlob]>>, name: &str) -> bool {
    globs.is_none_or(|globs| globs.iter().any(|glob| glob.matches(name)))
}

fn refused(detail: &str) -> Problem {
    let detail = format!("{detail} Operators and their roles are in the origin's configuration (`[[operator]]`).");
    Problem::new(StatusCode::FORBIDDEN, "not-permitted", "The operator may not do this", detail)
}
