//! One attempt to fetch the LFS objects that are wanted: in one of the places for that, within the host's budget, as far as
//! there is room.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use weir_shared::name::RepositoryName;

use super::super::build::{Builder, ServiceFailure};
use super::super::job::Job;
use super::super::places::AtHost;
use super::super::poll::Poller;
use super::super::state::WaitsFor;
use super::{Attempted, Commits};
use crate::disk_watch;
use crate::lfs::{LfsFile, LfsOid};
use crate::mirror::{LfsError, LfsFetch};
use crate::service::Service;
use crate::source::Upstream;

/// What an attempt works with.
pub(super) struct Attempt {
    pub(super) builder: Builder,
    pub(super) poller: Arc<Poller>,
    pub(super) services: Vec<Arc<Service>>,
    /// What is to be fetched; for each group there is room, or nothing of it is fetched.
    pub(super) groups: Vec<Vec<LfsFile>>,
    /// What is wanted as time goes by.
    pub(super) still_wanted: Arc<Mutex<HashSet<LfsOid>>>,
}

/// How it went with the objects that were tried. The reason is kept only if it is one: at its deadline an attempt is told
/// to stop.
type Tried = HashMap<LfsOid, Result<(), Option<String>>>;

/// How the work of an attempt ended.
struct Ended {
    tried: Tried,
    by: Option<LfsEnd>,
}

enum LfsEnd {
    Interrupted,
    Failed { reason: String, pause: Option<Duration> },
}

impl Attempt {
    /// Waits for a place, and fetches. Nobody waits for this but those who want the objects.
    pub(super) async fn run(self) -> Attempted {
        let poller = self.poller.clone();
        let waits = |what: Option<WaitsFor>| {
            poller.state.send_modify(|state| state.lfs.iter_mut().for_each(|lfs| lfs.waits_for = what));
        };
        let place = poller.places.to_fetch_lfs(&poller.at_host, waits).await;
        let (deadline, metrics) = (poller.config.borrow().poll_timeout, poller.metrics.clone());
        let (mirror, threads) = (self.builder.mirror.clone(), poller.threads.clone());
        let published = self.builder.publisher.commits(&poller.name).await;
        let mut job = match Job::begin("lfs", &threads, move |stop| self.fetch(&published, stop)) {
            Ok(job) => job,
            Err(error) => return Attempted::failed(format!("no thread can be started: {error}")),
        };
        let in_time = tokio::time::timeout(deadline, &mut job).await;
        let overdue = in_time.is_err();
        if overdue {
            job.interrupt();
            tracing::warn!(repository = %poller.name, seconds = deadline.as_secs(), "a fetch of LFS objects is overdue");
        }
        // Others must not wait for a thread that may never come back.
        drop(place);
        let ended = match in_time {
            Ok(ended) => ended,
            Err(_) => job.await,
        };
        let attempted = match ended {
            Ok(ended) => ended.at(overdue.then_some(deadline)),
            Err(fault) => {
                // What panics may have come upon a pack that is cut short.
                mirror.trouble(Instant::now());
                Attempted::failed(fault.to_string())
            }
        };
        if attempted.has_failed() {
            metrics.lfs_failures.inc();
        }
        attempted
    }

    fn fetch(self, published: &Commits, stop: &AtomicBool) -> Ended {
        let Self { builder, poller, services, groups, still_wanted } = self;
        let upstream = poller.upstream();
        let (mut tried, mirrored) = (Tried::new(), poller.state.borrow().mirrored);
        let of = (&poller.name, services.as_slice(), published, mirrored);
        let files = match builder.room_for(groups, of, upstream.max_mirror, stop) {
            Ok((files, too_many)) => {
                for (files, reason) in too_many {
                    tried.extend(files.iter().map(|file| (file.pointer.oid, Err(Some(reason.clone())))));
                }
                files
            }
            Err(ServiceFailure { reason, .. }) => {
                return Ended { tried, by: Some(LfsEnd::Failed { reason, pause: None }) };
            }
        };
        let wanted = |oid: &LfsOid| still_wanted.lock().unwrap_or_else(PoisonError::into_inner).contains(oid);
        let by = builder.fetch_lfs_files((&upstream, &poller.at_host), &files, &wanted, &mut tried, stop);
        Ended { tried, by }
    }
}

