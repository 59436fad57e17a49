//! Asks origins for descriptors and objects.
//!
//! Several origins partition the services among them. Whose a service is, is known once one of them has answered for
//! it; until then each is asked in turn. One origin never answers for another's services, so there is no fail-over.

mod breaker;
mod clients;
mod connection;
mod error;
mod metrics;
pub(crate) mod probe;

use bytes::Bytes;
use hyper::body::Incoming;
use weir_protocol::descriptor::{Descriptor, DescriptorError};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::route::Route;

use crate::config::OriginConfig;

pub(crate) use clients::Clients;
pub(crate) use connection::Origin;
pub(crate) use error::OriginError;
pub(crate) use metrics::OriginMetrics;

/// The origins of the configuration.
#[derive(Debug)]
pub(crate) struct Origins {
    origins: Vec<Origin>,
}

/// Which of the origins: its position in the configuration.
pub(crate) type OriginId = usize;

/// What the origins know of a service, or of one version of it.
#[derive(Debug)]
pub(crate) enum Word {
    /// The descriptor that this origin publishes.
    Descriptor(OriginId, Box<Descriptor>),
    /// What the caller holds is what its origin publishes.
    Unchanged,
    /// There is no such thing: all of them say so, but for those that are not responsible when its own origin does.
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

    /// The origin with this name.
    pub(crate) fn find(&self, name: &str) -> Option<OriginId> {
        self.origins.iter().position(|origin| origin.name() == name)
    }

    /// Reads again what each of them is called with, in the order in which `configs` made them.
    ///
    /// # Errors
    /// A file cannot be used, or a certificate has ended.
    pub(crate) fn read_again(&self, configs: &[OriginConfig]) -> anyhow::Result<Vec<Clients>> {
        let mut read = Vec::new();
        for config in configs {
            let clients = Clients::read(config)?;
            if clients.have_ended() {
                let file = config.client_certificate.display();
                anyhow::bail!("the client certificate {file} has ended: the origin {} would refuse it", config.url);
            }
            read.push(clients);
        }
        Ok(read)
    }

    /// Whether one of them has ever answered.
    pub(crate) fn any_reached(&self) -> bool {
        self.origins.iter().any(Origin::was_reached)
    }

    /// Asks for the descriptor of a service. `owner`: whose it is, when that is known; `held`: the entity tag of what
    /// the caller holds of it.
    ///
    /// # Errors
    /// Why nothing can be concluded: of its own origin, or of the first that could not answer.
    pub(crate) async fn descriptor(
        &self,
        service: &ServiceName,
        owner: Option<OriginId>,
        held: Option<&str>,
    ) -> Result<Word, OriginError> {
        self.ask(&Route::Service(service.clone()), service, owner, held).await
    }

    /// Asks for the descriptor of a retained version.
    ///
    /// # Errors
    /// As [`Origins::descriptor`].
    pub(crate) async fn version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        owner: Option<OriginId>,
    ) -> Result<Word, OriginError> {
        let word = self.ask(&Route::Version(service.clone(), *digest), service, owner, None).await?;
        match &word {
            Word::Descriptor(id, descriptor) if descriptor.publication().digest != *digest => {
                Err(self.origins[*id].bad_answer("it answered with another version than the one asked for"))
            }
            _ => Ok(word),
        }
    }

    /// Asks one origin for an object. `no_cache`: what came before was wrong, and caches on the way are to be passed by.
    ///
    /// # Errors
    /// [`OriginError::NotFound`] when it does not have it; why it cannot be asked otherwise.
    pub(crate) async fn object(&self, id: OriginId, route: &Route, no_cache: bool) -> Result<Incoming, OriginError> {
        self.origins[id].object(route, no_cache).await
    }

    /// Counts bytes of an object that an origin sent.
    pub(crate) fn received(&self, id: OriginId, bytes: usize) {
        self.origins[id].metrics.received(bytes);
    }

    async fn ask(
        &self,
        route: &Route,
        service: &ServiceName,
        owner: Option<OriginId>,
        held: Option<&str>,
    ) -> Result<Word, OriginError> {
        let mut failure = None;
        let (mut owner_says_absent, mut another_may_have_it) = (false, false);
        for id in self.order(owner) {
            let is_owner = owner == Some(id);
            match self.origins[id].descriptor(route, held.filter(|_| is_owner)).await {
                Ok(Some(bytes)) => return Ok(Word::Descriptor(id, Box::new(self.read(id, service, bytes)?))),
                Ok(None) => return Ok(Word::Unchanged),
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
            _ => Ok(Word::Absent),
        }
    }

    /// The owner first; the others after it, in case the service has moved to one of them.
    pub(crate) fn order(&self, owner: Option<OriginId>) -> impl Iterator<Item = OriginId> + use<> {
        owner.into_iter().chain((0..self.origins.len()).filter(move |id| owner != Some(*id)))
    }

    fn read(&self, id: OriginId, service: &ServiceName, bytes: Bytes) -> Result<Descriptor, OriginError> {
        let descriptor = Descriptor::parse(bytes)
            .map_err(|error: DescriptorError| self.origins[id].bad_answer(&error.to_string()))?;
        if descriptor.publication().service != *service {
            return Err(self.origins[id].bad_answer("it answered with another service than the one asked for"));
        }
        Ok(descriptor)
    }
}
