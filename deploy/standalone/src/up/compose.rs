//! Starts the three roles, joined by nothing but their addresses.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use weir_origin::config::{RepositoryConfig, ServiceConfig};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::certificates;

use super::UpArguments;
use crate::repository::Repository;

/// How often a repository on this machine is asked.
const LOCAL_POLL: Duration = Duration::from_secs(2);
/// How often a repository elsewhere is asked. A fleet's origin asks every 2 minutes.
const REMOTE_POLL: Duration = Duration::from_secs(30);
/// How long the edge's table is fresh, and how often the agent asks: a trial should not feel slow.
const QUICK: Duration = Duration::from_secs(1);

/// The running roles.
pub(super) struct Roles {
    pub(super) service: ServiceName,
    pub(super) repository: RepositoryName,
    pub(super) poll_interval: Duration,
    pub(super) ca: PathBuf,
    /// The symlink to the agent's current release.
    pub(super) current: PathBuf,
    pub(super) origin: weir_origin::Running,
    pub(super) edge: weir_edge::Running,
    pub(super) agent: weir_agent::Running,
}

impl Roles {
    pub(super) async fn start(arguments: &UpArguments, repository: &Repository) -> anyhow::Result<Self> {
        fs::create_dir_all(&arguments.root).with_context(|| format!("cannot create {}", arguments.root.display()))?;
        let root = arguments.root.canonicalize()?;
        // The root often stands within a checkout, where nobody wants to see it.
        fs::write(root.join(".gitignore"), "*\n").with_context(|| format!("cannot write to {}", root.display()))?;
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
        origin.listen = address(7400);
        origin.admin_listen = Some(address(7490));
        let mut upstream = RepositoryConfig::new(repository_name.clone(), repository.url.as_str());
        upstream.poll_interval = poll_interval;
        upstream.ca.clone_from(&arguments.ca);
        upstream.username.clone_from(&arguments.username);
        upstream.password_file.clone_from(&arguments.password_file);
        origin.repositories = vec![upstream];
        let mut published = ServiceConfig::new(service.clone(), repository_name.clone());
        if let Some(reference) = &arguments.reference {
            published.revision = reference.parse()?;
        }
        if let Some(folder) = &arguments.folder {
            published.folder = folder.parse()?;
        }
        origin.services = vec![published];
        let origin = weir_origin::start(origin).await.context("the origin does not start")?;

        let cache = weir_edge::config::CacheConfig::new(root.join("edge-cache"));
        let mut edge = weir_edge::config::Config::new(
            "edge-1".parse()?,
            address(7443),
            weir_edge::config::TlsConfig { certificate: pki.join("edge.pem"), key: pki.join("edge.key") },
            cache,
            vec![weir_edge::config::OriginConfig::new(
                format!("https://{}", origin.address()),
                &ca,
                pki.join("edge-client.pem"),
                pki.join("edge-client.key"),
            )],
        );
        edge.admin_listen = Some(address(7491));
        edge.freshness.fresh = QUICK;
        let edge = weir_edge::start(edge).await.context("the edge does not start")?;

        let agent_root = root.join("agent");
        let current = agent_root.join(service.as_str()).join("current");
        let edge_url = format!("https://{}", edge.address()).parse()?;
        let mut agent = weir_agent::config::Config::new(vec![edge_url], &ca, agent_root);
        agent.admin_listen = Some(address(7492));
        agent.poll_interval = QUICK;
        let mut followed = weir_agent::config::ServiceConfig::new(service.clone());
        followed.exec.clone_from(&arguments.exec);
        agent.services = vec![followed];
        let agent = weir_agent::start(agent).await.context("the agent does not start")?;
        Ok(Self { service, repository: repository_name, poll_interval, ca, current, origin, edge, agent })
    }

    /// Agents first, then what they ask.
    pub(super) async fn drain(self, deadline: Duration) {
        self.agent.drain(deadline).await;
        self.edge.drain(deadline).await;
        self.origin.drain(deadline).await;
    }
}

/// Loopback at the usual port, or at any when somebody has that one.
fn address(usual_port: u16) -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, usual_port));
    let is_free = TcpListener::bind(usual).is_ok() && UdpSocket::bind(usual).is_ok();
    SocketAddr::from((Ipv4Addr::LOCALHOST, if is_free { usual_port } else { 0 }))
}
