//! Starts the three roles in this process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use weir_origin::reconcile::Health;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::token::TokenId;
use weir_runtime::{certificates, key_pair};
use weir_source::{Condition, ServiceConfig};
use weir_upstream::RepositoryConfig;

use super::UpArguments;
use super::progress::Progress;
use crate::repository::Repository;

/// The poll interval of a repository on this machine.
const LOCAL_POLL: Duration = Duration::from_secs(2);
/// The shortest time between two polls of it. Its refs are watched.
const MIN_LOCAL_POLL: Duration = Duration::from_millis(100);
/// The poll interval of a remote repository. The default of an origin is 2 minutes.
const REMOTE_POLL: Duration = Duration::from_secs(30);
/// The port of the origin. The others are at fixed distances from it.
pub(super) const DEFAULT_PORT_BASE: u16 = 7400;
const OPERATOR_PORT: u16 = 1;
const EDGE_PORT: u16 = 43;
const ADMIN_PORTS: [u16; 3] = [90, 91, 92];
/// The largest port base.
pub(super) const MAX_PORT_BASE: i64 = 65_535 - 92;
/// The freshness of the edge's catalog and the poll interval of the agent, short so that a trial does not feel slow.
const QUICK: Duration = Duration::from_secs(1);

/// The running roles.
pub(super) struct Roles {
    pub(super) service: ServiceName,
    pub(super) repository: RepositoryName,
    pub(super) poll_interval: Duration,
    pub(super) ca: PathBuf,
    /// The token of operators.
    pub(super) operator_token: PathBuf,
    /// The symlink to the agent's current release.
    pub(super) current: PathBuf,
    pub(super) origin: weir_origin::Running,
    pub(super) edge: weir_edge::Running,
    pub(super) agent: weir_agent::Running,
}

impl Roles {
    /// Starts the roles. Edge and agent wait for the first publication. With `--once` they wait for the first poll, so that the
    /// agent switches to no older publication, nor runs a command for it.
    ///
    /// # Errors
    /// A role does not start.
    pub(super) async fn start(
        arguments: &UpArguments,
        repository: &Repository,
        root: &Path,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let pki = root.join("certificates");
        certificates::write(&pki, &[])?;
        let ca = pki.join("ca.pem");
        let service: ServiceName = repository.name.parse()?;
        let repository_name: RepositoryName = repository.name.parse()?;
        let poll_interval =
            arguments.poll_interval.unwrap_or(if repository.is_local { LOCAL_POLL } else { REMOTE_POLL });

        let tls = weir_origin::config::TlsConfig {
            certificate: pki.join("origin.pem"),
            key: pki.join("origin.key"),
            client_ca: ca.clone(),
        };
        let mut origin = weir_origin::config::Config::new("origin-1".parse()?, root.join("origin-data"), tls);
        origin.listen = address(arguments.port_base, 0);
        origin.admin_listen = Some(address(arguments.port_base, ADMIN_PORTS[0]));
        let operator_token = operator_token(root)?;
        origin.operator_listen = (!arguments.once).then(|| address(arguments.port_base, OPERATOR_PORT));
        origin.operator_api.operator_token_file = Some(operator_token.clone());
        let mut upstream = RepositoryConfig::new(repository_name.clone(), repository.url.as_str());
        upstream.poll_interval = poll_interval;
        reach(&mut upstream, arguments, repository);
        origin.repositories = vec![upstream];
        origin.oci.enabled = true;
        let mut published = ServiceConfig::new(service.clone(), repository_name.clone());
        if let Some(reference) = &arguments.reference {
            published.followed_ref = reference.parse()?;
        }
        if let Some(folder) = &arguments.folder {
            published.folder = folder.parse()?;
        }
        origin.services = vec![published];
        let origin = weir_origin::start(origin).await.context("the origin does not start")?;
        if arguments.once || origin.service(&service).is_none_or(|service| service.borrow().is_none()) {
            first_poll(&origin, &repository_name, &service, progress).await;
        }

        let cache = weir_edge::config::CacheConfig::new(root.join("edge-cache"));
        let mut edge = weir_edge::config::Config::new(
            "edge-1".parse()?,
            address(arguments.port_base, EDGE_PORT),
            weir_edge::config::TlsConfig { certificate: pki.join("edge.pem"), key: pki.join("edge.key") },
            cache,
            vec![weir_edge::config::OriginConfig::new(
                format!("https://{}", origin.address()),
                &ca,
                pki.join("edge-client.pem"),
                pki.join("edge-client.key"),
            )],
        );
        edge.admin_listen = Some(address(arguments.port_base, ADMIN_PORTS[1]));
        // Everybody may read, and the agent's certificate opens what it asks about itself.
        edge.auth.client_ca = Some(ca.clone());
        edge.freshness.fresh = if arguments.once { Duration::ZERO } else { QUICK };
        edge.freshness.stale_while_revalidate = Duration::ZERO;
        let edge = weir_edge::start(edge).await.context("the edge does not start")?;

        let current = root.join("agent").join(service.as_str()).join("current");
        let mut agent = agent_config(root, edge.address(), &service)?;
        agent.admin_listen = Some(address(arguments.port_base, ADMIN_PORTS[2]));
        agent.services[0].exec = arguments.exec.clone().map(Into::into);
        let started = if arguments.once { weir_agent::start_once(agent).await } else { weir_agent::start(agent).await };
        let agent = started.context("the agent does not start")?;
        let repository = repository_name;
        Ok(Self { service, repository, poll_interval, ca, operator_token, current, origin, edge, agent })
    }

