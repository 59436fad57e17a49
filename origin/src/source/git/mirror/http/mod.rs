//! Fetching over HTTP: Git's smart protocol by gix, over a client of our own.
//!
//! The client of gix loses what people want to know of a refusal (`Retry-After`, why a certificate does not do), follows
//! redirects by rules of its own, and reads proxies from the environment. The trait that it fulfils is small.

mod client;
mod downloads;
mod redirects;
mod trouble;

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
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};

pub(super) use self::client::Client;
pub use self::redirects::Redirects;
#[cfg(feature = "fuzzing")]
pub(crate) use self::redirects::fuzz_redirect;
use super::MirrorError;
use super::attempt::Attempt;

/// What the answer to the first request holds.
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// What every other answer holds.
const RESULT: &str = "application/x-git-upload-pack-result";

/// The transport to an `https://` or `http://` upstream.
pub(super) fn transport<'a>(attempt: &'a Attempt<'a>, url: &Url) -> Result<Transport<SmartHttp<'a>>, MirrorError> {
    let http = SmartHttp { client: Rc::new(Client::new(attempt)?), base: url.clone() };
    // Of what gix makes of an address only the last part counts.
    let named = gix::Url::from_parts(
        gix::url::Scheme::Https,
        None,
        None,
        url.host_str().map(str::to_owned),
        None,
        "/".into(),
        false,
    );
    let named = named.map_err(|error| MirrorError::exchange("list refs", &error))?;
    Ok(connect_http(http, named, Protocol::V2, false))
}

/// What gix asks of an HTTP client.
pub(super) struct SmartHttp<'a> {
    client: Rc<Client<'a>>,
    /// Where the repository is: as configured, or where the first request was redirected to.
    base: Url,
}

impl<'a> SmartHttp<'a> {
    fn advertisement(
        &mut self,
        url: &str,
        base_url: &str,
        headers: &HeaderMap,
    ) -> Result<GetResponse<Head<'a>, Body<'a>>, MirrorError> {
        let last_part = last_part(url, base_url);
        let asked = below(&self.base, last_part);
        let (from, answer) = self.client.get(asked.clone(), headers, ADVERTISEMENT)?;
        if from != asked {
            let base = from.as_str().strip_suffix(last_part).and_then(|base| from.join(base).ok());
            let reason = "it is not where a repository's refs are listed";
            self.base = base.ok_or_else(|| MirrorError::Redirected { to: redirects::place(&from), reason })?;
        }
        let call = Rc::new(RefCell::new(Call::Answered(answer)));
        let body = Body { client: self.client.clone(), call, chunk: Bytes::new() };
        Ok(GetResponse { headers: Head::of(ADVERTISEMENT), body })
    }
}

impl<'a> Http for SmartHttp<'a> {
    type Headers = Head<'a>;
    type ResponseBody = Body<'a>;
    type PostBody = Question;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let answer = self.advertisement(url, base_url, &header_map(headers));
        answer.map_err(|error| self.client.attempt().fail(error).raise())
    }

    fn post(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        // What is asked is written later; it is sent when somebody wants the answer.
        let url = below(&self.base, last_part(url, base_url));
        let call = Call::Unsent { url, headers: header_map(headers), body: Vec::new() };
        let call = Rc::new(RefCell::new(call));
        let body = || Body { client: self.client.clone(), call: call.clone(), chunk: Bytes::new() };
        let headers = Head { awaits: Some(body()), text: Cursor::default() };
        Ok(PostResponse { post_body: Question(call.clone()), headers, body: body() })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix::Result {
        Ok(())
    }
}

/// What gix asks for below the address that it was given.
fn last_part<'u>(url: &'u str, base_url: &str) -> &'u str {
    url.strip_prefix(base_url).unwrap_or_default().trim_start_matches('/')
}

/// A path, with its query if it has one, below a repository.
fn below(base: &Url, last_part: &str) -> Url {
    let (path, query) = last_part.split_once('?').map_or((last_part, None), |(path, query)| (path, Some(query)));
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

/// A request and its answer.
enum Call {
    Unsent { url: Url, headers: HeaderMap, body: Vec<u8> },
    Answered(Response),
    Over,
}

/// What is asked, as it is written.
pub(super) struct Question(Rc<RefCell<Call>>);

impl Write for Question {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            Call::Unsent { body, .. } => {
                body.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            Call::Answered(_) | Call::Over => Err(io::Error::other("the question was sent already")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The headers of an answer, as far as gix looks at them: its kind, which was checked.
pub(super) struct Head<'a> {
    awaits: Option<Body<'a>>,
    text: Cursor<Vec<u8>>,
}

impl Head<'_> {
    fn of(kind: &str) -> Self {
        Self { awaits: None, text: Cursor::new(format!("content-type: {kind}\n").into_bytes()) }
    }
}

impl BufRead for Head<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some(body) = self.awaits.take() {
            body.ask()?;
            self.text = Head::of(RESULT).text;
        }
        self.text.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.text.consume(bytes);
    }
}

impl Read for Head<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

/// The body of an answer, as it comes.
pub(super) struct Body<'a> {
    client: Rc<Client<'a>>,
    call: Rc<RefCell<Call>>,
    chunk: Bytes,
}

impl Body<'_> {
    /// Sends what was written, if that was not done.
    fn ask(&self) -> io::Result<()> {
        let mut call = self.call.borrow_mut();
        match std::mem::replace(&mut *call, Call::Over) {
            Call::Unsent { url, headers, body } => {
                let answer = self.client.post(&url, &headers, &body.into(), RESULT);
                *call = Call::Answered(answer.map_err(|error| self.client.attempt().fail(error))?);
            }
            other => *call = other,
        }
        Ok(())
    }
}

impl BufRead for Body<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.ask()?;
            let mut call = self.call.borrow_mut();
            if let Call::Answered(answer) = &mut *call {
                let more = self.client.more(answer);
                if more.as_ref().map_or(true, Bytes::is_empty) {
                    *call = Call::Over;
                }
                self.chunk = more.map_err(|error| self.client.attempt().fail(error))?;
            }
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, bytes: usize) {
        self.chunk.advance(bytes.min(self.chunk.len()));
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}
