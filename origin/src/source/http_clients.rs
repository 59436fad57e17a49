//! The HTTP clients of upstreams. Upstreams that are reached in the same way share one, and with it connections and TLS
//! sessions: through the same proxy, by the same authorities, with the same client certificate, and within the same egress
//! policy. Credentials are no part of a client: each request carries those of its own upstream. Nothing comes from the
//! environment of the process but the authorities of the system.
//!
//! The files that a client is made of are read again for each poll, so that the first poll after a change uses another
//! client. All clients are forgotten every ten minutes: the authorities of the system are read again then, and secrets that
//! are not in use any more do not stay.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Proxy, RequestBuilder, Response, Url};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tower::util::MapResponseLayer;

use super::{Reach, Upstream, secret};
use crate::source::git::mirror::MirrorError;

/// Idle connections that are kept open to one host.
pub(crate) const IDLE_CONNECTIONS_PER_HOST: usize = 2;

/// How long an idle connection is kept open: for the requests of one poll, and for the polls of other repositories there.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a client is used.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The clients of this process.
static CLIENTS: Mutex<Option<Clients>> = Mutex::new(None);

/// Clients that were made since a moment, and the authorities of the system as they were then.
struct Clients {
    since: Instant,
    of_the_system: Option<Arc<Verifier>>,
    made: HashMap<Parts, Client>,
}

/// The client for an upstream itself.
///
/// # Errors
/// A file cannot be read, or does not do.
pub(crate) fn home(upstream: &Upstream, connect_timeout: Duration) -> Result<Client, MirrorError> {
    let identity = match upstream.client_certificate.as_ref().zip(upstream.client_key.as_ref()) {
        Some((certificate, key)) => Some(Identity {
            certificate: fs::read(certificate).map_err(MirrorError::unread("client_certificate", certificate))?,
            key: fs::read(key).map_err(MirrorError::unread("client_key", key))?,
        }),
        None => None,
    };
    Parts { identity, ..Parts::read(upstream, upstream.reach.clone(), connect_timeout)? }.client()
}

/// The client for hosts that an upstream leads to, as far as `beyond` allows: without the client certificate.
///
/// # Errors
/// The same.
pub(crate) fn elsewhere(
    upstream: &Upstream,
    beyond: &Arc<Reach>,
    connect_timeout: Duration,
) -> Result<Client, MirrorError> {
    Parts::read(upstream, beyond.clone(), connect_timeout)?.client()
}

tokio::task_local! {
    /// Whether a connection was opened for the current request.
    static CONNECTED: Rc<Cell<bool>>;
}

/// Sends a request, and sets `connected` if a connection was opened for it.
pub(crate) async fn send(request: RequestBuilder, connected: Rc<Cell<bool>>) -> reqwest::Result<Response> {
    CONNECTED.scope(connected, request.send()).await
}

/// What a client is made of.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Parts {
    reach: Arc<Reach>,
    /// PEM. Absent: the authorities of the system.
    ca: Option<Vec<u8>>,
    identity: Option<Identity>,
    proxy: Option<ProxyParts>,
    connect_timeout: Duration,
}

/// PEM.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ProxyParts {
    url: Url,
    /// User name and password.
    account: Option<(String, String)>,
}

impl Parts {
    fn read(upstream: &Upstream, reach: Arc<Reach>, connect_timeout: Duration) -> Result<Self, MirrorError> {
        let ca =
            upstream.ca.as_ref().map(|file| fs::read(file).map_err(MirrorError::unread("ca", file))).transpose()?;
        let proxy = ProxyParts::read(upstream)?;
        // All goes through a proxy if there is one, and no name is looked up to connect but its own: it is where the
        // configuration says, and not where somebody leads.
        let reach = if proxy.is_some() { upstream.reach.clone() } else { reach };
        Ok(Self { reach, ca, identity: None, proxy, connect_timeout })
    }