    /// Drains the agent first, then the edge, then the origin.
    pub(super) async fn drain(self, deadline: Duration) {
        self.agent.drain(deadline).await;
        self.edge.drain(deadline).await;
        self.origin.drain(deadline).await;
    }
}

/// The file with the token of operators, which is made once.
///
/// # Errors
/// It cannot be written.
fn operator_token(root: &Path) -> anyhow::Result<PathBuf> {
    let file = root.join("operator-token");
    if !file.exists() {
        key_pair::create(&file, 0o600, &format!("{}\n", TokenId::random()?))?;
    }
    Ok(file)
}

/// The agent that follows a service of the edge at this address.
///
/// # Errors
/// The address makes no URL.
fn agent_config(root: &Path, edge: SocketAddr, service: &ServiceName) -> anyhow::Result<weir_agent::config::Config> {
    let pki = root.join("certificates");
    let edge = format!("https://{edge}").parse()?;
    let mut agent = weir_agent::config::Config::new(vec![edge], pki.join("ca.pem"), root.join("agent"));
    agent.name = certificates::AGENT.parse()?;
    agent.client_certificate = Some(pki.join("agent.pem"));
    agent.client_key = Some(pki.join("agent.key"));
    agent.poll_interval = QUICK;
    // It is the only one.
    agent.spread = Duration::ZERO;
    agent.services = vec![weir_agent::config::ServiceConfig::new(service)];
    Ok(agent)
}

/// Waits until the first poll and its publication are complete, or one of them has failed.
async fn first_poll(
    origin: &weir_origin::Running,
    repository: &RepositoryName,
    service: &ServiceName,
    progress: &Progress,
) {
    let (Some(mut upstream), Some(mut condition)) = (origin.repository(repository), origin.condition(service)) else {
        return;
    };
    loop {
        {
            let (upstream, condition) = (upstream.borrow_and_update(), condition.borrow_and_update());
            progress.show(&upstream);
            let has_failed = matches!(upstream.health, Health::Unhealthy { .. })
                || matches!(*condition, Condition::Unhealthy { .. });
            if has_failed || upstream.applied_polls > 0 && *condition == Condition::Following {
                return;
            }
        }
        let changed =
            tokio::select! { changed = upstream.changed() => changed, changed = condition.changed() => changed };
        if changed.is_err() {
            return;
        }
    }
}

/// A loopback address: the port from `--port-base`, else the default one, else a free one.
fn address(port_base: Option<u16>, offset: u16) -> SocketAddr {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let usual = at(port_base.unwrap_or(DEFAULT_PORT_BASE) + offset);
    let is_free = || TcpListener::bind(usual).is_ok() && UdpSocket::bind(usual).is_ok();
    if port_base.is_some() || is_free() { usual } else { at(0) }
}

/// How the upstream is reached, and what its answers mean.
fn reach(upstream: &mut RepositoryConfig, arguments: &UpArguments, repository: &Repository) {
    if repository.is_local {
        // One folder has no copy that lags.
        upstream.step_back_after = Duration::ZERO;
        upstream.watch_refs = true;
        upstream.min_poll_interval = MIN_LOCAL_POLL;
    }
    upstream.ca.clone_from(&arguments.ca);
    upstream.username.clone_from(&arguments.username);
    upstream.password_file.clone_from(&arguments.password_file);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_agent_waits_for_no_fleet() {
        let edge = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let agent = agent_config(Path::new("/weir-data"), edge, &"shop".parse().unwrap()).unwrap();
        assert_eq!(agent.spread, Duration::ZERO);
    }
}
