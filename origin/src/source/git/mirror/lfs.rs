//! Fetching LFS objects: from where the upstream's batch API says that they are, into the folder beside the mirror.
//!
//! The API's address follows from the upstream's URL (`<url>.git/info/lfs`). A `.lfsconfig` in the repository is not read:
//! whoever may push could send the origin and its credentials anywhere.

mod error;
mod min_rate;

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use reqwest::{Response, StatusCode, Url};

pub use self::error::LfsError;
use self::min_rate::MinRate;
use super::MirrorError;
use super::http::Client;
use super::upstream_session::UpstreamSession;
use crate::source::git::lfs::batch::{self, ByOid, Download, OBJECTS_PER_REQUEST};
use crate::source::git::lfs::{LfsFile, LfsObjects, LfsOid, Pointer};
use crate::source::{Endpoint, NotAllowed, Upstream};

/// Who waits for the budget of a host looks so often whether somebody wants him to stop.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// When so many downloads in a row come to nothing the storage is not asked for more.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;

/// How objects are fetched.
pub struct LfsFetch<'a> {
    /// Where from.
    pub upstream: &'a Upstream,
    /// Where to.
    pub objects: &'a LfsObjects,
    /// Asked before each request: how long it has to wait. `None`: it may go, and is counted.
    pub budget: &'a dyn Fn() -> Option<Duration>,
    /// Asked before an object is fetched, and with each part of it that comes: whether anybody wants it still.
    pub wanted: &'a dyn Fn(&LfsOid) -> bool,
    /// Told of each object that is here, and of each that cannot be had.
    pub ended: &'a dyn Fn(&LfsFile, Result<(), &LfsError>),
    /// Set it to end everything soon.
    pub interrupt: &'a AtomicBool,
}

impl LfsFetch<'_> {
    /// Fetches objects, one after the other; those that are here already, and those that nobody wants any more, are passed
    /// over. Each is verified and on the disk when its end is told. What is wrong with one of them is told, and the others
    /// are fetched all the same. Blocks for as long as it takes; a
    /// request to stop ends it.
    ///
    /// # Errors
    /// What keeps the rest from being had too. When that was found with an object, it was told of that one.
    pub fn run(&self, files: &[LfsFile]) -> Result<(), LfsError> {
        let (upstream, objects) = (self.upstream, self.objects);
        let (limit, mut missing) = (upstream.max_lfs_object, Vec::new());
        for file in files.iter().filter(|file| !objects.contains(&file.pointer)) {
            if file.pointer.size > limit {
                let error = LfsError::TooLarge { path: file.path.clone(), size: file.pointer.size, limit };
                (self.ended)(file, Err(&error));
            } else {
                missing.push(file);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let api = batch_url(&upstream.url).ok_or_else(|| LfsError::NoApi { url: upstream.url.to_string() })?;
        let session = UpstreamSession::new(upstream, self.interrupt).map_err(LfsError::Api)?;
        session.begin_lfs();
        let client = Client::new(&session).map_err(LfsError::Api)?;
        let run = Run { fetch: self, client, api, consecutive_failures: Cell::new(0) };
        missing.chunks(OBJECTS_PER_REQUEST).try_for_each(|some| run.fetch_batch(some))
    }
}

struct Run<'a> {
    fetch: &'a LfsFetch<'a>,
    client: Client<'a>,
    /// Where to ask for objects.
    api: Url,
    /// Downloads that came to nothing since one that did not.
    consecutive_failures: Cell<u32>,
}

/// Where an answer says that objects are, or why not; and where the answer came from.
struct BatchResult {
    url: Url,
    objects: ByOid<Result<Download, batch::ObjectError>>,
}

