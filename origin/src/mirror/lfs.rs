//! Fetching LFS objects: from where the upstream's batch API says that they are, into the folder beside the mirror.
//!
//! The API's address follows from the upstream's URL (`<url>.git/info/lfs`). A `.lfsconfig` in the repository is not read:
//! whoever may push could send the origin and its credentials anywhere.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use reqwest::{Response, StatusCode};

use super::attempt::Attempt;
use super::http::Client;
use super::{MirrorError, NotAllowed, Upstream};
use crate::lfs::batch::{self, AnswerError, Download, Found, OBJECTS_PER_REQUEST};
use crate::lfs::{LfsFile, LfsObjects, Pointer, ReceiveError};

/// Who waits for the budget of a host looks so often whether somebody wants him to stop.
const GLANCE: Duration = Duration::from_millis(200);

/// Why LFS objects could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LfsError {
    /// There is no API to be asked at such a URL.
    #[error(
        "the LFS objects cannot be asked for at `{url}`: that is done over https:// (and http://) only. Over SSH it would \
         take `git-lfs-authenticate`, which is not supported: use the repository's https:// URL, or `lfs = false`"
    )]
    NoApi {
        /// Without user info.
        url: String,
    },
    /// An object is larger than is taken.
    #[error("the LFS object of `{path}` has {size} bytes, more than `[upstreams] max_lfs_object` = {limit} allows")]
    TooLarge {
        /// Below the folder.
        path: String,
        /// By its pointer.
        size: u64,
        /// [`Upstream::max_lfs_object`].
        limit: u64,
    },
    /// The upstream's API cannot be asked.
    #[error("the LFS objects cannot be asked for: {0}")]
    Api(MirrorError),
    /// There is no API where it should be.
    #[error("the upstream has no LFS API for this repository, or shows it to others only: {0}")]
    NotFound(String),
    /// What it answers cannot be used.
    #[error("the LFS objects cannot be asked for: {0}")]
    Answer(#[from] AnswerError),
    /// It does not give an object.
    #[error("the upstream does not give the LFS object of `{path}`: {reason}{more}", more = and_more(*.more))]
    Refused {
        /// Below the folder.
        path: String,
        /// In its own words.
        reason: String,
        /// How many objects besides, of those that were asked for together.
        more: usize,
    },
    /// It is not where the API says that it is.
    #[error(
        "the LFS object of `{path}` is not where the upstream's API says that it is: the answer there was {status}"
    )]
    Withheld {
        /// Below the folder.
        path: String,
        /// What was answered there.
        status: u16,
    },
    /// It is said to be where no storage is asked.
    #[error(
        "the LFS object of `{path}` is said to be at `{host}`, which has no public address: name that host in `redirects` \
         of the repository (in the configuration file), or in `[upstreams] hosts`"
    )]
    NotPublic {
        /// Below the folder.
        path: String,
        /// Where.
        host: String,
    },
    /// An object cannot be downloaded.
    #[error("the LFS object of `{path}` cannot be fetched: {cause}")]
    Download {
        /// Below the folder.
        path: String,
        /// What went wrong.
        cause: MirrorError,
    },
    /// What came is not the object, or cannot be stored.
    #[error("the LFS object of `{path}` is not kept: {cause}")]
    Object {
        /// Below the folder.
        path: String,
        /// What is wrong with it.
        cause: ReceiveError,
    },
    /// What was left of earlier ones cannot be cleared.
    #[error("the LFS objects cannot be stored: {0}")]
    Store(std::io::Error),
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

impl LfsError {
    /// How long the upstream, or a storage, asks to be left alone, a day at the most.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(cause) | Self::Download { cause, .. } => cause.retry_after(),
            _ => None,
        }
    }
}

/// How objects are fetched.
pub struct LfsFetch<'a> {
    /// Where from.
    pub upstream: &'a Upstream,
    /// Where to.
    pub objects: &'a LfsObjects,
    /// Asked before each request: how long it has to wait. `None`: it may go, and is counted.
    pub budget: &'a dyn Fn() -> Option<Duration>,
    /// Told of each object that is here.
    pub fetched: &'a dyn Fn(&Pointer),
    /// Set it to end everything soon.
    pub interrupt: &'a AtomicBool,
}

impl LfsFetch<'_> {
    /// Fetches objects, one after the other; those that are here already are passed over. Each is verified and on the disk
    /// when this returns. Nobody else may fetch to the same place meanwhile. Blocks for as long as it takes; a stall, and a
    /// request to stop, end it.
    ///
    /// # Errors
    /// The first object that cannot be had; those before it stay.
    pub fn run(&self, wanted: &[LfsFile]) -> Result<(), LfsError> {
        let (upstream, objects) = (self.upstream, self.objects);
        let missing: Vec<&LfsFile> = wanted.iter().filter(|file| !objects.holds(&file.pointer)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let limit = upstream.max_lfs_object;
        if let Some(LfsFile { path, pointer }) = missing.iter().find(|file| file.pointer.size > limit) {
            return Err(LfsError::TooLarge { path: path.clone(), size: pointer.size, limit });
        }
        let api = api_url(&upstream.url).ok_or_else(|| LfsError::NoApi { url: upstream.redacted_url() })?;
        objects.remove_leftovers().map_err(LfsError::Store)?;
        let attempt = Attempt::new(upstream, self.interrupt).map_err(LfsError::Api)?;
        attempt.lfs_begins();
        let client = Client::new(&attempt).map_err(LfsError::Api)?;
        let run = Run { fetch: self, client, api };
        missing.chunks(OBJECTS_PER_REQUEST).try_for_each(|some| run.fetch_some(some))
    }
}

