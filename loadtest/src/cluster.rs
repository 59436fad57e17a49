//! Runs all roles in this process: one origin, edges and agents, with TLS and QUIC on loopback.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::relay::{Line, Relay};
use anyhow::Context;
use futures_util::future;
use tempfile::TempDir;
use weir_protocol::name::ServiceName;
use weir_runtime::certificates;

/// The roles to start.
pub struct Plan {
    /// The origin's repositories.
    pub repositories: Vec<weir_upstream::RepositoryConfig>,
    /// The origin's services. Every agent follows them all.
    pub services: Vec<weir_source::ServiceConfig>,
    /// The number of edges. Agents are distributed over them.
    pub edges: usize,
    /// The number of agents.
    pub agents: usize,
    /// The poll interval of the agents.
    pub poll_interval: Duration,
    /// How long an entry in an edge's catalog is fresh.
    pub fresh: Duration,
    /// The number of events that the origin keeps for reconnecting edges; `None` for the default.
    pub kept_events: Option<usize>,
    /// The line of a relay between the edges and the origin, if there is one.
    pub line: Option<Line>,
    /// Whether edges prefetch new versions.
    pub prefetch: bool,
    /// Whether the edges fetch objects from the first of them.
    pub shielded: bool,
}

impl Default for Plan {
    /// One edge, and nothing else.
    fn default() -> Self {
        Self {
            repositories: Vec::new(),
            services: Vec::new(),
            edges: 1,
            agents: 0,
            poll_interval: Duration::from_secs(1),
            fresh: Duration::from_secs(1),
            kept_events: None,
            line: None,
            prefetch: true,
            shielded: false,
        }
    }
}

/// The running roles. Dropping it deletes all files.
pub struct Cluster {
    /// The origin.
    pub origin: weir_origin::Running,
    /// The edges.
    pub edges: Vec<weir_edge::Running>,
    /// The agents.
    pub agents: Vec<weir_agent::Running>,
    /// The relay between edges and origin, if the plan has a line.
    pub relay: Option<Relay>,
    dir: TempDir,
}

impl Cluster {
    /// Starts all roles; returns when all are listening.
    ///
    /// # Errors
    /// A role failed to start.
    pub async fn start(plan: Plan) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        certificates::write(dir.path(), &[])?;
        let file = |name: &str| dir.path().join(name);

        let tls = weir_origin::config::TlsConfig {
            certificate: file("origin.pem"),
            key: file("origin.key"),
            client_ca: file("ca.pem"),
        };
        let mut origin = weir_origin::config::Config::new("origin-1".parse()?, file("origin-data"), tls);
        origin.listen = ([127, 0, 0, 1], 0).into();
        origin.admin_listen = Some(([127, 0, 0, 1], 0).into());
        origin.repositories = plan.repositories;
        origin.services.clone_from(&plan.services);
        origin.limits.events = plan.kept_events.unwrap_or(origin.limits.events);
        let origin = weir_origin::start(origin).await.context("the origin does not start")?;
        let relay = match plan.line {
            Some(line) => Some(Relay::over(line, origin.address()).await?),
            None => None,
        };
        let origin_at = relay.as_ref().map_or(origin.address(), Relay::address);

        let mut edges: Vec<weir_edge::Running> = Vec::new();
        for number in 1..=plan.edges {
            let upstream = weir_edge::config::OriginConfig::new(
                format!("https://{origin_at}"),
                file("ca.pem"),
                file("edge-client.pem"),
                file("edge-client.key"),
            );
            let cache = weir_edge::config::CacheConfig::new(file(&format!("edge-cache-{number}")));
            let mut config = weir_edge::config::Config::new(
                format!("edge-{number}").parse()?,
                ([127, 0, 0, 1], 0).into(),
                weir_edge::config::TlsConfig { certificate: file("edge.pem"), key: file("edge.key") },
                cache,
                vec![upstream],
            );
            config.admin_listen = Some(([127, 0, 0, 1], 0).into());
            config.freshness.fresh = plan.fresh;
            if !plan.prefetch {
                config.push.prefetch_within = Duration::ZERO;
            }
            if plan.shielded {
                config.peers.ca = Some(file("ca.pem"));
                config.shields =
                    edges.first().map(|shield| shield_at(shield, &config.origins[0])).into_iter().collect();
            }
            edges.push(weir_edge::start(config).await.context("an edge does not start")?);
        }

        let mut agents = Vec::new();
        for number in 0..plan.agents {
            let edge = edges.get(number % plan.edges).context("agents need an edge")?.address();
            let root = agent_root(dir.path(), number);
            let mut config =
                weir_agent::config::Config::new(vec![format!("https://{edge}").parse()?], file("ca.pem"), root);
            config.name = format!("cluster-{number}").parse()?;
            config.admin_listen = Some(([127, 0, 0, 1], 0).into());
            config.poll_interval = plan.poll_interval;
            config.services = plan.services.iter().map(|s| weir_agent::config::ServiceConfig::new(&s.name)).collect();
            agents.push(weir_agent::start(config).await.context("an agent does not start")?);
        }
        Ok(Self { origin, edges, agents, relay, dir })
    }

    /// The PEM file of the CA.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The path of an agent's symlink `current` for a service.
    pub fn current(&self, agent: usize, service: &ServiceName) -> PathBuf {
        agent_root(self.dir.path(), agent).join(service.as_str()).join("current")
    }

    /// Drains all roles, agents first. Returns true when nothing was cut off.
    pub async fn drain(self, deadline: Duration) -> bool {
        let agents = future::join_all(self.agents.into_iter().map(|agent| agent.drain(deadline))).await;
        let edges = future::join_all(self.edges.into_iter().map(|edge| edge.drain(deadline))).await;
        let origin = self.origin.drain(deadline).await;
        origin && agents.into_iter().chain(edges).all(|clean| clean)
    }
}

/// An edge as a shield, with the certificates of an origin.
fn shield_at(edge: &weir_edge::Running, origin: &weir_edge::config::OriginConfig) -> weir_edge::config::OriginConfig {
    weir_edge::config::OriginConfig { url: format!("https://{}", edge.address()), ..origin.clone() }
}

fn agent_root(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("agent-data-{number}"))
}
