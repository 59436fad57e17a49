//! Looks names up for each new connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// Finds the addresses of a name, to be tried in this order: by default the system's resolver.
#[derive(Clone)]
pub struct NameLookup(Arc<dyn Fn(String) -> Lookup + Send + Sync>);

type Lookup = BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

impl NameLookup {
    /// Another resolver, such as that of a test. The ports of its addresses are ignored.
    pub fn of(find: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |host| Box::pin(std::future::ready(find(&host)))))
    }

    /// The addresses of a name or an IP address, with a port.
    ///
    /// # Errors
    /// The name is unknown, or cannot be looked up now.
    pub async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = (self.0)(host.to_owned()).await?;
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }
}

impl Default for NameLookup {
    fn default() -> Self {
        Self(Arc::new(|host| Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })))
    }
}

impl fmt::Debug for NameLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameLookup")
    }
}

/// As the resolver of a connector.
impl Service<Name> for NameLookup {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = (self.0)(name.as_str().to_owned());
        Box::pin(async move { Ok(found.await?.into_iter()) })
    }
}
