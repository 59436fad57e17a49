//! Fetching over HTTP: Git's smart protocol by gix, over a client of our own.
//!
//! The client of gix loses what people want to know of a refusal (`Retry-After`, why a certificate does not do), follows
//! redirects by rules of its own, and reads proxies from the environment. The trait that it fulfils is small.

mod address;
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
use reqwest::Response;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

pub(crate) use self::address::parse as parse_address;
pub(super) use self::client::Client;
pub use self::redirects::Redirects;
#[cfg(fuzzing)]
pub(crate) use self::redirects::fuzz_redirect;
use super::MirrorError;
use super::attempt::Attempt;

/// What the answer to the first request holds.
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// What every other answer holds.
const RESULT: &str = "application/x-git-upload-pack-result";

/// The transport to an `https://` or `http://` upstream.
pub(super) fn transport<'a>(attempt: &'a Attempt<'a>, url: gix::Url) -> Result<Transport<SmartHttp<'a>>, MirrorError> {
    let http = SmartHttp { client: Rc::new(Client::new(attempt)?), redirected: None };
    Ok(connect_http(http, url, Protocol::V2, false))
}

/// What gix asks of an HTTP client.
pub(super) struct SmartHttp<'a> {
    client: Rc<Client<'a>>,
    /// Where the first request was redirected to, without its last part.
    redirected: Option<String>,
}

impl<'a> SmartHttp<'a> {
    fn advertisement(
        &mut self,
        url: &str,
        base_url: &str,
        headers: &HeaderMap,
    ) -> Result<GetResponse<Head<'a>, Body<'a>>, MirrorError> {
        let (from, answer) = self.client.get(url, headers, ADVERTISEMENT)?;
        let last_part = url.strip_prefix(base_url).unwrap_or_default();
        match from.as_str().strip_suffix(last_part) {
            Some(base) if from.as_str() != url => self.redirected = Some(base.to_owned()),
            Some(_) => {}
            None => {
                let reason = "it is not where a repository's refs are listed";
                return Err(MirrorError::Redirected { to: redirects::place(&from), reason });
            }
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
        _base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _body: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        // What is asked is written later; it is sent when somebody wants the answer.
        let call = Call::Written { url: url.to_owned(), headers: header_map(headers), body: Vec::new() };
        let call = Rc::new(RefCell::new(call));
        let body = || Body { client: self.client.clone(), call: call.clone(), chunk: Bytes::new() };
        let headers = Head { awaits: Some(body()), text: Cursor::default() };
        Ok(PostResponse { post_body: Question(call.clone()), headers, body: body() })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.redirected.clone()
    }
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
    Written { url: String, headers: HeaderMap, body: Vec<u8> },
    Answered(Response),
    Over,
}

/// What is asked, as it is written.
pub(super) struct Question(Rc<RefCell<Call>>);

impl Write for Question {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.borrow_mut() {
            Call::Written { body, .. } => {
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
            Call::Written { url, headers, body } => {
                let answer = self.client.post(&url, &headers, body.into(), RESULT);
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
