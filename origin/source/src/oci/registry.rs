//! Requests to a registry.

use std::cell::RefCell;

use reqwest::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use weir_protocol::digest::Sha256;
use weir_upstream::http::{Body, Client, follow_redirects, same_host, same_origin};
use weir_upstream::{Server, UpstreamError};

use super::error::{RegistryError, of_body, sent_instead};
use super::manifest::{self, Descriptor, Document, parse_digest};
use super::token::Tokens;
use super::{OciName, link};

/// The largest manifest, and the least bound of a page of tags.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// The most pages of referrers.
const MAX_REFERRER_PAGES: usize = 10;

/// The longest tag, in bytes.
const MAX_TAG_BYTES: usize = 128;

const DOCKER_CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// A registry, for one session.
pub(crate) struct Registry<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) tokens: &'a Tokens,
    pub(super) url: Url,
}

/// A manifest, or why the bytes are none: the end of a sentence that begins with the name of what was requested.
pub(crate) type Contents = Result<Document, String>;

/// A manifest and the digest of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) digest: Sha256,
    pub(crate) document: Contents,
}

/// What refers to a manifest.
#[derive(Debug, Default)]
pub(crate) struct Referrers {
    pub(super) found: Vec<Descriptor>,
    /// Why the list has no more pages.
    pub(super) failed: Option<RegistryError>,
}

/// What a tag names: its digest, and its manifest if the registry had to send it.
pub(crate) type Named = (Sha256, Option<Contents>);

/// Whether a text can be a tag.
pub(crate) fn is_tag(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= MAX_TAG_BYTES && text.starts_with(plain) && text.chars().all(|c| plain(c) || matches!(c, '.' | '-'))
}

/// Whether a text can name a manifest: a tag, or a digest.
pub(crate) fn is_reference(text: &str) -> bool {
    is_tag(text) || parse_digest(text).is_some()
}

impl<'a> Registry<'a> {
    /// The registry with this URL. It receives the upstream's credentials only if it is the upstream itself.
    pub(crate) fn new(client: &'a Client<'a>, tokens: &'a Tokens, url: Url) -> Self {
        Self { client, tokens, url }
    }

    /// The most tags of a repository, as configured.
    pub(super) fn max_tags(&self) -> usize {
        self.client.session().upstream.limits.max_tags
    }

    /// What a tag names. One request, without a body where the registry supports that, or else one more for the manifest: it
    /// is sent, or the reason why not.
    pub(crate) fn resolve(&self, name: &OciName, tag: &str) -> Result<Named, RegistryError> {
        let url = self.url_of(name, &["manifests", tag]);
        let (response, method) = self.send(name, "manifests", &Method::HEAD, url, manifest::ACCEPT)?;
        if response.status() != StatusCode::OK {
            return Err(self.failure(name, response));
        }
        match digest_of(&response).filter(|_| method == Method::HEAD) {
            Some(digest) => Ok((digest, None)),
            None => {
                let Resolved { digest, document } = self.read_manifest(response)?;
                Ok((digest, Some(document)))
            }
        }
    }

    /// The manifest of what [`resolve`](Self::resolve) found for a tag. Some registries name a digest that they do not have:
    /// then it is what they send for the tag. Without a tag, it is the one with the digest.
    pub(crate) fn manifest_of(
        &self,
        name: &OciName,
        tag: Option<&str>,
        (digest, document): Named,
    ) -> Result<Resolved, RegistryError> {
        let document = match document {
            Some(document) => Ok(document),
            None => self.manifest(name, &digest),
        };
        match (document, tag) {
            (Err(RegistryError::NotFound(_) | RegistryError::Unusable(_)), Some(tag)) => {
                self.manifest_by_tag(name, tag)
            }
            (document, _) => Ok(Resolved { digest, document: document? }),
        }
    }

    /// The bytes of the manifest that a tag or a digest names now, and their digest.
    pub(crate) fn manifest_bytes(&self, name: &OciName, reference: &str) -> Result<(Vec<u8>, Sha256), RegistryError> {
        let url = self.url_of(name, &["manifests", reference]);
        self.read(self.get(name, "manifests", url, manifest::ACCEPT)?, MAX_MANIFEST_BYTES)
    }

    /// The manifest that a tag names now.
    pub(crate) fn manifest_by_tag(&self, name: &OciName, tag: &str) -> Result<Resolved, RegistryError> {
        let url = self.url_of(name, &["manifests", tag]);
        self.read_manifest(self.get(name, "manifests", url, manifest::ACCEPT)?)
    }

