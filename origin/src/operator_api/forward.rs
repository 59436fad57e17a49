//! Requests about a repository that another member of the cluster owns: they are passed on to it, once, and its answer is
//! returned as it is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::request::Parts;
use http::{Request, Response, StatusCode, header};
use tokio::time::timeout;
use weir_ownership::Event;
use weir_protocol::name::RepositoryName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use super::access::Caller;
use super::named_source::NamedSource;
use super::problems::{self, SOON};
use super::route::{Action, Route, Subject};
use crate::catalog::{Catalog, Refusal, Snapshot, version};
use crate::cluster::{Cluster, MAX_AGE, Member, Owner, Replicas, View};
use crate::member_client::{ForwardedCaller, MemberClient, MemberError};
use crate::names::ServiceNames;

/// The longest wait until a new repository is owned.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// The other members of the cluster, as far as requests of operators need them. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) cluster: Cluster,
    pub(crate) client: Arc<MemberClient>,
    pub(crate) replicas: Replicas,
    pub(crate) names: ServiceNames,
}

impl Subject {
    /// A document of a service names the repository that it is for. If it cannot be read, any origin can say so.
    fn of(route: &Route, action: Action, body: &[u8]) -> Self {
        let has_document = matches!(route, Route::Service(_) | Route::DryRun(_));
        if has_document && (action == Action::Put || !body.is_empty()) {
            let named = serde_json::from_slice::<NamedSource>(body);
            return named.ok().and_then(NamedSource::home).unwrap_or(Self::Any);
        }
        route.subject()
    }

    /// The kind and the name of the object. `None`: any origin answers.
    fn named(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Any => None,
            Self::Repository(name) => Some(("repository", name.to_string())),
            Self::Service(name) => Some(("service", name.to_string())),
        }
    }

    /// The version of its document. `None`: it is not defined.
    fn version(&self, at: &Snapshot) -> Option<String> {
        let definitions = &at.definitions;
        match self {
            Self::Any => None,
            Self::Repository(name) => definitions.repositories.get(name).map(|defined| version(&defined.document)),
            Self::Service(name) => definitions.services.get(name).map(|defined| version(&defined.document)),
        }
    }

    /// `None`: any origin answers, or there is no such service.
    fn repository(&self, at: &Snapshot) -> Option<RepositoryName> {
        match self {
            Self::Any => None,
            Self::Repository(name) => Some(name.clone()),
            Self::Service(name) => Some(at.definitions.services.get(name)?.document.repository().clone()),
        }
    }
}

/// The owner did not answer a request that changes nothing.
const NOTHING_CHANGED: &str = "Nothing was changed: try again.";

/// The same for a change.
pub(super) const OUTCOME_UNKNOWN: &str = "Whether the change was made is not known: read the object with `GET` (and the history \
    of a service with `GET …/history`) when its owner answers, before you try again.";

/// The same for a webhook, which is not in vain: repositories are polled without it.
pub(super) const DELIVERY_UNKNOWN: &str = "Whether the delivery was taken is not known: send it again, or wait for the next poll \
    of the repository.";

/// Where a request is answered.
pub(super) enum Answerer {
    /// Here, about this repository.
    Me(Option<RepositoryName>),
    /// By the owner of the repository, like this.
    Other(Response<Body>),
}

impl Members {
    /// Passes the request of an operator on, if another member owns its repository.
    pub(super) async fn forward(
        &self,
        at: impl Fn() -> Arc<Snapshot>,
        (route, action): (&Route, Action),
        (head, body): (&Parts, &Bytes),
        caller: &Caller,
    ) -> Result<Answerer, Problem> {
        let subject = Subject::of(route, action, body);
        // Where this origin has the service. Its copy may be old, and the service may have moved.
        let stored = route.subject();
        if let (Subject::Service(_), Some(home)) = (&stored, stored.repository(&at())) {
            self.replicas.owner(&home).await?;
            if stored.repository(&at()) != Some(home) {
                self.replicas.read_all_again().await?;
            }
        }
        let is_known = || match &subject {
            Subject::Service(name) => at().definitions.services.contains_key(name),
            Subject::Repository(name) => at().definitions.repositories.contains_key(name),
            // The document of a service that cannot be read, or a list.
            Subject::Any => !matches!(route, Route::Repositories | Route::Services),
        };
        if !is_known() {
            self.replicas.read_all_again().await?;
        }
        let reads = action == Action::Read;
        if reads
            && !is_known()
            && let Some((kind, name)) = subject.named()
        {
            // The list of this origin does not have it either.
            let view = self.cluster.view();
            let members: Vec<_> = other_files(&view).map(|member| member.name.to_string()).collect();
            return if members.is_empty() {
                Ok(Answerer::Me(None))
            } else {
                Err(not_in_this_file(kind, &name, &members))
            };
        }
        let Some(repository) = subject.repository(&at()) else { return Ok(Answerer::Me(None)) };
        if !is_known() {
            match route {
                Route::Service(name) => {
                    return Err(Refusal::MissingRepository(name.clone(), repository).into());
                }
                Route::Repository(_) if action == Action::Delete => {
                    return Err(problems::no_such_repository(&repository));
                }
                _ => {}
            }
        }
        let creates = matches!(route, Route::Repository(_)) && action == Action::Put;
        let is_forwarded = caller.forwarded_by().is_some();
        let repository = changed_in(route, action, &at(), is_forwarded).unwrap_or(repository);
        let Some(member) = self.destination(&repository, &at, creates, is_forwarded).await? else {
            return Ok(Answerer::Me(Some(repository)));
        };
        let no_answer = if action.changes() { OUTCOME_UNKNOWN } else { NOTHING_CHANGED };
        let request = (head.clone(), Body::from(body.clone()));
        let answer = self.send(&member, Some(caller), request, no_answer).await?;
        if reads && matches!(route, Route::Repository(_) | Route::Service(_)) {
            let tag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
            let of_document = tag.and_then(|tag| Some(tag.strip_prefix('"')?.split_once('.')?.0.to_owned()));
            if of_document.is_some() || answer.status() == StatusCode::NOT_FOUND {
                self.ensure_listed(&subject, of_document.as_deref(), &repository, &member, &at).await?;
            }
        }
        Ok(Answerer::Other(answer))
    }

