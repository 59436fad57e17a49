//! Pages of `/status`: a page has up to `limit` repositories and as many services. Both lists are in the order of names, and
//! one cursor says where both end, so that who follows `next_after` has read all of both.

use std::fmt::{self, Display, Formatter};
use std::ops::Bound;
use std::str::FromStr;

use serde_json::Value;
use weir_protocol::name::{NameError, RepositoryName, ServiceName};
use weir_runtime::status_page::StatusPage;

use crate::catalog::{Map, Snapshot};
use crate::cluster::{self, View};
use crate::status::{repository_entry, service_entry};

/// The last names of a page. `None`: none of the kind was listed so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Last {
    repository: Option<RepositoryName>,
    service: Option<ServiceName>,
}

/// Adds the page to the head of `/status`.
pub(crate) fn add(mut head: Value, snapshot: &Snapshot, cluster: Option<&View>, page: &StatusPage<Last>) -> Value {
    let definitions = &snapshot.definitions;
    let (repositories, services, next) = match &page.service {
        Some(name) => {
            let service = definitions.services.get_key_value(name);
            let its = service.and_then(|(_, its)| definitions.repositories.get_key_value(its.document.repository()));
            (its.into_iter().collect(), service.into_iter().collect(), None)
        }
        None => lists(&definitions.repositories, &definitions.services, page),
    };
    head["repositories_total"] = definitions.repositories.size().into();
    head["services_total"] = definitions.services.size().into();
    head["repositories"] = repositories.iter().map(|one| repository_entry(snapshot, *one)).collect();
    head["services"] = services.iter().map(|one| service_entry(snapshot, *one)).collect();
    head["next_after"] = next.map(|last| last.to_string()).into();
    if let Some(view) = cluster {
        let owned = repositories.iter().filter_map(|(name, _)| view.owned.get_key_value(*name));
        let owned = owned.map(cluster::owned_entry).collect();
        head["cluster"] = cluster::status(view, &owned);
    }
    head
}

type Entries<'a, N, T> = Vec<(&'a N, &'a T)>;

/// The repositories and services of a page, and the last ones if there are more.
fn lists<'a, R, S>(
    repositories: &'a Map<RepositoryName, R>,
    services: &'a Map<ServiceName, S>,
    page: &StatusPage<Last>,
) -> (Entries<'a, RepositoryName, R>, Entries<'a, ServiceName, S>, Option<Last>) {
    let (after_repository, after_service) = match &page.after {
        Some(last) => (last.repository.as_ref(), last.service.as_ref()),
        None => (None, None),
    };
    let (repositories, more_repositories) = part(repositories, after_repository, page.limit);
    let (services, more_services) = part(services, after_service, page.limit);
    let last = || Last {
        repository: repositories.last().map(|(name, _)| *name).or(after_repository).cloned(),
        service: services.last().map(|(name, _)| *name).or(after_service).cloned(),
    };
    let next = (more_repositories || more_services).then(last);
    (repositories, services, next)
}

/// The first entries after a name, and whether there are more.
fn part<'a, N: Ord, T>(all: &'a Map<N, T>, after: Option<&N>, limit: usize) -> (Entries<'a, N, T>, bool) {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest = all.range::<N, _>((from, Bound::Unbounded));
    let listed = rest.by_ref().take(limit).collect();
    (listed, rest.next().is_some())
}

impl Display for Last {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let repository = self.repository.as_ref().map_or("", |name| name.as_str());
        write!(f, "{repository}~{}", self.service.as_ref().map_or("", |name| name.as_str()))
    }
}

impl FromStr for Last {
    type Err = Option<NameError>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (repository, service) = text.split_once('~').ok_or(None)?;
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Ok(Self {
            repository: named(repository).map(|name| name.parse()).transpose()?,
            service: named(service).map(|name| name.parse()).transpose()?,
        })
    }
}
