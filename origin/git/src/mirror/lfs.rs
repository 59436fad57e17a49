//! Fetches LFS objects that the upstream's batch API locates.
//!
//! The API's URL follows from the upstream's (`<url>.git/info/lfs`). A `.lfsconfig` in the repository is ignored: it
//! would let anyone with push permission send the origin and its credentials to any host.

mod error;

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use reqwest::{Response, StatusCode, Url};
use weir_upstream::http::{Client, MinRate, UpstreamSession};
use weir_upstream::{Endpoint, NotAllowed, Upstream, UpstreamError};

pub use self::error::LfsError;
use super::http::USER_AGENT;
use crate::lfs::batch::{self, ByOid, Download, OBJECTS_PER_REQUEST};
use crate::lfs::{LfsFile, LfsObjects, LfsOid, Pointer};

/// The interval at which a wait for the request budget checks for an interrupt.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The consecutive failed downloads after which the storage counts as down.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;

/// A fetch of LFS objects.
pub struct LfsFetch<'a> {
    /// The upstream.
    pub upstream: &'a Upstream,
    /// Where objects are stored.
    pub objects: &'a LfsObjects,
    /// Called before each request. Returns the time to wait, or `None` if the request may be sent, which is then
    /// counted.
    pub budget: &'a dyn Fn() -> Option<Duration>,
    /// Called before and during a download: whether the object is still needed.
    pub is_needed: &'a dyn Fn(&LfsOid) -> bool,
    /// Called with the result of each object.
    pub on_result: &'a dyn Fn(&LfsFile, Result<(), &LfsError>),
    /// Set to end the fetch soon.
    pub interrupt: &'a AtomicBool,
}

impl LfsFetch<'_> {
    /// Fetches objects one after the other, except stored and unneeded ones. An object is verified and synced before
    /// `on_result` is called. The error of one object does not stop the others. Blocks.
    ///
    /// # Errors
    /// An error that concerns all objects. If it occurred with one object, `on_result` was called with it too.
    pub fn run(&self, files: &[LfsFile]) -> Result<(), LfsError> {
        let (upstream, objects) = (self.upstream, self.objects);
        let (limit, mut missing) = (upstream.limits.max_lfs_object.as_u64(), Vec::new());
        for file in files.iter().filter(|file| !objects.contains(&file.pointer)) {
            if file.pointer.size > limit {
                let error = LfsError::TooLarge { path: file.path.clone(), size: file.pointer.size, limit };
                (self.on_result)(file, Err(&error));
            } else {
                missing.push(file);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let batch_url =
            batch_url(&upstream.config.url).ok_or_else(|| LfsError::NoApi { url: upstream.config.url.to_string() })?;
        let session = UpstreamSession::new(upstream, "lfs", self.interrupt).map_err(LfsError::Api)?;
        let client = Client::new(&session, USER_AGENT).map_err(LfsError::Api)?;
        let run = Run { fetch: self, client, batch_url, consecutive_failures: Cell::new(0) };
        missing.chunks(OBJECTS_PER_REQUEST).try_for_each(|some| run.fetch_batch(some))
    }
}

struct Run<'a> {
    fetch: &'a LfsFetch<'a>,
    client: Client<'a>,
    /// The URL of the batch API.
    batch_url: Url,
    /// Failed downloads since the last successful one.
    consecutive_failures: Cell<u32>,
}

/// A response of the batch API, and the URL that sent it.
struct BatchResult {
    url: Url,
    objects: ByOid<Result<Download, batch::ObjectError>>,
}

