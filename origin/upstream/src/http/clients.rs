//! The HTTP clients of upstreams. Upstreams with the same proxy, authorities, client certificate and egress policy share a
//! client, and with it connections and TLS sessions. Credentials are no part of a client: each request has those of its own
//! upstream. Of the process's environment only the system's authorities are used.
//!
//! The files of a client are read for each poll, so the first poll after a change uses a new client. All clients are dropped
//! every ten minutes: the system's authorities are read again then, and unused secrets leave the memory.

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

use super::super::config::RepositoryConfig;
use super::super::egress_policy::EgressPolicy;
use super::super::error::UpstreamError;
use super::super::secret;
use super::super::upstream::Upstream;

/// The most idle connections to one host.
pub(crate) const IDLE_CONNECTIONS_PER_HOST: usize = 2;

/// How long an idle connection stays open, for later requests of the poll and for polls of other repositories.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a client is used.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The clients of this process.
static CLIENTS: Mutex<Option<ClientCache>> = Mutex::new(None);

/// Clients, with the system's authorities at their creation.
struct ClientCache {
    created_at: Instant,
    system_verifier: Option<Arc<Verifier>>,
    clients: HashMap<ClientSpec, Client>,
}

/// The client for the upstream's own host.
///
/// # Errors
/// A file cannot be read, or is invalid.
pub(crate) fn for_upstream(upstream: &Upstream, connect_timeout: Duration) -> Result<Client, UpstreamError> {
    let RepositoryConfig { client_certificate, client_key, .. } = &upstream.config;
    let identity = match client_certificate.as_ref().zip(client_key.as_ref()) {
        Some((certificate, key)) => Some(ClientCertificate {
            certificate: fs::read(certificate).map_err(UpstreamError::unread("client_certificate", certificate))?,
            key: fs::read(key).map_err(UpstreamError::unread("client_key", key))?,
        }),
        None => None,
    };
    ClientSpec { identity, ..ClientSpec::read(upstream, upstream.egress.clone(), connect_timeout)? }.client()
}

/// The client for other hosts to which the upstream refers, within their egress policy. It has no client certificate.
///
/// # Errors
/// As for [`for_upstream`].
pub(crate) fn for_other_hosts(
    upstream: &Upstream,
    egress: &Arc<EgressPolicy>,
    connect_timeout: Duration,
) -> Result<Client, UpstreamError> {
    ClientSpec::read(upstream, egress.clone(), connect_timeout)?.client()
}

tokio::task_local! {
    /// Whether a connection was opened for the current request.
    static CONNECTED: Rc<Cell<bool>>;
}

/// Sends a request, and sets `connected` if a connection was opened for it.
pub(crate) async fn send(request: RequestBuilder, connected: Rc<Cell<bool>>) -> reqwest::Result<Response> {
    CONNECTED.scope(connected, request.send()).await
}

/// The configuration of a client: the key of the cache.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ClientSpec {
    egress: Arc<EgressPolicy>,
    /// PEM. `None`: the system's authorities.
    ca: Option<Vec<u8>>,
    identity: Option<ClientCertificate>,
    proxy: Option<ProxySpec>,
    connect_timeout: Duration,
}

/// PEM.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ClientCertificate {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ProxySpec {
    url: Url,
    /// User name and password.
    credentials: Option<(String, String)>,
}

impl ClientSpec {
    fn read(upstream: &Upstream, egress: Arc<EgressPolicy>, connect_timeout: Duration) -> Result<Self, UpstreamError> {
        let ca = &upstream.config.ca;
        let ca = ca.as_ref().map(|file| fs::read(file).map_err(UpstreamError::unread("ca", file))).transpose()?;
        let proxy = ProxySpec::read(upstream)?;
        // With a proxy only its own name is resolved here, and the configuration names it: the upstream's policy applies.
        let egress = if proxy.is_some() { upstream.egress.clone() } else { egress };
        Ok(Self { egress, ca, identity: None, proxy, connect_timeout })
    }

