//! The HTTP clients of an upstream: its authorities, its certificate, its proxy. They are kept, and with them TLS sessions, and
//! connections for a while. Nothing comes from the environment of the process but the authorities of the system.
//!
//! What they are made of is read again for each poll, and they are made anew when it has changed. No secret is kept to tell
//! that: those that every request shows are not theirs, and of the others there is a hash.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Proxy, Url};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::{Reach, Upstream, secret};
use crate::mirror::MirrorError;

/// How long a connection is kept that nobody uses: for the requests of a poll, and for polls in quick succession. Others
/// resume the TLS session, which takes a tenth of the memory.
const KEPT: Duration = Duration::from_secs(15);

/// TLS tickets that are kept for one upstream: eight for each of two servers, itself and a proxy or a storage.
const SESSIONS: usize = 16;

/// The clients of an upstream. All clones share them.
#[derive(Clone, Default)]
pub struct HttpClients(Arc<Kept>);

#[derive(Default)]
struct Kept {
    /// For the upstream itself.
    home: Slot,
    /// For wherever else it leads: without the client certificate, and to fewer places.
    elsewhere: Slot,
}

/// A client, and the hash of what it was made of.
type Slot = Mutex<Option<(u64, Client)>>;

impl HttpClients {
    /// The client for an upstream, and whether it may have connections already.
    ///
    /// # Errors
    /// A file cannot be read, or does not do.
    pub(crate) fn home(&self, upstream: &Upstream, connect_timeout: Duration) -> Result<(Client, bool), MirrorError> {
        let identity = match upstream.client_certificate.as_ref().zip(upstream.client_key.as_ref()) {
            Some((certificate, key)) => Some(Identity {
                certificate: fs::read(certificate).map_err(MirrorError::unread("client_certificate", certificate))?,
                key: fs::read(key).map_err(MirrorError::unread("client_key", key))?,
            }),
            None => None,
        };
        Parts { identity, ..Parts::read(upstream, upstream.reach.clone(), connect_timeout)? }.client(&self.0.home)
    }

    /// The same for hosts that the upstream leads to, as far as `beyond` allows.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn elsewhere(
        &self,
        upstream: &Upstream,
        beyond: &Arc<Reach>,
        connect_timeout: Duration,
    ) -> Result<(Client, bool), MirrorError> {
        Parts::read(upstream, beyond.clone(), connect_timeout)?.client(&self.0.elsewhere)
    }
}

/// What is kept is no part of how an upstream is asked.
impl PartialEq for HttpClients {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HttpClients {}

/// What a client is made of.
#[derive(Hash)]
struct Parts {
    reach: Arc<Reach>,
    /// PEM. Absent: the authorities of the system.
    ca: Option<Vec<u8>>,
    identity: Option<Identity>,
    proxy: Option<ProxyParts>,
    connect_timeout: Duration,
}

/// PEM.
#[derive(Hash)]
struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

#[derive(Hash)]
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

    /// The client of a slot, made anew if these are others.
    fn client(self, slot: &Slot) -> Result<(Client, bool), MirrorError> {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        let hash = hasher.finish();
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some((made_of, client)) if *made_of == hash => Ok((client.clone(), true)),
            _ => {
                let client = self.make()?;
                *slot = Some((hash, client.clone()));
                Ok((client, false))
            }
        }
    }

    fn make(self) -> Result<Client, MirrorError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = match &self.ca {
            // Only these: a private upstream should not be impersonated by whoever any public authority trusts.
            Some(pem) => private(pem, &provider)?,
            None => of_the_system(&provider)?,
        };
        let trust = |error: rustls::Error| MirrorError::Trust(error.to_string());
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
        tls.resumption = Resumption::in_memory_sessions(SESSIONS);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut builder = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEPT)
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

/// The authorities of the system, read once: to read them takes longer than a poll.
fn of_the_system(provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, MirrorError> {
    static VERIFIER: OnceLock<Arc<Verifier>> = OnceLock::new();
    if let Some(verifier) = VERIFIER.get() {
        return Ok(verifier.clone());
    }
    let verifier = Verifier::new(provider.clone()).map_err(|error| MirrorError::Trust(error.to_string()))?;
    Ok(VERIFIER.get_or_init(|| Arc::new(verifier)).clone())
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
