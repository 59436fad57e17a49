//! Fetching over HTTPS: the client below gix's transport, with bounds, the right certificate authorities and our name.

use std::any::Any;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::http::{
    self, GetResponse, Http, PostBodyDataKind, PostResponse, reqwest as backend,
};
use gix::protocol::transport::client::blocking_io::http::{Transport, connect_http};
use reqwest::Certificate;
use reqwest::blocking::ClientBuilder;

use super::{MirrorError, Upstream};

/// Git servers tell Git clients from browsers by the first four letters.
const USER_AGENT: &str = concat!("User-Agent: git/2 (weir-origin/", env!("CARGO_PKG_VERSION"), ")");

/// A connection takes at most this long to come about, and never longer than a stalled read may.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The transport to an `https://` or `http://` upstream, and the options to set on the connection made with it.
pub(super) fn transport(
    upstream: &Upstream,
    url: gix::Url,
) -> Result<(Transport<NamedClient>, Box<dyn Any>), MirrorError> {
    // Two providers would be compiled in only by mistake, and whoever installs this one first is welcome.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authorities = upstream.ca.as_ref().map(|path| {
        let pem =
            fs::read(path).map_err(MirrorError::local("read the certificate authorities of the upstream (`ca`)"))?;
        match Certificate::from_pem_bundle(&pem) {
            Ok(authorities) if !authorities.is_empty() => Ok(authorities),
            _ => Err(MirrorError::Connect { cause: "`ca` holds no certificate".to_owned(), timeout: false }),
        }
    });
    let authorities = authorities.transpose()?;
    let stall_timeout = upstream.stall_timeout;
    let configure = move |builder: ClientBuilder| {
        let builder = builder.timeout(stall_timeout).connect_timeout(CONNECT_TIMEOUT.min(stall_timeout));
        Ok(match &authorities {
            // Only these: a private upstream should not be impersonated by whoever any public authority trusts.
            Some(authorities) => builder.tls_certs_only(authorities.iter().cloned()),
            None => builder,
        })
    };
    let options = backend::Options { configure_client: Some(Box::new(configure)), configure_request: None };
    let options = http::Options { backend: Some(Arc::new(Mutex::new(options))), ..Default::default() };
    Ok((connect_http(NamedClient::default(), url, Protocol::V2, false), Box::new(options)))
}

/// The HTTP client of gix, but telling our name.
#[derive(Default)]
pub(super) struct NamedClient(backend::Remote);

fn named(headers: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<String> {
    let others = headers.into_iter().map(|header| header.as_ref().to_owned());
    let mut headers: Vec<String> = others.filter(|header| !header.starts_with("User-Agent:")).collect();
    headers.push(USER_AGENT.to_owned());
    headers
}

impl Http for NamedClient {
    type Headers = <backend::Remote as Http>::Headers;
    type ResponseBody = <backend::Remote as Http>::ResponseBody;
    type PostBody = <backend::Remote as Http>::PostBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        self.0.get(url, base_url, named(headers))
    }

    fn post(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        body: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        self.0.post(url, base_url, named(headers), body)
    }

    fn configure(&mut self, config: &dyn Any) -> gix::Result {
        self.0.configure(config)
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.0.redirected_base_url()
    }
}