impl Run<'_> {
    /// Fetches the objects of one batch request. If the returned URLs expire, the rest is requested again.
    fn fetch_batch(&self, files: &[&LfsFile]) -> Result<(), LfsError> {
        let mut files: Vec<_> = files.iter().filter(|file| self.is_needed(file)).collect();
        while !files.is_empty() {
            let batch = self.request_batch(&files)?;
            let sent = Instant::now();
            let (mut done, mut downloaded) = (0, 0);
            for file in &files {
                // The first URL of a batch counts as valid, so that each request makes progress or is the last.
                let is_first = downloaded == 0;
                let result = match batch.objects.get(&file.pointer.oid) {
                    Some(Ok(download)) if !is_first && download.has_expired(sent.elapsed(), SystemTime::now()) => break,
                    Some(Ok(download)) => self.download(file, &batch.url, download),
                    Some(Err(error)) => Err(refused(file, format!("{} (code {})", error.message, error.code))),
                    None => Err(refused(file, "its response does not contain the object".to_owned())),
                };
                if !is_first && matches!(result, Err(LfsError::Withheld { .. })) {
                    break;
                }
                downloaded += usize::from(matches!(result, Ok(true)));
                self.report(file, result)?;
                done += 1;
            }
            files.drain(..done);
        }
        Ok(())
    }

    /// Reports an object's result. Returns an error if it concerns all objects.
    fn report(&self, file: &LfsFile, result: Result<bool, LfsError>) -> Result<(), LfsError> {
        match result {
            Ok(stored) => {
                if stored {
                    self.consecutive_failures.set(0);
                    (self.fetch.on_result)(file, Ok(()));
                }
                Ok(())
            }
            Err(error) => {
                (self.fetch.on_result)(file, Err(&error));
                let is_storage_error = matches!(error, LfsError::Download { .. } | LfsError::TooSlow { .. });
                let consecutive_failures = if is_storage_error { self.consecutive_failures.get() + 1 } else { 0 };
                self.consecutive_failures.set(consecutive_failures);
                if error.is_fatal() || consecutive_failures >= MAX_CONSECUTIVE_FAILURES { Err(error) } else { Ok(()) }
            }
        }
    }

    /// Requests the locations of objects.
    fn request_batch(&self, files: &[&&LfsFile]) -> Result<BatchResult, LfsError> {
        self.wait_for_rate_limit().map_err(LfsError::Api)?;
        let pointers: Vec<Pointer> = files.iter().map(|file| file.pointer).collect();
        let response =
            self.client.query(&self.batch_url, batch::MEDIA_TYPE, batch::request(&pointers), batch::MAX_RESPONSE_BYTES);
        let (url, response) = response.map_err(|error| match error {
            UpstreamError::NotFound { cause, .. } => LfsError::NotFound(cause),
            other => LfsError::Api(other),
        })?;
        Ok(BatchResult { url, objects: batch::parse(&response)? })
    }

    /// Returns whether the object is stored now; false if it is no longer needed.
    fn download(&self, file: &LfsFile, base: &Url, download: &Download) -> Result<bool, LfsError> {
        if !self.is_needed(file) {
            return Ok(false);
        }
        let path = || file.path.clone();
        let failed = |cause| match cause {
            UpstreamError::NotAllowed(NotAllowed::Address(host)) => LfsError::NotPublic { path: path(), host },
            cause => LfsError::Download { path: path(), cause },
        };
        let invalid = |cause| LfsError::Object { path: path(), cause };
        let mut writer = self.fetch.objects.create(&file.pointer).map_err(|error| invalid(error.into()))?;
        if file.pointer.size == 0 {
            return writer.commit().map(|()| true).map_err(invalid);
        }
        self.wait_for_rate_limit().map_err(failed)?;
        let response = self.client.download(base, &download.href, &download.header).map_err(failed)?;
        let mut response = self.accept(response).map_err(|error| match error {
            UpstreamError::HttpStatus { status: status @ 400..=499, retry_after: None, .. } if status != 429 => {
                LfsError::Withheld { path: path(), status }
            }
            other => failed(other),
        })?;
        let Upstream { config, limits, .. } = self.fetch.upstream;
        let min_rate = limits.min_rate.as_u64();
        let mut min = MinRate::new(min_rate, config.stall_timeout, Instant::now());
        loop {
            let bytes = self.client.next_chunk(&mut response).map_err(failed)?;
            if bytes.is_empty() {
                return writer.commit().map(|()| true).map_err(invalid);
            }
            writer.write(&bytes).map_err(invalid)?;
            min.received(bytes.len(), Instant::now()).map_err(|slow| LfsError::TooSlow {
                path: path(),
                bytes: slow.bytes,
                within: slow.within,
                min_rate,
            })?;
            if !self.is_needed(file) {
                return Ok(false);
            }
        }
    }

    fn is_needed(&self, file: &LfsFile) -> bool {
        (self.fetch.is_needed)(&file.pointer.oid)
    }

    fn accept(&self, response: Response) -> Result<Response, UpstreamError> {
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.client.response_error(response)) }
    }

    /// Waits until the budget allows another request.
    fn wait_for_rate_limit(&self) -> Result<(), UpstreamError> {
        while let Some(wait) = (self.fetch.budget)() {
            // The timer needs the session's runtime.
            self.client.session().wait(async { tokio::time::sleep(wait.min(INTERRUPT_POLL_INTERVAL)).await })?;
        }
        Ok(())
    }
}

fn refused(file: &LfsFile, reason: String) -> LfsError {
    LfsError::Refused { path: file.path.clone(), reason }
}

/// The URL of an upstream's batch API, as Git LFS derives it.
fn batch_url(upstream: &Endpoint) -> Option<Url> {
    let mut url = upstream.http().ok()?.clone();
    let base = url.path().trim_end_matches('/');
    let path = format!("{}.git/info/lfs/objects/batch", base.strip_suffix(".git").unwrap_or(base));
    url.set_path(&path);
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_url_is_that_of_git_lfs() {
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
