//! The transport over HTTP: gix speaks Git's smart protocol over a client of our own.
//!
//! The HTTP clients of gix do not report `Retry-After` or the reason of a TLS error, follow redirects by their own
//! rules, and read proxies from the environment.

use std::any::Any;
use std::cell::RefCell;
use std::io::{self, BufRead, Cursor, Read, Write};
use std::rc::Rc;
use std::str::FromStr;

use bytes::{Buf, Bytes};
use gix::error::ErrorExt;
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::http::{
    GetResponse, Http, PostBodyDataKind, PostResponse, Transport, connect_http,
};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use weir_upstream::UpstreamError;
use weir_upstream::http::{Client, IDENTITY, display_origin};

use super::MirrorError;
use super::git_session::GitSession;

/// The user agent. Git servers recognize Git clients by the first four characters.
pub(super) const USER_AGENT: &str = concat!("git/2 (weir-origin/", env!("CARGO_PKG_VERSION"), ")");

/// The media type of the first response.
const ADVERTISEMENT_TYPE: &str = "application/x-git-upload-pack-advertisement";

/// The media type of all other responses.
const RESULT_TYPE: &str = "application/x-git-upload-pack-result";

/// The transport to an `https://` or `http://` upstream.
pub(super) fn transport<'a>(session: &'a GitSession<'a>, url: &Url) -> Result<Transport<SmartHttp<'a>>, MirrorError> {
    let client = Rc::new(Client::new(&session.network, USER_AGENT)?);
    let http = SmartHttp { session, client, base: url.clone() };
    // gix uses the path below this URL only.
    let gix_url = gix::Url::from_parts(
        gix::url::Scheme::Https,
        None,
        None,
        url.host_str().map(str::to_owned),
        None,
        "/".into(),
        false,
    );
    let gix_url = gix_url.map_err(|error| MirrorError::protocol("list refs", &error))?;
    Ok(connect_http(http, gix_url, Protocol::V2, false))
}

/// The HTTP client for gix.
pub(super) struct SmartHttp<'a> {
    session: &'a GitSession<'a>,
    client: Rc<Client<'a>>,
    /// The repository's URL: the configured one, or the target of a redirect of the first request.
    base: Url,
}

impl<'a> SmartHttp<'a> {
    fn advertisement(
        &mut self,
        url: &str,
        base_url: &str,
        headers: &HeaderMap,
    ) -> Result<GetResponse<ResponseHeaders<'a>, ResponseBody<'a>>, UpstreamError> {
        let suffix = suffix(url, base_url);
        let requested = below(&self.base, suffix);
        self.session.start_response();
        let (from, response) = self.client.get(requested.clone(), headers)?;
        let response = expect_type(self.session, response, ADVERTISEMENT_TYPE)?;
        if from != requested {
            let base = from.as_str().strip_suffix(suffix).and_then(|base| from.join(base).ok());
            let reason = "the target does not end like a listing of refs";
            self.base = base.ok_or_else(|| UpstreamError::Redirected { to: display_origin(&from), reason })?;
        }
        let exchange = Rc::new(RefCell::new(HttpExchange::Received(response)));
        let body = ResponseBody { session: self.session, client: self.client.clone(), exchange, chunk: Bytes::new() };
        Ok(GetResponse { headers: ResponseHeaders::with_type(ADVERTISEMENT_TYPE), body })
    }
}

impl<'a> Http for SmartHttp<'a> {
    type Headers = ResponseHeaders<'a>;
    type ResponseBody = ResponseBody<'a>;
    type PostBody = RequestBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let response = self.advertisement(url, base_url, &header_map(headers));
        response.map_err(|error| self.session.record(error).raise())
    }

    fn post(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        // gix writes the body next. The request is sent when the response is read.
        let url = below(&self.base, suffix(url, base_url));
        let exchange = HttpExchange::Unsent { url, headers: header_map(headers), body: Vec::new() };
        let exchange = Rc::new(RefCell::new(exchange));
        let (session, client) = (self.session, &self.client);
        let body = || ResponseBody { session, client: client.clone(), exchange: exchange.clone(), chunk: Bytes::new() };
        let headers = ResponseHeaders { pending: Some(body()), text: Cursor::default() };
        Ok(PostResponse { post_body: RequestBody(exchange.clone()), headers, body: body() })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix::Result {
        Ok(())
    }
}