impl Run<'_> {
    /// Fetches what fits into one question. What was answered may end before all of it is used: then it is asked again.
    fn fetch_batch(&self, files: &[&LfsFile]) -> Result<(), LfsError> {
        let mut files: Vec<_> = files.iter().filter(|file| self.is_wanted(file)).collect();
        while !files.is_empty() {
            let batch = self.request_batch(&files)?;
            let asked = Instant::now();
            let (mut done, mut brought) = (0, 0);
            for file in &files {
                // Until one came the addresses are taken to be good, so that each question brings something or is the last.
                let fresh = brought == 0;
                let ended = match batch.objects.get(&file.pointer.oid) {
                    Some(Ok(download)) if !fresh && download.has_expired(asked.elapsed(), SystemTime::now()) => break,
                    Some(Ok(download)) => self.download(file, &batch.url, download),
                    Some(Err(error)) => Err(refused(file, format!("{} (code {})", error.message, error.code))),
                    None => Err(refused(file, "its answer says nothing of the object".to_owned())),
                };
                if !fresh && matches!(ended, Err(LfsError::Withheld { .. })) {
                    break;
                }
                brought += usize::from(matches!(ended, Ok(true)));
                self.report(file, ended)?;
                done += 1;
            }
            files.drain(..done);
        }
        Ok(())
    }

    /// Tells how it went with an object; the error is what keeps the rest from being had too.
    fn report(&self, file: &LfsFile, ended: Result<bool, LfsError>) -> Result<(), LfsError> {
        match ended {
            Ok(here) => {
                if here {
                    self.consecutive_failures.set(0);
                    (self.fetch.ended)(file, Ok(()));
                }
                Ok(())
            }
            Err(error) => {
                (self.fetch.ended)(file, Err(&error));
                let is_storage_error = matches!(error, LfsError::Download { .. } | LfsError::TooSlow { .. });
                let consecutive_failures = if is_storage_error { self.consecutive_failures.get() + 1 } else { 0 };
                self.consecutive_failures.set(consecutive_failures);
                if error.is_fatal() || consecutive_failures >= MAX_CONSECUTIVE_FAILURES { Err(error) } else { Ok(()) }
            }
        }
    }

    /// Asks where objects are.
    fn request_batch(&self, files: &[&&LfsFile]) -> Result<BatchResult, LfsError> {
        self.wait_for_rate_limit().map_err(LfsError::Api)?;
        let pointers: Vec<Pointer> = files.iter().map(|file| file.pointer).collect();
        let answer =
            self.client.query(&self.api, batch::MEDIA_TYPE, batch::request(&pointers), batch::MAX_RESPONSE_BYTES);
        let (from, answer) = answer.map_err(|error| match error {
            MirrorError::NotFound(said) => LfsError::NotFound(said),
            other => LfsError::Api(other),
        })?;
        Ok(BatchResult { url: from, objects: batch::parse(&answer)? })
    }

    /// Whether the object is here then; or nobody wants it any more.
    fn download(&self, file: &LfsFile, from: &Url, download: &Download) -> Result<bool, LfsError> {
        if !self.is_wanted(file) {
            return Ok(false);
        }
        let path = || file.path.clone();
        let failed = |cause| match cause {
            MirrorError::NotAllowed(NotAllowed::Address(host)) => LfsError::NotPublic { path: path(), host },
            cause => LfsError::Download { path: path(), cause },
        };
        let wrong = |cause| LfsError::Object { path: path(), cause };
        let mut writer = self.fetch.objects.create(&file.pointer).map_err(|error| wrong(error.into()))?;
        if file.pointer.size == 0 {
            return writer.commit().map(|()| true).map_err(wrong);
        }
        self.wait_for_rate_limit().map_err(failed)?;
        let answer = self.client.download(from, &download.href, &download.header).map_err(failed)?;
        let mut answer = self.accept(answer).map_err(|error| match error {
            MirrorError::HttpStatus { status: status @ 400..=499, retry_after: None, .. } if status != 429 => {
                LfsError::Withheld { path: path(), status }
            }
            other => failed(other),
        })?;
        let Upstream { min_rate, stall_timeout, .. } = *self.fetch.upstream;
        let mut rate = MinRate::new(min_rate, stall_timeout, Instant::now());
        loop {
            let bytes = self.client.next_chunk(&mut answer).map_err(failed)?;
            if bytes.is_empty() {
                return writer.commit().map(|()| true).map_err(wrong);
            }
            writer.write(&bytes).map_err(wrong)?;
            rate.received(bytes.len(), Instant::now()).map_err(|slow| LfsError::TooSlow {
                path: path(),
                bytes: slow.bytes,
                within: slow.within,
                min_rate,
            })?;
            if !self.is_wanted(file) {
                return Ok(false);
            }
        }
    }

    fn is_wanted(&self, file: &LfsFile) -> bool {
        (self.fetch.wanted)(&file.pointer.oid)
    }

    fn accept(&self, answer: Response) -> Result<Response, MirrorError> {
        if answer.status() == StatusCode::OK { Ok(answer) } else { Err(self.client.response_error(&answer)) }
    }

    /// Waits until another request may be sent to the host.
    fn wait_for_rate_limit(&self) -> Result<(), MirrorError> {
        while let Some(wait) = (self.fetch.budget)() {
            // The clock belongs to the runtime that the session waits on.
            self.client.session().wait(async { tokio::time::sleep(wait.min(INTERRUPT_POLL_INTERVAL)).await })?;
        }
        Ok(())
    }
}

fn refused(file: &LfsFile, reason: String) -> LfsError {
    LfsError::Refused { path: file.path.clone(), reason }
}

/// Where an upstream's API is asked for objects, as Git LFS finds it.
fn batch_url(upstream: &Endpoint) -> Option<Url> {
    let mut api = upstream.http().ok()?.clone();
    let base = api.path().trim_end_matches('/');
    let path = format!("{}.git/info/lfs/objects/batch", base.strip_suffix(".git").unwrap_or(base));
    api.set_path(&path);
    Some(api)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_where_git_lfs_looks_for_it() {
        for (upstream, expected) in [
            ("https://git.example/acme/shop.git", Some("https://git.example/acme/shop.git/info/lfs/objects/batch")),
            ("https://git.example/acme/shop", Some("https://git.example/acme/shop.git/info/lfs/objects/batch")),
            ("https://git.example/acme/shop/", Some("https://git.example/acme/shop.git/info/lfs/objects/batch")),
            ("http://git.example:3000/shop", Some("http://git.example:3000/shop.git/info/lfs/objects/batch")),
            ("git://git.example/shop", None),
            ("git@git.example:shop.git", None),
            ("/srv/git/shop.git", None),
        ] {
            assert_eq!(batch_url(&upstream.into()).as_ref().map(Url::as_str), expected, "{upstream}");
        }
    }
}
