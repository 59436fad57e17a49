//! Origins, edges and an agent as processes on machines of their own, with a Git server and a record store.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use http::StatusCode;
use serde::Deserialize;
use tempfile::TempDir;
use weir_loadtest::git_server::{self, GitServer};
use weir_loadtest::processes::{Node, until};
use weir_loadtest::scrape;
use weir_runtime::certificates;

use super::engine::{Engine, EngineKind};
use super::network::{HARNESS, Machine, sh};
use super::upstream::Upstream;
use crate::operators::{TOKEN, curl};

const GIT_PORT: u16 = 8443;
const ORIGIN_PORT: u16 = 7400;
const EDGE_PORT: u16 = 7443;
const OPERATOR_PORT: u16 = 7401;
const ADMIN_PORT: u16 = 7490;

/// The room of an origin's `data_dir`, in MiB. A mirror has about a tenth of one. Seven minutes of pushes to six of them took
/// 35. Below 64 (`min_free`) nothing is built.
const DISK: usize = 256;

/// What a test wants.
pub(crate) struct Plan {
    pub(crate) engine: EngineKind,
    /// Those that start; one more is prepared.
    pub(crate) origins: u8,
    pub(crate) edges: u8,
    pub(crate) repositories: usize,
    /// Services `composed-N`, of what the services of the repository N and of the next one publish.
    pub(crate) composed: usize,
    pub(crate) ttl: Duration,
    pub(crate) poll_interval: Duration,
    /// How long edges answer without a question to an origin.
    pub(crate) fresh: Duration,
}

/// A process on its machine. The process ends first.
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) node: Node,
    pub(crate) machine: Machine,
    /// Where it listens, besides for operators.
    pub(crate) address: SocketAddr,
}

/// All processes and what they stand on.
pub(crate) struct Site {
    pub(crate) origins: Vec<Placed>,
    pub(crate) edges: Vec<Placed>,
    pub(crate) agent: Placed,
    pub(crate) engine: Engine,
    pub(crate) git: GitServer,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) composed: Vec<String>,
    dir: TempDir,
}

