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

    /// Whether all services that these patterns match are among those of the operator. A pattern that matches another one as
    /// a text matches all that this one does.
    pub(super) fn has_all(&self, patterns: &[NameGlob]) -> bool {
        patterns.iter().all(|pattern| matches(self.services.as_ref(), pattern.as_str()))
    }

    /// The same.
    ///
    /// # Errors
    /// They match others too.
    pub(super) fn check_all(&self, patterns: &[NameGlob]) -> Result<(), Problem> {
        if self.has_all(patterns) { Ok(()) } else { Err(self.not_of_these_alone()) }
    }

    fn not_of_these_alone(&self) -> Problem {
        let globs: Vec<_> = self.services.iter().flat_map(|globs| globs.iter()).map(NameGlob::to_string).collect();
        let globs = globs.join("`, `");
        refused(&format!(
            "This operator is limited to the services `{globs}`, and the request is not about these alone."
        ))
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
    /// The operator may not do this. The answer does not say whether an object exists that the operator may not see.
    pub(super) fn check(
        &self,
        route: &Route,
        (action, needs): (Action, Needs),
        at: &Definitions,
    ) -> Result<(), Problem> {
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
        if !is_allowed {
            return Err(self.not_of_these_alone());
        }
        match route.subject() {
            Subject::Service(name) if needs == Needs::Define => self.check_stored(&name, action, at),
            _ => Ok(()),
        }
    }

    /// Decides by what a service is made of now, and by what would lose it as a part.
    fn check_stored(&self, name: &ServiceName, action: Action, at: &Definitions) -> Result<(), Problem> {
        let Some(globs) = self.repositories.as_ref().filter(|_| self.role != OperatorRole::Admin) else {
            return Ok(());
        };
        let is_of_others = |name: &ServiceName| {
            let is_other = |repository: &RepositoryName| !matches(Some(globs), repository.as_str());
            at.services
                .get(name)
                .is_some_and(|defined| is_other(defined.document.repository()) || defined.document.names(is_other))
        };
        if is_of_others(name) {
            return Err(refused(&format!(
                "Service `{name}` is made of a repository of which this operator may not make services."
            )));
        }
        let is_closed = |other: &ServiceName| !self.sees(other) || is_of_others(other);
        // Their names are not in the answer, because the operator may not see them.
        if action == Action::Delete && at.composed_with(name, false).any(is_closed) {
            return Err(refused(&format!("Service `{name}` is a part of services that this operator may not define.")));
        }
        Ok(())
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