struct Run<'a> {
    fetch: &'a LfsFetch<'a>,
    client: Client<'a>,
    api: String,
}

impl Run<'_> {
    /// Fetches what fits into one question. What was answered may end before all of it is used: then it is asked again.
    fn fetch_some(&self, mut files: &[&LfsFile]) -> Result<(), LfsError> {
        while !files.is_empty() {
            let found = self.ask(files)?;
            let asked = Instant::now();
            let mut fetched = 0;
            for file in files {
                // The first is tried in any case, so that each question brings something.
                let fresh = fetched == 0;
                let download = &found[&file.pointer.oid];
                if !fresh && download.has_ended(asked.elapsed(), SystemTime::now()) {
                    break;
                }
                match self.download(file, download) {
                    Err(LfsError::Withheld { .. }) if !fresh => break,
                    result => result?,
                }
                fetched += 1;
                (self.fetch.fetched)(&file.pointer);
            }
            files = &files[fetched..];
        }
        Ok(())
    }

    /// Where the upstream says that objects are: all of them.
    fn ask(&self, files: &[&LfsFile]) -> Result<Found<Download>, LfsError> {
        self.wait_for_budget().map_err(LfsError::Api)?;
        let pointers: Vec<Pointer> = files.iter().map(|file| file.pointer).collect();
        let url = format!("{}/objects/batch", self.api);
        let answer = self.client.ask(&url, batch::MEDIA_TYPE, batch::request(&pointers), batch::MAX_ANSWER_BYTES);
        let answer = answer.map_err(|error| match error {
            MirrorError::NotFound(said) => LfsError::NotFound(said),
            other => LfsError::Api(other),
        })?;
        let mut said = batch::parse(&answer)?;
        let mut found = Found::new();
        let mut refused: Option<(&LfsFile, String)> = None;
        let mut refusals = 0;
        for file in files {
            if found.contains_key(&file.pointer.oid) {
                continue;
            }
            let reason = match said.remove(&file.pointer.oid) {
                Some(Ok(download)) => {
                    found.insert(file.pointer.oid, download);
                    continue;
                }
                Some(Err(error)) => format!("{} (code {})", error.message, error.code),
                None => "its answer says nothing of the object".to_owned(),
            };
            refusals += 1;
            refused.get_or_insert((file, reason));
        }
        match refused {
            None => Ok(found),
            Some((file, reason)) => Err(LfsError::Refused { path: file.path.clone(), reason, more: refusals - 1 }),
        }
    }

    fn download(&self, file: &LfsFile, download: &Download) -> Result<(), LfsError> {
        let path = || file.path.clone();
        let failed = |cause| match cause {
            MirrorError::NotAllowed(NotAllowed::Address(host)) => LfsError::NotPublic { path: path(), host },
            cause => LfsError::Download { path: path(), cause },
        };
        let wrong = |cause| LfsError::Object { path: path(), cause };
        let mut receiving = self.fetch.objects.receive(&file.pointer).map_err(|error| wrong(error.into()))?;
        if file.pointer.size == 0 {
            return receiving.finish().map_err(wrong);
        }
        self.wait_for_budget().map_err(failed)?;
        let answer = self.client.download(&self.api, &download.href, &download.header).map_err(failed)?;
        let mut answer = self.accept(answer).map_err(|error| match error {
            MirrorError::Answered { status: status @ 400..=499, retry_after: None, .. } if status != 429 => {
                LfsError::Withheld { path: path(), status }
            }
            other => failed(other),
        })?;
        loop {
            let bytes = self.client.more(&mut answer).map_err(failed)?;
            if bytes.is_empty() {
                return receiving.finish().map_err(wrong);
            }
            receiving.write(&bytes).map_err(wrong)?;
        }
    }

    fn accept(&self, answer: Response) -> Result<Response, MirrorError> {
        if answer.status() == StatusCode::OK { Ok(answer) } else { Err(self.client.answered(&answer)) }
    }

    /// Waits until another request may be sent to the host.
    fn wait_for_budget(&self) -> Result<(), MirrorError> {
        while let Some(wait) = (self.fetch.budget)() {
            // The clock belongs to the runtime that the attempt waits on.
            self.client.attempt().wait(async { tokio::time::sleep(wait.min(GLANCE)).await })?;
        }
        Ok(())
    }
}

/// Where an upstream's API is, as Git LFS finds it.
fn api_url(upstream: &str) -> Option<String> {
    let scheme = upstream.split_once("://")?.0.to_ascii_lowercase();
    if scheme != "https" && scheme != "http" {
        return None;
    }
    let base = upstream.trim_end_matches('/');
    let base = base.strip_suffix(".git").unwrap_or(base);
    Some(format!("{base}.git/info/lfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_where_git_lfs_looks_for_it() {
        for (upstream, expected) in [
            ("https://git.example/acme/shop.git", Some("https://git.example/acme/shop.git/info/lfs")),
            ("https://git.example/acme/shop", Some("https://git.example/acme/shop.git/info/lfs")),
            ("https://git.example/acme/shop/", Some("https://git.example/acme/shop.git/info/lfs")),
            ("http://git.example:3000/shop", Some("http://git.example:3000/shop.git/info/lfs")),
            ("git://git.example/shop", None),
            ("git@git.example:shop.git", None),
            ("/srv/git/shop.git", None),
        ] {
            assert_eq!(api_url(upstream).as_deref(), expected, "{upstream}");
        }
    }
}