/// Checks the media type of a response.
fn expect_type(session: &GitSession, response: Response, media_type: &str) -> Result<Response, UpstreamError> {
    let plain = |value: &HeaderValue| value.to_str().unwrap_or("?").chars().take(60).collect::<String>();
    let encoding = response.headers().get(CONTENT_ENCODING).map(plain).filter(|name| name != IDENTITY);
    if let Some(encoding) = encoding {
        let cause = format!(
            "it, or a proxy before it, compresses its answers (`Content-Encoding: {encoding}`), although the request \
             asks for `{IDENTITY}`: turn that off for Git"
        );
        return Err(UpstreamError::Protocol { step: session.network.step(), cause });
    }
    let found = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Git's protocol has no parameters of media types.
    let named = found.split_once(';').map_or(found, |(named, _)| named).trim();
    if named.eq_ignore_ascii_case(media_type) {
        return Ok(response);
    }
    let found: String = found.chars().filter(|c| !c.is_control()).take(60).collect();
    let cause = format!(
        "it answered with `{found}`, which is not Git's protocol: the URL may be that of a web page, or a proxy or a \
         log-in page may respond instead"
    );
    Err(UpstreamError::Protocol { step: session.network.step(), cause })
}

/// The part of a request URL below the base URL that gix was given.
fn suffix<'u>(url: &'u str, base_url: &str) -> &'u str {
    url.strip_prefix(base_url).unwrap_or_default().trim_start_matches('/')
}

/// A path with an optional query below a repository.
fn below(base: &Url, suffix: &str) -> Url {
    let (path, query) = suffix.split_once('?').map_or((suffix, None), |(path, query)| (path, Some(query)));
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url.set_query(query);
    url
}

fn header_map(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let parse = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((HeaderName::from_str(name).ok()?, HeaderValue::from_str(value.trim()).ok()?))
    };
    lines.into_iter().filter_map(|line| parse(line.as_ref())).collect()
}

/// A request and its response.
enum HttpExchange {
    Unsent { url: Url, headers: HeaderMap, body: Vec<u8> },
    Received(Response),
    Done,
}

/// The body of a request, to which gix writes.
pub(super) struct RequestBody(Rc<RefCell<HttpExchange>>);

impl Write for RequestBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            HttpExchange::Unsent { body, .. } => {
                body.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            HttpExchange::Received(_) | HttpExchange::Done => Err(io::Error::other("the request was sent already")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The headers of a response for gix: the media type, which was checked before.
pub(super) struct ResponseHeaders<'a> {
    pending: Option<ResponseBody<'a>>,
    text: Cursor<Vec<u8>>,
}

impl ResponseHeaders<'_> {
    fn with_type(kind: &str) -> Self {
        Self { pending: None, text: Cursor::new(format!("content-type: {kind}\n").into_bytes()) }
    }
}

impl BufRead for ResponseHeaders<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some(body) = self.pending.take() {
            body.send()?;
            self.text = ResponseHeaders::with_type(RESULT_TYPE).text;
        }
        self.text.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.text.consume(bytes);
    }
}

impl Read for ResponseHeaders<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

/// The body of a response, while it is received.
pub(super) struct ResponseBody<'a> {
    session: &'a GitSession<'a>,
    client: Rc<Client<'a>>,
    exchange: Rc<RefCell<HttpExchange>>,
    chunk: Bytes,
}

impl ResponseBody<'_> {
    /// Sends the request, unless this was done.
    fn send(&self) -> io::Result<()> {
        let mut exchange = self.exchange.borrow_mut();
        match std::mem::replace(&mut *exchange, HttpExchange::Done) {
            HttpExchange::Unsent { url, headers, body } => {
                self.session.start_response();
                let response = self.client.post(&url, &headers, &body.into());
                let response = response.and_then(|response| expect_type(self.session, response, RESULT_TYPE));
                *exchange = HttpExchange::Received(response.map_err(|error| self.session.record(error))?);
            }
            other => *exchange = other,
        }
        Ok(())
    }
}

impl ResponseBody<'_> {
    fn next_chunk(&self, response: &mut Response) -> Result<Bytes, MirrorError> {
        let chunk = self.client.next_chunk(response)?;
        self.session.received(&chunk)?;
        Ok(chunk)
    }
}

impl BufRead for ResponseBody<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.send()?;
            let mut exchange = self.exchange.borrow_mut();
            if let HttpExchange::Received(response) = &mut *exchange {
                let chunk = self.next_chunk(response);
                if chunk.as_ref().map_or(true, Bytes::is_empty) {
                    *exchange = HttpExchange::Done;
                }
                self.chunk = chunk.map_err(|error| self.session.record(error))?;
            }
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, bytes: usize) {
        self.chunk.advance(bytes.min(self.chunk.len()));
    }
}

impl Read for ResponseBody<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}