    fn client(self) -> Result<Client, UpstreamError> {
        let mut cache = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = match &mut *cache {
            Some(cache) if cache.created_at.elapsed() < MAX_AGE => cache,
            outdated => outdated.insert(ClientCache {
                created_at: Instant::now(),
                system_verifier: None,
                clients: HashMap::new(),
            }),
        };
        if let Some(client) = cache.clients.get(&self) {
            return Ok(client.clone());
        }
        let client = self.clone().create(&mut cache.system_verifier)?;
        cache.clients.insert(self, client.clone());
        Ok(client)
    }

    fn create(self, system_verifier: &mut Option<Arc<Verifier>>) -> Result<Client, UpstreamError> {
        let trust = |error: rustls::Error| UpstreamError::Trust(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &self.ca {
            // Public authorities must not vouch for a private upstream.
            Some(pem) => private_verifier(pem, &provider)?,
            // Read once for all clients, because reading takes longer than a poll.
            None => match system_verifier {
                Some(verifier) => verifier.clone(),
                None => system_verifier.insert(Arc::new(Verifier::new(provider.clone()).map_err(trust)?)).clone(),
            },
        };
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(trust)?;
        let tls = tls.dangerous().with_custom_certificate_verifier(verifier);
        let mut tls = match self.identity {
            Some(identity) => {
                let wrong = "`client_certificate` and `client_key` are not a certificate and its key, both PEM";
                let wrong = || UpstreamError::Trust(wrong.to_owned());
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
            .connector_layer(MapResponseLayer::new(mark_connected))
            .tls_backend_preconfigured(tls)
            .dns_resolver(Resolver(self.egress));
        if let Some(proxy) = self.proxy {
            builder = builder.proxy(proxy.create()?);
        }
        builder.build().map_err(|error| UpstreamError::Connect { cause: error.to_string(), timeout: false })
    }
}

impl ClientCertificate {
    fn parse(&self) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>().ok()?;
        Some((chain, PrivateKeyDer::from_pem_slice(&self.key).ok()?))
    }
}

impl ProxySpec {
    fn read(upstream: &Upstream) -> Result<Option<Self>, UpstreamError> {
        let RepositoryConfig { proxy, proxy_username, proxy_password_file, .. } = &upstream.config;
        let Some(proxy) = proxy else { return Ok(None) };
        let wrong = |_| UpstreamError::Connect { cause: "`proxy` is not a valid URL".to_owned(), timeout: false };
        let url = proxy.http().map_err(wrong)?.clone();
        if upstream.egress.public_only {
            upstream.egress.check_host(url.host_str().unwrap_or_default())?;
        }
        let credentials = match proxy_username.as_ref().zip(proxy_password_file.as_ref()) {
            Some((username, file)) => Some((username.clone(), secret::read(file, "proxy_password_file")?)),
            None => None,
        };
        Ok(Some(Self { url, credentials }))
    }

    fn create(self) -> Result<Proxy, UpstreamError> {
        let wrong = |_| UpstreamError::Connect { cause: "`proxy` is not a valid URL".to_owned(), timeout: false };
        let proxy = Proxy::all(self.url).map_err(wrong)?;
        Ok(match self.credentials {
            Some((username, password)) => proxy.basic_auth(&username, &password),
            None => proxy,
        })
    }
}

fn private_verifier(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, UpstreamError> {
    let wrong = || UpstreamError::Trust("the file of `ca` contains no valid certificate".to_owned());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|_| wrong())?).map_err(|_| wrong())?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    Ok(verifier.map_err(|_| wrong())?)
}

/// Records that the current request opened a connection. If an idle connection was free first, the new one is opened in the
/// background, outside of the request, and is not recorded.
fn mark_connected<T>(connection: T) -> T {
    let _ = CONNECTED.try_with(|connected| connected.set(true));
    connection
}

/// Resolves names to allowed addresses.
struct Resolver(Arc<EgressPolicy>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let egress = self.0.clone();
        Box::pin(async move {
            let addresses = egress.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