    fn read_manifest(&self, response: Response) -> Result<Resolved, RegistryError> {
        let instead = sent_instead(&response);
        let (bytes, digest) = self.read(response, MAX_MANIFEST_BYTES)?;
        let document = manifest::parse(&bytes);
        let document = document.map_err(|why| format!("has a manifest that cannot be used: {why}{instead}"));
        Ok(Resolved { digest, document })
    }

    /// The manifest with this digest, or why its bytes are none, which stays so.
    pub(crate) fn manifest(&self, name: &OciName, digest: &Sha256) -> Result<Contents, RegistryError> {
        let resolved = self.manifest_by_tag(name, &format!("sha256:{digest}"))?;
        if resolved.digest != *digest {
            let (other, invalid) = (resolved.digest, resolved.document.err());
            let invalid = invalid.map(|reason| format!(", which {reason}")).unwrap_or_default();
            return Err(unusable(format!(
                "has the manifest `sha256:{digest}`, but the registry sends one with the digest `sha256:{other}`{invalid}"
            )));
        }
        Ok(resolved.document)
    }

    /// The manifests that refer to a manifest: signatures, for example. A list of the registry's own, or else of the tag
    /// that clients maintain for registries without one. A part of a long list.
    pub(crate) fn referrers(&self, name: &OciName, digest: &Sha256) -> Result<Referrers, RegistryError> {
        match self.list_of_referrers(name, "referrers", &format!("sha256:{digest}")) {
            // Registries without the list say so in many ways.
            Err(
                RegistryError::NotFound(_)
                | RegistryError::Unusable(_)
                // GHCR redirects to a page.
                | RegistryError::Upstream(
                    UpstreamError::Redirected { .. }
                    | UpstreamError::HttpStatus { status: 501, .. }
                    | UpstreamError::HttpStatus { server: Server::Other(_), .. },
                ),
            ) => match self.list_of_referrers(name, "manifests", &format!("sha256-{digest}")) {
                Err(RegistryError::NotFound(_)) => Ok(Referrers::default()),
                other => other,
            },
            other => other,
        }
    }