impl Site {
    /// Starts what the plan wants: first the Git server and the engine, then origins, edges and the agent. `None`: the
    /// engine is not installed.
    pub(crate) async fn start(plan: &Plan) -> anyhow::Result<Option<Self>> {
        let dir = tempfile::tempdir()?;
        let Some(engine) = Engine::start(plan.engine, dir.path()).await? else { return Ok(None) };
        let upstreams = (0..plan.repositories)
            .map(|number| Upstream::create(dir.path(), &format!("shop-{number}")))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let git = SocketAddr::from((HARNESS, GIT_PORT));
        let git = GitServer::start_at(git, dir.path(), &dir.path().join("git-certificates")).await?;
        fs::copy(git.ca(), dir.path().join("git-ca.pem"))?;
        fs::write(dir.path().join("git-password"), format!("{}\n", git_server::PASSWORD))?;
        fs::write(dir.path().join("operator-token"), TOKEN)?;
        ["s3-id", "s3-secret"].iter().try_for_each(|name| fs::write(dir.path().join(name), name))?;

        let machines =
            |first: u8, count: u8| (first..first + count).map(Machine::join).collect::<anyhow::Result<Vec<_>>>();
        let (origins, edges) = (machines(11, plan.origins + 1)?, machines(21, plan.edges)?);
        let hosts: Vec<String> = origins.iter().chain(&edges).map(|machine| machine.address.to_string()).collect();
        certificates::write(dir.path(), &hosts)?;

        let (store, cluster) = engine.config();
        let repositories: String = upstreams
            .iter()
            .map(|upstream| {
                format!(
                    "[[repository]]\nname = \"{name}\"\nurl = \"{url}\"\npoll_interval = \"{poll:?}\"\nca = \"git-ca.pem\"\n\
                     username = \"{username}\"\npassword_file = \"git-password\"\n\
                     [[service]]\nname = \"{name}\"\nrepository = \"{name}\"\nref = \"main\"\nfolder = \"deploy\"\n",
                    name = upstream.name,
                    url = git.url(&upstream.name),
                    poll = plan.poll_interval,
                    username = git_server::USERNAME,
                )
            })
            .collect();
        let (composed, defined): (Vec<String>, Vec<String>) = (0..plan.composed)
            .map(|number| {
                let [one, other] = [number, number + 1].map(|number| &upstreams[number % upstreams.len()].name);
                let parts =
                    format!("{{ service = \"{one}\", to = \"one\" }}, {{ service = \"{other}\", to = \"other\" }}");
                let name = format!("composed-{number}");
                (name.clone(), format!("[[service]]\nname = \"{name}\"\nparts = [{parts}]\n"))
            })
            .unzip();
        let repositories = repositories + &defined.concat();
        let (keys, trust) = if plan.composed > 0 {
            crate::signing::keys(dir.path(), "new signing.key")?;
            ("\"signing.key\"", "{ services = \"*\", keys = \"signing.key.pub\" }")
        } else {
            ("", "")
        };
        let origins = origins
            .into_iter()
            .enumerate()
            .map(|(index, machine)| {
                let name = format!("origin-{}", index + 1);
                certificates::write_origin(dir.path(), &name.parse()?, &hosts)?;
                let data = dir.path().join(format!("{name}-data"));
                fs::create_dir(&data)?;
                let size = DISK + plan.repositories / 2;
                sh(&format!("mount -t tmpfs -o size={size}m,mode=700 none {}", data.display()))?;
                let listen = SocketAddr::from((machine.address, ORIGIN_PORT));
                let config = format!(
                    "name = \"{name}\"\nlisten = \"{listen}\"\nadmin_listen = \"{admin}\"\ndata_dir = \"{name}-data\"\n\
                     operator_listen = \"{operators}\"\n[operator_api]\noperator_token_file = \"operator-token\"\n\
                     [tls]\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\nclient_ca = \"ca.pem\"\n\
                     [limits]\nrequests_per_minute_per_host = {requests}\n[signing]\nkeys = [{keys}]\n\
                     [store]\n{store}\
                     [cluster]\nadvertise = \"https://{listen}\"\nsession_ttl = \"{ttl:?}\"\n{cluster}\
                     {repositories}",
                    admin = admin(&machine),
                    operators = SocketAddr::from((machine.address, OPERATOR_PORT)),
                    ttl = plan.ttl,
                    // All repositories are on one host: their polls must not wait for its budget.
                    requests = 1_200.max(6 * plan.repositories),
                );
                Placed::new(dir.path(), &name, machine, ORIGIN_PORT, &config)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        // Each edge begins with another origin, and learns the others.
        let edges = edges
            .into_iter()
            .enumerate()
            .map(|(index, machine)| {
                let name = format!("edge-{}", index + 1);
                let config = format!(
                    "name = \"{name}\"\nlisten = \"{listen}\"\nadmin_listen = \"{admin}\"\n\
                     [tls]\ncertificate = \"edge.pem\"\nkey = \"edge.key\"\n\
                     [admin]\nallow_plain = true\n[auth]\nmode = \"open\"\nallow_anonymous = true\n\
                     [cache]\ndir = \"{name}-cache\"\ndisk = \"1GiB\"\n[freshness]\nfresh = \"{fresh:?}\"\n\
                     [[origin]]\nurl = \"https://{origin}\"\nca = \"ca.pem\"\n\
                     client_certificate = \"edge-client.pem\"\nclient_key = \"edge-client.key\"\n",
                    listen = SocketAddr::from((machine.address, EDGE_PORT)),
                    admin = admin(&machine),
                    fresh = plan.fresh,
                    origin = origins[index % usize::from(plan.origins)].address,
                );
                Placed::new(dir.path(), &name, machine, EDGE_PORT, &config)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let machine = Machine::join(41)?;
        let known: Vec<String> = edges.iter().map(|edge| format!("\"https://{}\"", edge.address)).collect();
        let names = upstreams.iter().map(|upstream| &upstream.name).chain(&composed);
        let follows: String = names.map(|name| format!("[[service]]\nname = \"{name}\"\n")).collect();
        let config = format!(
            "name = \"cluster-1\"\nadmin_listen = \"{admin}\"\nedges = [{}]\nca = \"ca.pem\"\nroot = \"agent-data\"\n\
             poll_interval = \"1s\"\ntrust = [{trust}]\n{follows}",
            known.join(", "),
            admin = admin(&machine),
        );
        let agent = Placed::new(dir.path(), "agent-1", machine, 0, &config)?;

        let mut site = Self { origins, edges, agent, engine, git, upstreams, composed, dir };
        for origin in &mut site.origins[..usize::from(plan.origins)] {
            origin.node.start().await?;
        }
        for edge in &mut site.edges {
            edge.node.start().await?;
            until_ready(&edge.node).await?;
        }
        Ok(Some(site))
    }

    /// A path below the site's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The name of the origin at an address.
    pub(crate) fn origin_at(&self, address: IpAddr) -> Option<&str> {
        self.origins.iter().find(|origin| origin.address.ip() == address).map(|origin| origin.name.as_str())
    }

    /// Ends everything, and leaves the folder with the logs.
    pub(crate) fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    /// The ends of the origins' logs.
    pub(crate) fn last_words(&self) -> String {
        let end =
            |log: String| log.lines().rev().take(20).fold(String::new(), |after, line| format!("{line}\n{after}"));
        self.origins
            .iter()
            .map(|origin| format!("the log of {} ends so:\n{}", origin.name, end(origin.node.log())))
            .collect()
    }

    /// The owner of each repository, as the first origin that answers has it. `None`: one has no owner now, or none answers.
    pub(crate) async fn owners(&self, repositories: usize) -> Option<BTreeMap<String, String>> {
        for origin in self.origins.iter().filter(|origin| origin.node.pid().is_some()) {
            let url = format!("{}/v1/members?repositories", origin.operators());
            let Ok((200, mut listed)) = curl(&self.path("ca.pem"), "GET", url, None).await else { continue };
            let members: Vec<Listed> = serde_json::from_value(listed["members"].take()).ok()?;
            let owned = members.into_iter().flat_map(|Listed { name, owns }| {
                owns.names.into_iter().map(move |repository| (repository, name.clone()))
            });
            let owners: BTreeMap<_, _> = owned.collect();
            return (owners.len() == repositories).then_some(owners);
        }
        None
    }
}

/// A member in `/v1/members`.
#[derive(Deserialize)]
struct Listed {
    name: String,
    owns: Owns,
}

#[derive(Deserialize)]
struct Owns {
    names: Vec<String>,
}

impl Placed {
    fn new(dir: &Path, name: &str, machine: Machine, port: u16, config: &str) -> anyhow::Result<Self> {
        // The role comes first in the name of the file.
        let node = Node::new(dir, &name.replace('-', "_"), admin(&machine), config)?.in_network_of(machine.process());
        Ok(Self { name: name.to_owned(), node, address: (machine.address, port).into(), machine })
    }

    /// The listener for operators of an origin.
    pub(crate) fn operators(&self) -> String {
        format!("https://{}:{OPERATOR_PORT}", self.address.ip())
    }
}

fn admin(machine: &Machine) -> SocketAddr {
    (machine.address, ADMIN_PORT).into()
}

/// Waits until a process says that it is ready.
pub(crate) async fn until_ready(node: &Node) -> anyhow::Result<()> {
    let is_ready =
        async || scrape::get(node.admin(), "/readyz").await.is_ok_and(|(status, _)| status == StatusCode::OK);
    until("it is ready", is_ready).await.with_context(|| node.log())
}
