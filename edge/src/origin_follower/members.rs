//! Learns the members of each cluster, and starts a follower and a probe for each.
//!
//! A member that no list names any longer is followed until its stream ends: a list may come from an origin that is cut
//! off from the others.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_cache::OriginId;
use weir_protocol::members::{Member, Members};
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::durable_file;

use super::FollowerContext;
use super::follower::Follower;
use super::prefetcher::Prefetcher;
use crate::origin_client::{Origin, Origins, probe};

/// The time between two requests for the list, ±50 %, unless a stream ends or an origin releases a repository.
const INTERVAL: Duration = Duration::from_secs(15);

/// The same while members that have just started do not know of each other: if one of them died now, no other could take
/// its services over here.
const UNSETTLED_INTERVAL: Duration = Duration::from_secs(2);

/// The least time between two requests for the list.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// How long the first lists are waited for. A name that stands for several members is not followed once it has answered.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3);

/// The file of the members that were learnt: an edge starts while the configured origins are down.
#[derive(Debug)]
pub(crate) struct MembersFile {
    path: PathBuf,
    /// Held while the file may be written.
    _lock: DirectoryLock,
}

/// The members by the configured origins whose certificates they are reached with.
type Learnt = BTreeMap<String, Vec<Member>>;

impl MembersFile {
    pub(crate) fn new(dir: &Path, lock: DirectoryLock) -> Self {
        Self { path: dir.join("members.json"), _lock: lock }
    }

    /// Adds the members that the file names. They are learnt again when it is damaged. Blocks.
    pub(crate) fn restore(&self, origins: &Origins) {
        let learnt: Learnt = match fs::read(&self.path).map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(learnt)) => learnt,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Ok(Err(error)) => return tracing::warn!(%error, "the list of members is damaged; it is requested again"),
            Err(error) => return tracing::warn!(%error, "the list of members cannot be read; it is requested again"),
        };
        for (source, members) in learnt {
            if let Some(source) = origins.find(&source) {
                origins.learn(source, Members { members });
            }
        }
    }

    fn write(&self, learnt: &Learnt) -> io::Result<()> {
        durable_file::replace(&self.path, &serde_json::to_vec(learnt)?)
    }
}

/// Learns and follows members until the drain begins.
pub(super) async fn follow(context: FollowerContext, prefetcher: Prefetcher, file: MembersFile) {
    let (drain, file) = (context.drain.clone(), Arc::new(file));
    let rounds = async {
        let (mut probed, mut written) = (Vec::<Arc<Origin>>::new(), Learnt::new());
        for round in 0.. {
            let learning = learn(&context, round);
            if round == 0 {
                let _ = tokio::time::timeout(FIRST_TIMEOUT, learning).await;
            } else {
                learning.await;
            }
            let all: Vec<_> = context.origins.all().collect();
            for (id, origin) in &all {
                if !probed.get(*id).is_some_and(|probed| Arc::ptr_eq(probed, origin)) {
                    probe::start(&context.origins, *id, origin.clone(), &context.drain);
                }
            }
            probed = all.into_iter().map(|(_, origin)| origin).collect();
            for id in 0..probed.len() {
                if context.origins.is_to_be_followed(id) && !context.origins.set_followed(id, true) {
                    context.drain.spawn(Follower::new(id, context.clone(), prefetcher.clone()).run());
                }
            }
            let learnt = learnt(&context.origins);
            context.metrics.members.set(learnt.values().map(|members| members.len() as i64).sum());
            if learnt != written {
                let (file, learnt) = (file.clone(), learnt.clone());
                let write = tokio::task::spawn_blocking(move || file.write(&learnt)).await;
                if let Ok(Err(error)) = write {
                    tracing::warn!(%error, "the list of members cannot be written; after a restart it is requested again");
                }
            }
            written = learnt;
            tokio::time::sleep(MIN_INTERVAL).await;
            let interval = if context.origins.are_unsettled() { UNSETTLED_INTERVAL } else { INTERVAL };
            let interval = interval.mul_f64(0.5 + fastrand::f64());
            let _ = tokio::time::timeout(interval, context.members_changed.notified()).await;
        }
    };
    tokio::select! {
        () = rounds => {}
        () = drain.begun() => {}
    }
}

/// Requests the list of each cluster from one of its members, in each round from another one.
async fn learn(context: &FollowerContext, round: usize) {
    let origins = &*context.origins;
    let count = origins.count();
    let mut answered: Vec<OriginId> = Vec::new();
    for id in (0..count).map(|step| (round + step) % count.max(1)) {
        let is_done = answered.iter().any(|done| origins.share_a_cluster(*done, id));
        if is_done || !(origins.is_in_use(id) || origins.is_to_be_followed(id)) {
            continue;
        }
        match origins.members(id).await {
            Ok(list) => {
                answered.push(id);
                list.into_iter().for_each(|list| origins.learn(id, list));
            }
            Err(error) => tracing::debug!(%error, "the list of members could not be fetched"),
        }
    }
}

fn learnt(origins: &Origins) -> Learnt {
    let mut learnt = Learnt::new();
    for (id, origin) in origins.all() {
        // The configured ones come first.
        let source = origins.name(origin.configured()).unwrap_or_default();
        learnt.entry(source).or_default().extend(origins.member(id));
    }
    learnt.retain(|_, members| !members.is_empty());
    learnt
}
