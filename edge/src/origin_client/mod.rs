//! Requests descriptors and objects from origins.
//!
//! The members of a cluster answer for each other: the one whose event stream vouches for a service is asked first, and the
//! next one when that fails. Origins that are no cluster partition the services among them: each is asked for what it is
//! known to have, and all are asked for what is unknown.

mod access_shards;
mod breaker;
mod clients;
mod connection;
mod members;
mod metrics;
mod objects;
pub(crate) mod probe;
mod shields;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use weir_cache::{OriginError, OriginId};
use weir_protocol::descriptor::{Descriptor, DescriptorError, MAX_DESCRIPTOR_BYTES};
use weir_protocol::digest::TarballDigest;
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, SignedFreshness};
use weir_protocol::members::{Member, Members};
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_protocol::route::Route;
use weir_protocol::versions::MAX_VERSIONS_BYTES;
use weir_runtime::tls;

use crate::config::{OriginConfig, authority};

pub(crate) use clients::Clients;
pub(crate) use connection::Origin;
pub(crate) use metrics::OriginMetrics;
pub(crate) use objects::ObjectFetcher;
pub(crate) use shields::{ShieldId, Shields};

use self::members::MemberTable;

/// The most origins that are known: configured ones, members, and those whose place no new member has taken since they left.
pub(crate) const MAX_ORIGINS: usize = 256;

/// The most members of a cluster that are asked for one freshness statement.
const MAX_HEARTBEAT_ORIGINS: usize = 3;

/// The known origins, each with a number below [`MAX_ORIGINS`]. A new member may get that of one that has left *its* cluster
/// and is not followed any longer. What is still attributed to the earlier one stays in the cluster, and is not vouched for:
/// it was announced before the lease of the new one began.
#[derive(Debug)]
pub(crate) struct Origins {
    origins: RwLock<Vec<Arc<Origin>>>,
    table: RwLock<MemberTable>,
    /// Held while origins are added.
    adding: Mutex<()>,
}

/// The origins' response to a query about a service, or one version of it.
#[derive(Debug)]
pub(crate) enum OriginResponse<T = Box<Descriptor>> {
    /// The descriptor, with the origin that publishes it.
    Found(OriginId, T),
    /// The descriptor with the tag of the request is current.
    Unchanged,
    /// Not found: a member of each cluster says so.
    Absent,
}

impl Origins {
    /// The configured origins.
    pub(crate) fn new(configured: Vec<Origin>) -> Self {
        let origins = Self { origins: RwLock::default(), table: RwLock::default(), adding: Mutex::default() };
        for origin in configured {
            let _ = origins.add(origin, true);
        }
        origins
    }