    fn client(self) -> Result<Client, MirrorError> {
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let clients = match &mut *clients {
            Some(clients) if clients.since.elapsed() < MAX_AGE => clients,
            outdated => outdated.insert(Clients { since: Instant::now(), of_the_system: None, made: HashMap::new() }),
        };
        if let Some(client) = clients.made.get(&self) {
            return Ok(client.clone());
        }
        let client = self.clone().make(&mut clients.of_the_system)?;
        clients.made.insert(self, client.clone());
        Ok(client)
    }

    fn make(self, of_the_system: &mut Option<Arc<Verifier>>) -> Result<Client, MirrorError> {
        let trust = |error: rustls::Error| MirrorError::Trust(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &self.ca {
            // Only these: a private upstream should not be impersonated by whoever any public authority trusts.
            Some(pem) => private(pem, &provider)?,
            // Read once for all clients: that takes longer than a poll.
            None => match of_the_system {
                Some(verifier) => verifier.clone(),
                None => of_the_system.insert(Arc::new(Verifier::new(provider.clone()).map_err(trust)?)).clone(),
            },
        };
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(trust)?;
        let tls = tls.dangerous().with_custom_certificate_verifier(verifier);
        let mut tls = match self.identity {
            Some(identity) => {
                let wrong = "`client_certificate` and `client_key` are not a certificate and its key, both PEM";
                let wrong = || MirrorError::Trust(wrong.to_owned());
                let (chain, key) = identity.parse().ok_or_else(wrong)?;
                tls.with_client_auth_cert(chain, key).map_err(|_| wrong())?
            }
            None => tls.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut builder = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_PER_HOST)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .connector_layer(MapResponseLayer::new(connected))
            .tls_backend_preconfigured(tls)
            .dns_resolver(Resolver(self.reach));
        if let Some(proxy) = self.proxy {
            builder = builder.proxy(proxy.make()?);
        }
        builder.build().map_err(|error| MirrorError::Connect { cause: error.to_string(), timeout: false })
    }
}

impl Identity {
    fn parse(&self) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>().ok()?;
        Some((chain, PrivateKeyDer::from_pem_slice(&self.key).ok()?))
    }
}

impl ProxyParts {
    fn read(upstream: &Upstream) -> Result<Option<Self>, MirrorError> {
        let Some(proxy) = &upstream.proxy else { return Ok(None) };
        let wrong = |_| MirrorError::Connect { cause: "`proxy` is no address".to_owned(), timeout: false };
        let url = proxy.http().map_err(wrong)?.clone();
        if upstream.reach.public_only {
            upstream.reach.check_host(url.host_str().unwrap_or_default())?;
        }
        let account = match upstream.proxy_username.as_ref().zip(upstream.proxy_password_file.as_ref()) {
            Some((username, file)) => Some((username.clone(), secret::read(file, "proxy_password_file")?)),
            None => None,
        };
        Ok(Some(Self { url, account }))
    }

    fn make(self) -> Result<Proxy, MirrorError> {
        let wrong = |_| MirrorError::Connect { cause: "`proxy` is no address".to_owned(), timeout: false };
        let proxy = Proxy::all(self.url).map_err(wrong)?;
        Ok(match self.account {
            Some((username, password)) => proxy.basic_auth(&username, &password),
            None => proxy,
        })
    }
}

fn private(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, MirrorError> {
    let wrong = || MirrorError::Trust("`ca` holds no certificate".to_owned());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|_| wrong())?).map_err(|_| wrong())?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    Ok(verifier.map_err(|_| wrong())?)
}

/// Notes that a connection was made for the request under way. It passes that over when an idle one came first: then the
/// connection is made in the background, for others.
fn connected<T>(connection: T) -> T {
    let _ = CONNECTED.try_with(|connected| connected.set(true));
    connection
}

/// Looks names up, and keeps to where the upstream may lead.
struct Resolver(Arc<Reach>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0.clone();
        Box::pin(async move {
            let addresses = reach.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