    /// Has all other members read a repository again that a request changes, before the change is acknowledged. A copy of a
    /// member that does not do so is too old to be used when this returns.
    pub(super) async fn announcing<T>(&self, repository: Option<RepositoryName>, change: impl Future<Output = T>) -> T {
        let Some(repository) = repository else { return change.await };
        let before = self.replicas.version(&repository);
        let changed = change.await;
        if self.replicas.version(&repository) != before {
            self.announce(&repository).await;
        }
        changed
    }

    /// Has all other members read a repository again.
    pub(super) async fn announce(&self, repository: &RepositoryName) {
        notify(&self.cluster.view(), repository.as_str(), |url| self.client.changed(url, repository)).await;
    }

    /// Has all other members read the freezes and the plans again.
    pub(super) async fn announce_lists(&self) {
        notify(&self.cluster.view(), "freezes and rollouts", |url| self.client.lists_changed(url)).await;
    }

    /// An error if the owner has another version of a document than this origin lists: their configuration files differ.
    async fn ensure_listed(
        &self,
        subject: &Subject,
        there: Option<&str>,
        repository: &RepositoryName,
        owner: &Member,
        at: impl Fn() -> Arc<Snapshot>,
    ) -> Result<(), Problem> {
        let Some((kind, name)) = subject.named() else { return Ok(()) };
        if !other_files(&self.cluster.view()).any(|member| member.name == owner.name) {
            return Ok(());
        }
        // What operators have just changed there may not have been read here.
        self.replicas.read_again(repository).await?;
        if subject.version(&at()).as_deref() == there {
            return Ok(());
        }
        let detail = format!(
            "The configuration file of this origin defines {kind} `{name}` otherwise than that of origin `{}`, which owns its \
             repository: give all origins the same file, and send SIGHUP to each. `/status` of the origins names those that differ.",
            owner.name
        );
        let title = "The members' configuration files differ";
        Err(Problem::new(StatusCode::CONFLICT, "configurations-differ", title, detail).about(kind, &name))
    }

    /// The member that answers a request about a repository. `None`: this one. `creates`: the request may create it;
    /// `is_forwarded`: it may not be passed on again.
    pub(super) async fn destination(
        &self,
        repository: &RepositoryName,
        at: impl Fn() -> Arc<Snapshot>,
        creates: bool,
        is_forwarded: bool,
    ) -> Result<Option<Member>, Problem> {
        let no_owner = || problems::no_owner(repository);
        let member = match self.replicas.owner(repository).await? {
            Some(Owner::Me) => return Ok(None),
            Some(Owner::Other(member)) => member,
            Some(Owner::Nobody) => return Err(no_owner()),
            None if creates && is_forwarded => return Ok(None),
            None if creates => match self.placed(repository) {
                Some(Owner::Me) => return Ok(None),
                Some(Owner::Other(member)) => member,
                _ => return Err(no_owner()),
            },
            // Defined by a file: a member claims it soon.
            None if at().definitions.repositories.contains_key(repository) => return Err(no_owner()),
            // It does not exist, and any origin can say so.
            None => return Ok(None),
        };
        if is_forwarded { Err(no_owner()) } else { Ok(Some(member)) }
    }

    /// The member that is to create a repository.
    fn placed(&self, repository: &RepositoryName) -> Option<Owner> {
        let (placed, view) = (self.cluster.placed(repository)?, self.cluster.view());
        if placed == view.me.name { Some(Owner::Me) } else { view.others.get(&placed).cloned().map(Owner::Other) }
    }

