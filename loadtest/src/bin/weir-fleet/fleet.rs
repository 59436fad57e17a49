//! The agents, and when they hear of commits and switch to them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::sync::watch;
use weir_agent::config::{Config, HttpMode, ServiceConfig};
use weir_agent::{Running, ServiceStatus};
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;

use crate::site::{Edge, Site, name};

/// How the agents are configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) agents: usize,
    pub(crate) services: usize,
    pub(crate) spread: Duration,
    /// Their roots are below it.
    pub(crate) dir: &'a Path,
}

pub(crate) struct Fleet {
    agents: Vec<Running>,
    services: Vec<ServiceName>,
    pub(crate) log: Arc<Log>,
}

/// When commits were announced, and what the agents made of them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    commits: RwLock<HashMap<String, Commit>>,
    delays: Mutex<Vec<Delay>>,
}

#[derive(Debug, Clone, Copy)]
struct Commit {
    announced: Instant,
    restarting: bool,
}

/// From the request that a webhook sends to what an agent did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) what: What,
    /// An edge had been restarted shortly before.
    pub(crate) restarting: bool,
    pub(crate) after: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// An event, or a batch poll, offered the commit.
    Event,
    /// `current` points at it.
    Switch,
}

impl Log {
    /// A commit is about to be announced.
    pub(crate) fn announce(&self, commit: &str, restarting: bool) -> anyhow::Result<()> {
        let revision = RevisionId::from(&commit.parse()?).to_string();
        let commit = Commit { announced: Instant::now(), restarting };
        self.commits.write().unwrap_or_else(PoisonError::into_inner).insert(revision, commit);
        Ok(())
    }

    fn record(&self, what: What, revision: &RevisionId) {
        let now = Instant::now();
        // The first commit was not announced.
        let commit = self.commits.read().unwrap_or_else(PoisonError::into_inner).get(revision.as_str()).copied();
        let Some(Commit { announced, restarting }) = commit else { return };
        let delay = Delay { what, restarting, after: now - announced };
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
    }

    pub(crate) fn delays(&self) -> Vec<Delay> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Records what becomes of one service at one agent.
async fn follow(mut status: watch::Receiver<ServiceStatus>, log: Arc<Log>) {
    let (mut offered, mut released) = (None, None);
    while status.changed().await.is_ok() {
        let (offer, release) = {
            let status = status.borrow_and_update();
            (status.offered.clone(), status.release.as_ref().and_then(|release| release.revision_id.clone()))
        };
        for (what, before, now) in [(What::Event, &mut offered, offer), (What::Switch, &mut released, release)] {
            if *before != now {
                now.iter().for_each(|revision| log.record(what, revision));
                *before = now;
            }
        }
    }
}

/// The root of an agent.
pub(crate) fn root(dir: &Path, agent: usize) -> PathBuf {
    dir.join(format!("agent-{agent}"))
}

impl Fleet {
    /// Starts the agents. Every other one begins with the second edge.
    pub(crate) async fn start(plan: Plan<'_>, site: &Site, edges: &[Edge]) -> anyhow::Result<Self> {
        let services = (0..plan.services).map(|service| Ok(name(service).parse()?));
        let services = services.collect::<anyhow::Result<Vec<ServiceName>>>()?;
        let mut urls =
            edges.iter().map(|edge| format!("https://{}", edge.address).parse()).collect::<Result<Vec<_>, _>>()?;
        let (log, mut agents) = (Arc::new(Log::default()), Vec::new());
        for number in 0..plan.agents {
            let agent = format!("cluster-{number}");
            let token = site.path().join(format!("{agent}.token"));
            fs::write(&token, site.token(&agent)?)?;
            let mut config = Config::new(urls.clone(), site.path().join("ca.pem"), root(plan.dir, number));
            config.name = agent.parse()?;
            config.token_file = Some(token);
            config.http = HttpMode::H3;
            config.spread = plan.spread;
            config.services = services.iter().map(ServiceConfig::new).collect();
            let agent = weir_agent::start(config).await.with_context(|| format!("agent {number} does not start"))?;
            for service in &services {
                tokio::spawn(follow(agent.service(service).context("it is followed")?, log.clone()));
            }
            agents.push(agent);
            urls.rotate_left(1);
        }
        Ok(Self { agents, services, log })
    }

    /// Waits until a service of each agent is in a state.
    async fn until(
        &self,
        service: &ServiceName,
        wait: Duration,
        is_it: impl Fn(&ServiceStatus) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + wait;
        for (number, agent) in self.agents.iter().enumerate() {
            let mut status = agent.service(service).context("it is followed")?;
            if tokio::time::timeout_at(deadline, status.wait_for(&is_it)).await.is_err() {
                let status = status.borrow();
                let (release, offered, error) = (&status.release, &status.offered, &status.last_error);
                anyhow::bail!("agent {number}, {service}: release {release:?}, offered {offered:?}, error {error:?}");
            }
        }
        Ok(())
    }

    /// Waits until every agent has released every service.
    pub(crate) async fn until_released(&self, wait: Duration) -> anyhow::Result<()> {
        for service in &self.services {
            self.until(service, wait, |status| status.release.is_some()).await?;
        }
        Ok(())
    }

    /// Waits until every agent has switched each service to its last commit.
    pub(crate) async fn until_at(&self, commits: &[String], wait: Duration) -> anyhow::Result<()> {
        ensure!(commits.len() == self.services.len(), "each service has a last commit");
        for (service, commit) in self.services.iter().zip(commits) {
            let is_it = |status: &ServiceStatus| {
                let commit_of = status.release.as_ref().and_then(|release| release.commit.as_ref());
                commit_of.is_some_and(|found| found.as_str() == commit)
            };
            self.until(service, wait, is_it).await?;
        }
        Ok(())
    }

    /// The sum of a counter over all agents, of the series that have a value of a label, if one is given.
    pub(crate) fn count(&self, counter: &str, value: Option<&str>) -> f64 {
        let families = self.agents.iter().flat_map(|agent| agent.registry().gather());
        let series = families.filter(|family| family.name() == counter).flat_map(|mut family| family.take_metric());
        let is_it = |series: &prometheus::proto::Metric| {
            value.is_none_or(|value| series.get_label().iter().any(|label| label.value() == value))
        };
        series.filter(is_it).map(|series| series.get_counter().get_value()).sum()
    }

    pub(crate) async fn drain(self) -> bool {
        let drained = self.agents.into_iter().map(|agent| agent.drain(Duration::from_secs(30)));
        futures_util::future::join_all(drained).await.into_iter().all(|clean| clean)
    }
}
