//! Requests descriptors and objects from origins.
//!
//! Several origins partition the services among them. The owner of a service is known once one of them has answered for
//! it; until then each is tried in turn. There is no fail-over, because an origin does not serve services of another.

mod breaker;
mod clients;
mod connection;
mod error;
mod metrics;
pub(crate) mod probe;

use std::time::SystemTime;

use anyhow::Context as _;
use bytes::Bytes;
use hyper::body::Incoming;
use weir_protocol::descriptor::{Descriptor, DescriptorError};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::route::Route;
use weir_runtime::tls;

use crate::config::OriginConfig;

pub(crate) use clients::Clients;
pub(crate) use connection::Origin;
pub(crate) use error::OriginError;
pub(crate) use metrics::OriginMetrics;

#[derive(Debug)]
pub(crate) struct Origins {
    origins: Vec<Origin>,
}

/// An origin, as its index in the configuration.
pub(crate) type OriginId = usize;

/// The origins' response to a query about a service, or one version of it.
#[derive(Debug)]
pub(crate) enum OriginResponse {
    /// The descriptor, with the origin that publishes it.
    Descriptor(OriginId, Box<Descriptor>),
    /// The descriptor with the tag of the request is current.
    Unchanged,
    /// Not found: by all origins, where `421` counts if the owner responded `404`.
    Absent,
}

impl Origins {
    pub(crate) fn new(origins: Vec<Origin>) -> Self {
        Self { origins }
    }

    pub(crate) fn all(&self) -> &[Origin] {
        &self.origins
    }

    /// The name of an origin: its `host:port`.
    pub(crate) fn name(&self, id: OriginId) -> Option<&str> {
        self.origins.get(id).map(Origin::name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<OriginId> {
        self.origins.iter().position(|origin| origin.name() == name)
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

    /// Whether any origin has ever responded.
    pub(crate) fn any_reached(&self) -> bool {
        self.origins.iter().any(Origin::was_reached)
    }

    /// Requests the descriptor of a service. `owner`: its origin, if known; `if_none_match`: the entity tag of the stored
    /// descriptor.
    ///
    /// # Errors
    /// The error of the owner, or of the first origin that failed.
    pub(crate) async fn descriptor(
        &self,
        service: &ServiceName,
        owner: Option<OriginId>,
        if_none_match: Option<&str>,
    ) -> Result<OriginResponse, OriginError> {
        self.ask(&Route::Service(service.clone()), service, owner, if_none_match).await
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
    ) -> Result<OriginResponse, OriginError> {
        let response = self.ask(&Route::Version(service.clone(), *digest), service, owner, None).await?;
        match &response {
            OriginResponse::Descriptor(id, descriptor) if descriptor.publication().digest != *digest => {
                Err(self.origins[*id].bad_response("the response is for another version"))
            }
            _ => Ok(response),
        }
    }

    /// Requests an object from one origin. `no_cache`: bypass caches on the path, after corrupt bytes.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when the origin does not have it, or another error of the request.
    pub(crate) async fn object(&self, id: OriginId, route: &Route, no_cache: bool) -> Result<Incoming, OriginError> {
        self.origins[id].object(route, no_cache).await
    }

    pub(crate) fn received(&self, id: OriginId, bytes: usize) {
        self.origins[id].metrics.received(bytes);
    }

    async fn ask(
        &self,
        route: &Route,
        service: &ServiceName,
        owner: Option<OriginId>,
        if_none_match: Option<&str>,
    ) -> Result<OriginResponse, OriginError> {
        let mut failure = None;
        let (mut owner_says_absent, mut another_may_have_it) = (false, false);
        for id in self.order(owner) {
            let is_owner = owner == Some(id);
            match self.origins[id].descriptor(route, if_none_match.filter(|_| is_owner)).await {
                Ok(Some(bytes)) => return Ok(OriginResponse::Descriptor(id, Box::new(self.read(id, service, bytes)?))),
                Ok(None) => return Ok(OriginResponse::Unchanged),
                Err(OriginError::NotFound) => owner_says_absent |= is_owner,
                Err(error @ OriginError::Misdirected(_)) => failure = failure.or(Some(error)),
                Err(error) if is_owner => return Err(error),
                Err(error) => {
                    // The service may have moved there.
                    another_may_have_it = true;
                    failure = failure.or(Some(error));
                }
            }
        }
        match failure {
            Some(error) if !owner_says_absent || another_may_have_it => Err(error),
            _ => Ok(OriginResponse::Absent),
        }
    }

    /// The owner first, then the others in case the service has moved.
    pub(crate) fn order(&self, owner: Option<OriginId>) -> impl Iterator<Item = OriginId> + use<> {
        owner.into_iter().chain((0..self.origins.len()).filter(move |id| owner != Some(*id)))
    }

    fn read(&self, id: OriginId, service: &ServiceName, bytes: Bytes) -> Result<Descriptor, OriginError> {
        let descriptor = Descriptor::parse(bytes)
            .map_err(|error: DescriptorError| self.origins[id].bad_response(&error.to_string()))?;
        if descriptor.publication().service != *service {
            return Err(self.origins[id].bad_response("the response is for another service"));
        }
        Ok(descriptor)
    }
}