impl Ended {
    /// What it comes down to, when it was told to stop at a deadline, or not.
    fn at(self, deadline: Option<Duration>) -> Attempted {
        let late = match deadline {
            Some(deadline) => format!("its LFS objects did not come within {} s (`poll_timeout`)", deadline.as_secs()),
            None => "it was interrupted".to_owned(),
        };
        let tried = self.tried.into_iter().map(|(oid, result)| {
            let result = result.map_err(|reason| reason.unwrap_or_else(|| late.clone()).into());
            (oid, result)
        });
        let mut attempted = Attempted { tried: tried.collect(), ..Attempted::default() };
        match self.by {
            // The others are asked for in the next attempt, which has as much time.
            Some(LfsEnd::Interrupted) if attempted.brought_something() => {}
            Some(LfsEnd::Interrupted) => attempted.ended_by = Some(late.into()),
            Some(LfsEnd::Failed { reason, pause }) => {
                (attempted.ended_by, attempted.pause) = (Some(reason.into()), pause);
            }
            None => {}
        }
        attempted
    }
}

/// What there is room for; and what there is none for, with the reason.
type Room = (Vec<LfsFile>, Vec<(Vec<LfsFile>, String)>);

impl Builder {
    /// Sees to it that there is room for groups of objects: on the disk, and among the objects of the mirror, from which
    /// those go first that nothing needs, unless the repository is being cloned anew.
    fn room_for(
        &self,
        groups: Vec<Vec<LfsFile>>,
        (repository, services, published, mirrored): (&RepositoryName, &[Arc<Service>], &Commits, bool),
        max_mirror: u64,
        stop: &AtomicBool,
    ) -> Result<Room, ServiceFailure> {
        let failed = |reason: String| ServiceFailure::passing("lfs", reason);
        let bytes = |files: &[LfsFile]| files.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
        let all = groups.iter().fold(0u64, |sum, files| sum.saturating_add(bytes(files)));
        let disk =
            |needed: u64| disk_watch::require_room(&self.data_dir, self.options.min_free_bytes.saturating_add(needed));
        let mut held = self.mirror.lfs_objects().held().map_err(|error| failed(error.to_string()))?;
        let mut why = "current and retained versions need them: raise it, or retain less".to_owned();
        let is_full = held.bytes.saturating_add(all) > max_mirror || disk(all).is_err();
        if is_full && !mirrored {
            "none of them goes before the repository is cloned again".clone_into(&mut why);
        } else if is_full {
            match self.sweep_lfs(repository, services, published, Duration::ZERO, stop) {
                Ok(stays) => held = stays,
                // There may be room for some all the same.
                Err(failure) => why = format!("none of them goes, because {}", failure.reason),
            }
        }
        let (mut files, mut taken, mut too_many) = (Vec::new(), 0u64, Vec::new());
        for group in groups {
            let needed = taken.saturating_add(bytes(&group));
            let what = || format!("{} LFS objects of {} are to be fetched", group.len(), ByteSize(bytes(&group)));
            let refused = if held.bytes.saturating_add(needed) > max_mirror {
                let (held, limit) = (ByteSize(held.bytes.saturating_add(taken)), ByteSize(max_mirror));
                Some(format!(
                    "{}, but with the {held} that are here they would be more than `[upstreams] max_mirror` = {limit} allows; {why}",
                    what()
                ))
            } else {
                disk(needed).err().map(|error| format!("{}, but {error}", what()))
            };
            match refused {
                Some(reason) => too_many.push((group, reason)),
                None => {
                    taken = needed;
                    files.extend(group);
                }
            }
        }
        Ok((files, too_many))
    }

    /// Fetches objects. What ended it, if that is not that all were tried.
    fn fetch_lfs_files(
        &self,
        (upstream, at_host): (&Upstream, &AtHost),
        files: &[LfsFile],
        wanted: &dyn Fn(&LfsOid) -> bool,
        tried: &mut Tried,
        interrupt: &AtomicBool,
    ) -> Option<LfsEnd> {
        let tried = std::cell::RefCell::new(tried);
        let ended = |file: &LfsFile, result: Result<(), &LfsError>| {
            if result.is_ok() {
                self.metrics.lfs_objects.inc();
                self.metrics.lfs_bytes.inc_by(file.pointer.size);
            }
            let result = result.map_err(|error| (!error.is_interrupted()).then(|| error.to_string()));
            tried.borrow_mut().insert(file.pointer.oid, result);
        };
        let (objects, budget) = (self.mirror.lfs_objects(), || at_host.request());
        let fetch = LfsFetch { upstream, objects: &objects, budget: &budget, wanted, ended: &ended, interrupt };
        match fetch.run(files) {
            Ok(()) => None,
            Err(error) if error.is_interrupted() => Some(LfsEnd::Interrupted),
            Err(error) => Some(LfsEnd::Failed { reason: error.to_string(), pause: error.retry_after() }),
        }
    }
}