    fn list_of_referrers(&self, name: &OciName, kind: &'static str, last: &str) -> Result<Referrers, RegistryError> {
        let (mut page, mut list) = (self.url_of(name, &[kind, last]), Referrers::default());
        for number in 0..MAX_REFERRER_PAGES {
            match self.page_of_referrers(name, kind, &page) {
                Ok((found, next)) => {
                    list.found.extend(found);
                    match next {
                        Some(next) => page = next,
                        None => break,
                    }
                }
                Err(error) if number > 0 => {
                    list.failed = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(list)
    }

    fn page_of_referrers(
        &self,
        name: &OciName,
        kind: &'static str,
        page: &Url,
    ) -> Result<(Vec<Descriptor>, Option<Url>), RegistryError> {
        let response = self.get(name, kind, page.clone(), "application/vnd.oci.image.index.v1+json")?;
        // A part of the list may have what is looked for.
        let next = link::next_page(page, response.headers()).unwrap_or(None);
        match manifest::parse(&self.read(response, MAX_MANIFEST_BYTES)?.0) {
            Ok(Document::Index(index)) => Ok((index.manifests, next)),
            Ok(Document::Manifest(_)) => Err(unusable("has a list of referrers that is no index".to_owned())),
            Err(reason) => Err(unusable(format!("has a list of referrers that cannot be used: {reason}"))),
        }
    }

    /// A blob, as a response whose body is not read yet. Redirects lead to storage, which receives no credentials.
    pub(crate) fn blob(&self, name: &OciName, digest: &Sha256) -> Result<Response, RegistryError> {
        let first = self.url_of(name, &["blobs", &format!("sha256:{digest}")]);
        let send = |url: &Url| -> Result<Response, RegistryError> {
            match *url == first {
                true => Ok(self.authorized((name, "blobs"), &Method::GET, url, &HeaderMap::new())?.0),
                false => Ok(self.client.send_as(&Method::GET, url, HeaderMap::new(), None)?),
            }
        };
        let next = |from: &Url, response: &Response| self.client.storage_redirect(from, response);
        let (_, response) = follow_redirects(first.clone(), send, next)?;
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.failure(name, response)) }
    }

    /// A small blob in memory. Its bytes have this digest.
    pub(crate) fn small_blob(&self, name: &OciName, digest: &Sha256, max_bytes: u64) -> Result<Vec<u8>, RegistryError> {
        let (bytes, sha256) = self.read(self.blob(name, digest)?, max_bytes)?;
        if sha256 == *digest {
            return Ok(bytes);
        }
        Err(unusable(format!(
            "has the blob `sha256:{digest}`, but the registry sends one with the digest `sha256:{sha256}`"
        )))
    }

    /// A response with the status 200.
    pub(super) fn get(
        &self,
        name: &OciName,
        kind: &'static str,
        url: Url,
        accept: &'static str,
    ) -> Result<Response, RegistryError> {
        let (response, _) = self.send(name, kind, &Method::GET, url, accept)?;
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.failure(name, response)) }
    }

    pub(super) fn read(&self, response: Response, max_bytes: u64) -> Result<(Vec<u8>, Sha256), RegistryError> {
        let mut bytes = Vec::new();
        let digest = Body::new(self.client, response, max_bytes).write_to(&mut bytes);
        Ok((bytes, digest.map_err(|error| of_body(error, max_bytes))?))
    }

    /// Sends a request, and follows redirects as configured. Only the registry itself receives credentials. A HEAD that is
    /// refused, or says nothing, becomes a GET. Returns which of them was answered.
    fn send(
        &self,
        name: &OciName,
        kind: &'static str,
        method: &Method,
        url: Url,
        accept: &'static str,
    ) -> Result<(Response, Method), RegistryError> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let method = RefCell::new(method.clone());
        let send = |url: &Url| -> Result<Response, RegistryError> {
            let sent = method.borrow().clone();
            let (response, authorization) = match same_origin(url, &self.url) {
                true => self.authorized((name, kind), &sent, url, &headers)?,
                false => (self.client.send_as(&sent, url, headers.clone(), None)?, None),
            };
            if sent != Method::HEAD || !needs_body(&response) {
                return Ok(response);
            }
            method.replace(Method::GET);
            Ok(self.send_with(&Method::GET, url, &headers, authorization.as_ref())?)
        };
        let (_, response) = follow_redirects(url, send, |from, response| self.client.redirected(from, response))?;
        Ok((response, method.into_inner()))
    }

    /// The error for a status.
    fn failure(&self, name: &OciName, response: Response) -> RegistryError {
        let (url, not_authorized) = (response.url().clone(), self.not_authorized(&response));
        let host = url.host_str().unwrap_or_default();
        match self.client.response_error(response) {
            // It is the storage of the registry.
            UpstreamError::HttpStatus { status: status @ 400..=499, retry_after: None, report, .. }
                if !same_host(&self.url, &url) && ![407, 408, 429].contains(&status) =>
            {
                unusable(format!(
                    "is stored at the host `{host}`, which answered {status} and receives no credentials{report}"
                ))
            }
            UpstreamError::HttpStatus { status: status @ (401 | 403), retry_after: None, report, .. } => {
                match not_authorized {
                    Some(reason) => UpstreamError::Authenticate(format!("{reason}{report}")).into(),
                    None => RegistryError::Denied { name: name.clone(), status, report },
                }
            }
            UpstreamError::HttpStatus { status: 404 | 410, report, .. } => RegistryError::NotFound(report),
            // Some registries refuse single images so: for a vulnerability, for a missing signature, by the law.
            UpstreamError::HttpStatus { status: status @ 400..=499, retry_after: None, report, .. }
                if ![407, 408, 429].contains(&status) =>
            {
                unusable(format!("is refused by the registry: it answered {status}{report}"))
            }
            other => RegistryError::Upstream(other),
        }
    }

    /// `<registry>/v2/<name>/<path>`.
    pub(super) fn url_of(&self, name: &OciName, path: &[&str]) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("/v2/{name}"));
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        url
    }
}

/// The digest that a registry names.
fn digest_of(response: &Response) -> Option<Sha256> {
    response.headers().get(DOCKER_CONTENT_DIGEST)?.to_str().ok().and_then(parse_digest)
}

/// Whether the answer to a HEAD says too little: there is no HEAD, no digest, or no reason.
fn needs_body(response: &Response) -> bool {
    match response.status().as_u16() {
        200 => digest_of(response).is_none(),
        407 | 408 | 429 => false,
        400..=499 | 501 => !response.headers().contains_key(RETRY_AFTER),
        _ => false,
    }
}

fn unusable(reason: String) -> RegistryError {
    RegistryError::Unusable(reason)
}