    /// Passes a request on. `caller`: the operator; `None` for a webhook. `no_answer`: what is known if the member may have
    /// received it, and does not answer.
    pub(super) async fn send(
        &self,
        member: &Member,
        caller: Option<&Caller>,
        (head, body): (Parts, Body),
        no_answer: &str,
    ) -> Result<Response<Body>, Problem> {
        let caller = caller.map(|caller| {
            let secret = self.cluster.secrets().of(&member.name);
            ForwardedCaller { name: &caller.name, role: caller.may.role.as_str(), secret }
        });
        let answer = self.client.forward(&member.url, caller, Request::from_parts(head, body)).await;
        answer.map_err(|error| match error {
            MemberError::Overloaded => problems::busy(),
            error => {
                tracing::warn!(member = %member.name, url = member.url, %error, "a request could not be forwarded");
                let detail = format!("Origin `{}` owns the repository, but {error}. {no_answer}", member.name);
                let title = "The repository's owner cannot be reached";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "owner-unreachable", title, detail).retry_after(SOON)
            }
        })
    }

    /// Waits until this origin owns a repository that is to be created.
    pub(super) async fn claim(&self, repository: &RepositoryName, catalog: &Catalog) -> Result<(), Problem> {
        let mut catalog = catalog.follow();
        let owns = |at: &Arc<Snapshot>| at.owns(repository);
        if owns(&catalog.borrow()) {
            return Ok(());
        }
        self.cluster.send(Event::Defined(vec![repository.clone()])).await;
        let owned = timeout(CLAIM_TIMEOUT, catalog.wait_for(owns)).await;
        owned.ok().and_then(Result::ok).map(drop).ok_or_else(|| problems::no_owner(repository))
    }
}

/// The repository whose owner answers the `PUT` of a service: the one that has it now. One member has passed it on already
/// if this origin does not own that one.
fn changed_in(route: &Route, action: Action, at: &Snapshot, is_forwarded: bool) -> Option<RepositoryName> {
    let Route::Service(name) = route else { return None };
    let home = at.definitions.services.get(name).filter(|_| action == Action::Put)?.document.repository();
    (!is_forwarded || at.owns(home)).then(|| home.clone())
}

/// It may be defined by the file of another member.
fn not_in_this_file(kind: &str, name: &str, members: &[String]) -> Problem {
    let (problem, title) = match kind {
        "service" => ("no-such-service", "No such service"),
        _ => ("no-such-repository", "No such repository"),
    };
    let detail = format!(
        "There is no {kind} `{name}` here. The configuration files of these members are not this origin's: {}. If one of them \
         defines it, give all origins that file, and send SIGHUP to each.",
        members.join(", ")
    );
    Problem::new(StatusCode::NOT_FOUND, problem, title, detail).about(kind, &name)
}

/// Tells all other members of a change, and waits until they have read it, or for [`MAX_AGE`]: a copy of a repository that is
/// older is read again on use.
async fn notify<'v, M>(view: &'v View, changed: &str, message: impl Fn(&'v str) -> M)
where
    M: Future<Output = Result<(), MemberError>>,
{
    let told = view.others.values().map(|member| {
        let told = message(&member.url);
        async move {
            if let Err(error) = told.await {
                tracing::warn!(member = %member.name, changed, %error, "a member was not notified of a change");
                std::future::pending::<()>().await;
            }
        }
    });
    let _ = timeout(MAX_AGE, join_all(told)).await;
}

/// The members whose configuration files are not this origin's.
fn other_files(view: &View) -> impl Iterator<Item = &Member> {
    view.differing().filter(|member| member.digests.configuration != view.me.digests.configuration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn a_document_goes_to_the_owner_of_the_repository_that_it_names() {
        let subject = |method: Method, path: &str, body: &str| {
            let route = Route::parse(path).unwrap();
            Subject::of(&route, route.action(&method).unwrap().0, body.as_bytes())
        };
        let repository = |name: &str| Subject::Repository(name.parse().unwrap());
        let service = |name: &str| Subject::Service(name.parse().unwrap());
        for (method, path, body, expected) in [
            (Method::GET, "/v1/services", "", Subject::Any),
            (Method::GET, "/v1/repositories", "", Subject::Any),
            (Method::DELETE, "/v1/repositories/shop", "", repository("shop")),
            (Method::POST, "/v1/repositories/shop/refresh", "", repository("shop")),
            (Method::PUT, "/v1/services/a", r#"{"repository": "shop", "ref": "main"}"#, repository("shop")),
            (Method::PUT, "/v1/services/a", r#"{"ref": "main"}"#, Subject::Any),
            (Method::PUT, "/v1/services/a", "", Subject::Any),
            (Method::GET, "/v1/services/a", "", service("a")),
            (Method::POST, "/v1/services/a/rollback", r#"{"digest": "x"}"#, service("a")),
            (Method::POST, "/v1/services/a/dry-run", "", service("a")),
            (Method::POST, "/v1/services/a/dry-run", r#"{"repository": "blog"}"#, repository("blog")),
        ] {
            assert_eq!(subject(method, path, body), expected, "{path} {body}");
        }
    }
}