    /// Adds an origin. `None`: there is no room.
    fn add(&self, origin: Origin, is_configured: bool) -> Option<OriginId> {
        let id = Some(self.count()).filter(|id| *id < MAX_ORIGINS)?;
        // First, so that whoever finds the origin finds its row.
        self.table_mut().add(is_configured);
        self.origins.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(origin));
        Some(id)
    }

    /// Gives an origin the id of one that has left.
    fn replace(&self, id: OriginId, origin: Origin) {
        self.table_mut().clear(id);
        let mut origins = self.origins.write().unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::replace(&mut origins[id], Arc::new(origin));
        left.left();
    }

    /// All known origins with their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (OriginId, Arc<Origin>)> + use<> {
        self.origins.read().unwrap_or_else(PoisonError::into_inner).clone().into_iter().enumerate()
    }

    pub(crate) fn count(&self) -> usize {
        self.origins.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn get(&self, id: OriginId) -> Arc<Origin> {
        self.origins.read().unwrap_or_else(PoisonError::into_inner)[id].clone()
    }

    /// The name of an origin: its `host:port`.
    pub(crate) fn name(&self, id: OriginId) -> Option<String> {
        let origins = self.origins.read().unwrap_or_else(PoisonError::into_inner);
        origins.get(id).map(|origin| origin.name().to_owned())
    }

    pub(crate) fn find(&self, name: &str) -> Option<OriginId> {
        let origins = self.origins.read().unwrap_or_else(PoisonError::into_inner);
        origins.iter().position(|origin| origin.name() == name)
    }

    /// Requests the list of members from one origin. `None`: it is no member of a cluster.
    ///
    /// # Errors
    /// The request failed, or its response is no list.
    pub(crate) async fn members(&self, id: OriginId) -> Result<Option<Members>, OriginError> {
        self.get(id).members().await
    }

    /// Applies a list of members that an origin sent. New ones are reached as that origin is.
    pub(crate) fn learn(&self, source: OriginId, members: Members) {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = Vec::new();
        for member in members.members {
            match self.learnt(source, &member.url, &known) {
                Ok(id) => known.push((id, member)),
                Err(error) => {
                    let (member, url) = (member.name, member.url);
                    tracing::error!(%member, url, error = format!("{error:#}"), "a member of the cluster cannot be used");
                }
            }
        }
        self.table_mut().apply(source, &known);
    }

    /// The id of a member. `known`: the members before it in the list.
    fn learnt(&self, source: OriginId, url: &str, known: &[(OriginId, Member)]) -> anyhow::Result<OriginId> {
        let authority = authority(url)?;
        if let Some(id) = self.find(authority.as_str()) {
            return Ok(id);
        }
        let origin = self.get(source).sibling(authority);
        let vacant = self.table().vacant(source, |id| known.iter().any(|(known, _)| *known == id));
        if let Some(id) = vacant {
            self.replace(id, origin);
            return Ok(id);
        }
        self.add(origin, false).with_context(|| format!("the limit of {MAX_ORIGINS} origins is reached"))
    }

    /// The member as its cluster describes it; `None` when no list names it.
    pub(crate) fn member(&self, id: OriginId) -> Option<Member> {
        self.table().member(id).cloned()
    }

    /// Whether origins that belong together may not be known as one cluster yet.
    pub(crate) fn are_unsettled(&self) -> bool {
        self.table().is_unsettled()
    }

    /// Whether both are members of one cluster, or the same.
    pub(crate) fn share_a_cluster(&self, one: OriginId, other: OriginId) -> bool {
        one == other || self.table().share_a_cluster(one, other)
    }

    /// The names of the origins in use, by cluster.
    pub(crate) fn clusters(&self) -> Vec<Vec<String>> {
        let mut clusters: Vec<(OriginId, Vec<String>)> = Vec::new();
        for (id, origin) in self.all().filter(|(id, _)| self.is_in_use(*id)) {
            let name = origin.name().to_owned();
            match clusters.iter_mut().find(|(first, _)| self.share_a_cluster(*first, id)) {
                Some((_, names)) => names.push(name),
                None => clusters.push((id, vec![name])),
            }
        }
        clusters.into_iter().map(|(_, names)| names).collect()
    }

    /// Whether a service that one origin removed is at no other.
    pub(crate) fn is_one_cluster(&self) -> bool {
        self.table().is_one_cluster()
    }

    /// Whether the event stream of an origin is to be followed.
    pub(crate) fn is_to_be_followed(&self, id: OriginId) -> bool {
        self.table().is_to_be_followed(id)
    }

    /// Marks an origin as followed or not. Returns what it was.
    pub(crate) fn set_followed(&self, id: OriginId, is_followed: bool) -> bool {
        self.table_mut().set_followed(id, is_followed)
    }

    pub(crate) fn is_followed(&self, id: OriginId) -> bool {
        self.table().is_followed(id)
    }

    /// The origins whose event streams are followed, or tried to be.
    pub(crate) fn followed(&self) -> Vec<OriginId> {
        self.table().followed().collect()
    }

    /// Whether requests may be sent to an origin.
    pub(crate) fn is_in_use(&self, id: OriginId) -> bool {
        self.table().is_in_use(id)
    }

    /// Whether no origin that may answer for a service of this owner can be reached.
    pub(crate) fn are_down(&self, owner: OriginId) -> bool {
        let mut members = self.order(Some(owner)).into_iter().filter(|id| self.share_a_cluster(owner, *id));
        members.all(|id| self.get(id).is_down())
    }

    fn table(&self) -> RwLockReadGuard<'_, MemberTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, MemberTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files for all origins again, in the order of `configs`.
    ///
    /// # Errors
    /// A file cannot be used, or a certificate has expired or is not valid yet.
    pub(crate) fn reload_clients(&self, configs: &[OriginConfig]) -> anyhow::Result<Vec<Clients>> {
        let mut read = Vec::new();
        for config in configs {
            let clients = Clients::read(config)?;
            tls::check_validity(&config.client_certificate, SystemTime::now())
                .with_context(|| format!("the origin {} would reject the client certificate", config.url))?;
            read.push(clients);
        }
        Ok(read)
    }

    /// Replaces the clients of all origins: those of `read` are in the order of the configuration.
    pub(crate) fn replace_clients(&self, read: &[Clients]) {
        for (_, origin) in self.all() {
            read.get(origin.configured()).into_iter().for_each(|clients| origin.replace(clients.clone()));
        }
    }

    /// Whether any origin has ever responded.
    pub(crate) fn any_reached(&self) -> bool {
        self.all().any(|(_, origin)| origin.was_reached())
    }

    /// Requests the descriptor of a service. `owner`: its origin, if known; `if_none_match`: the entity tag of the stored
    /// descriptor.
    ///
    /// # Errors
    /// The error of the first origin that failed, and that no other member of its cluster answered for.
    pub(crate) async fn descriptor(
        &self,
        service: &ServiceName,
        owner: Option<OriginId>,
        if_none_match: Option<&str>,
        request_id: Option<&RequestId>,
    ) -> Result<OriginResponse, OriginError> {
        let read = |id, bytes, _| self.read(id, service, bytes).map(Box::new);
        let route = Route::Service(service.clone());
        self.ask(&route, MAX_DESCRIPTOR_BYTES, owner, if_none_match, request_id, read).await
    }

    /// Requests the list of all versions of a service, the newest first. Returns its age, too.
    ///
    /// # Errors
    /// As [`Origins::descriptor`].
    pub(crate) async fn versions(
        &self,
        service: &ServiceName,
        owner: Option<OriginId>,
        request_id: Option<&RequestId>,
    ) -> Result<OriginResponse<(Bytes, Duration)>, OriginError> {
        let read = |_, bytes, age| Ok((bytes, age));
        self.ask(&Route::Versions(service.clone()), MAX_VERSIONS_BYTES, owner, None, request_id, read).await
    }

    /// Requests the descriptor of a retained version.
    ///
    /// # Errors
    /// As [`Origins::descriptor`].
    pub(crate) async fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        owner: Option<OriginId>,
        request_id: Option<&RequestId>,
    ) -> Result<OriginResponse, OriginError> {
        let read = |id, bytes, _| self.read(id, service, bytes).map(Box::new);
        let route = Route::Version(service.clone(), *digest);
        let response = self.ask(&route, MAX_DESCRIPTOR_BYTES, owner, None, request_id, read).await?;
        match &response {
            OriginResponse::Found(id, descriptor) if descriptor.publication().digest != *digest => {
                Err(self.get(*id).bad_response("the response is for another version"))
            }
            _ => Ok(response),
        }
    }

    /// `limit`: of the answer, in bytes, which `read` reads.
    async fn ask<T>(
        &self,
        route: &Route,
        limit: usize,
        owner: Option<OriginId>,
        if_none_match: Option<&str>,
        request_id: Option<&RequestId>,
        read: impl Fn(OriginId, Bytes, Duration) -> Result<T, OriginError>,
    ) -> Result<OriginResponse<T>, OriginError> {
        let (mut failures, mut absent) = (Vec::new(), Vec::new());
        let is_absent = |absent: &[OriginId], id| absent.iter().any(|said| self.share_a_cluster(*said, id));
        for id in self.order(owner) {
            let is_elsewhere = owner.is_some_and(|owner| !self.share_a_cluster(owner, id));
            // Another cluster is asked only once that of the owner says that the service is gone: it may have moved.
            if is_absent(&absent, id) || (is_elsewhere && owner.is_some_and(|owner| !is_absent(&absent, owner))) {
                continue;
            }
            // The tag says to an origin that its cluster published the service.
            let is_of_it = owner.map_or_else(|| self.is_one_cluster(), |_| !is_elsewhere);
            match self.get(id).descriptor(route, limit, if_none_match.filter(|_| is_of_it), request_id).await {
                Ok(Some((bytes, age))) => match read(id, bytes, age) {
                    Ok(found) => return Ok(OriginResponse::Found(id, found)),
                    Err(error) => failures.push((id, error)),
                },
                Ok(None) => return Ok(OriginResponse::Unchanged),
                Err(OriginError::NotFound) => absent.push(id),
                Err(error) => failures.push((id, error)),
            }
        }
        match failures.into_iter().find(|(id, _)| !is_absent(&absent, *id)) {
            Some((_, error)) => Err(error),
            None => Ok(OriginResponse::Absent),
        }
    }

    /// Requests freshness statements of services that this origin owns, as far as is known. What it does not give, the
    /// other members of its cluster are asked for: ownership may have moved.
    ///
    /// # Errors
    /// The error of the first origin that failed, if no statement was received.
    pub(crate) async fn heartbeats(
        &self,
        owner: OriginId,
        services: BTreeSet<ServiceName>,
    ) -> Result<Vec<SignedFreshness>, OriginError> {
        let (mut request, mut received, mut failure) = (HeartbeatRequest { services }, Vec::new(), None);
        let members = self.order(Some(owner)).into_iter().filter(|id| self.share_a_cluster(owner, *id));
        for id in members.take(MAX_HEARTBEAT_ORIGINS) {
            match self.get(id).heartbeats(&request).await {
                // What was not requested is ignored.
                Ok(HeartbeatAnswer { services }) => {
                    received.extend(services.into_iter().filter(|signed| request.services.remove(&signed.service)));
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
            if request.services.is_empty() {
                break;
            }
        }
        match failure {
            Some(error) if received.is_empty() => Err(error),
            _ => Ok(received),
        }
    }

    /// The origins to ask about a service of this owner, one after the other.
    pub(crate) fn order(&self, owner: Option<OriginId>) -> Vec<OriginId> {
        self.table().order(owner)
    }

    fn read(&self, id: OriginId, service: &ServiceName, bytes: Bytes) -> Result<Descriptor, OriginError> {
        let descriptor =
            Descriptor::parse(bytes).map_err(|error: DescriptorError| self.get(id).bad_response(&error.to_string()))?;
        if descriptor.publication().service != *service {
            return Err(self.get(id).bad_response("the response is for another service"));
        }
        Ok(descriptor)
    }
}
