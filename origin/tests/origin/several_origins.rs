//! Several origins on one record store: each repository has one owner, whoever joins, leaves or dies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use weir_origin::config::{ClusterConfig, EngineName, EtcdConfig, StoreConfig};
use weir_protocol::descriptor::Generation;
use weir_protocol::members::{MemberState, Members};
use weir_protocol::name::ServiceName;

use crate::prelude::*;
use weir_store::testing::TestServer;

pub(crate) const REPOSITORIES: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn each_repository_has_one_owner_on_a_bucket() {
    let Some(server) = TestServer::moto() else { return };
    Box::pin(Hub::on_bucket(1, &server).await.lives()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_moves_with_the_configuration_files() {
    let Some(server) = TestServer::moto() else { return };
    let hub = Hub::on_bucket(14, &server).await;
    let empty = |index| {
        let mut config = hub.config(index);
        config.repositories.clear();
        config.services.clear();
        config
    };
    let (first, second) = tokio::join!(hub.home.start(empty(1)), hub.home.start(empty(2)));
    let nodes = BTreeMap::from([(1, first), (2, second)]);
    until(async || {
        let mut joined = 0;
        for node in nodes.values() {
            joined += node.status().await["cluster"]["others"].as_array().map_or(0, Vec::len);
        }
        joined == 2
    })
    .await;
    // Enough that each owns some.
    let names: Vec<String> = (0..=REPOSITORIES).map(|number| format!("shop-{number}")).collect();
    // Services are named like repositories. `moved`: one of them is in another one.
    let load = async |at: &[usize], moved: Option<(&String, &String)>| {
        let (mut text, url) = (String::new(), hub.upstream.url());
        for name in &names {
            let of = moved.filter(|(from, _)| *from == name).map_or(name, |(_, to)| to);
            text += &format!("[[repository]]\nname = \"{name}\"\nurl = \"{url}\"\n");
            text += "poll_interval = \"1h\"\nmin_poll_interval = \"100ms\"\n";
            text += &format!("[[service]]\nname = \"{name}\"\nrepository = \"{of}\"\n");
            text += "ref = \"main\"\nfolder = \"deploy\"\n";
        }
        let file = hub.home.write_config(&text);
        for index in at {
            nodes[index].running.reload_file(&file).await.unwrap();
        }
    };
    // While the files differ each would publish the first service in another repository.
    load(&[1], None).await;
    load(&[2], Some((&names[0], &names[1]))).await;
    until(async || {
        let mut waiting = BTreeSet::new();
        for node in nodes.values() {
            for service in node.status().await["services"].as_array().unwrap() {
                assert!(service["published"].is_null(), "{service}");
                if service["failure"]["reason"].as_str().is_some_and(|why| why.contains("have the same file")) {
                    waiting.insert(service["name"].as_str().unwrap().to_owned());
                }
            }
        }
        names[2..].iter().all(|name| waiting.contains(name))
    })
    .await;
    load(&[2], None).await;
    until(async || {
        let of_both = [owned(&nodes[&1]).await.len(), owned(&nodes[&2]).await.len()];
        of_both.iter().sum::<usize>() == names.len() && !of_both.contains(&0)
    })
    .await;
    let mut seen = Seen::new();
    until(async || all_at(&nodes, &mut seen, None).await).await;
    let (of_first, of_second) = (owned(&nodes[&1]).await, owned(&nodes[&2]).await);
    let (from, to) = (of_first.keys().next().unwrap(), of_second.keys().next().unwrap());
    let mut readers = [hub.follow(&nodes[&1]).await, hub.follow(&nodes[&2]).await];

    until(async || nodes[&1].get(&format!("/v1/services/{from}")).await.status == 200).await;
    load(&[1, 2], Some((from, to))).await;
    until(async || {
        let mut has_moved = all_at(&nodes, &mut seen, None).await;
        for node in nodes.values() {
            let current = Descriptor::parse(node.get(&format!("/v1/services/{from}")).await.body).unwrap();
            has_moved &= current.publication().repository.as_str() == to;
        }
        has_moved
    })
    .await;
    for node in nodes.into_values() {
        node.stop().await;
    }
    for reader in &mut readers {
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_repository_has_one_owner_on_etcd() {
    let Some((hub, _server, _dir)) = Hub::on_etcd(2) else { return };
    Box::pin(hub.lives()).await;
}

/// An address of loopback that no other process of the tests uses.
pub(crate) fn address(test: u8, host: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{high}.{low}.{}", 10 * test + host)
}

/// Several origins of one upstream.
pub(crate) struct Hub {
    pub(crate) home: Home,
    pub(crate) upstream: Upstream,
    test: u8,
    store: StoreConfig,
    engine: EngineName,
    etcd: Option<EtcdConfig>,
}

/// What every reader has seen: by origin and service.
type Seen = BTreeMap<(usize, ServiceName), Generation>;

impl Hub {
    /// With records in etcd and objects in a folder, which end with what is returned beside it.
    pub(crate) fn on_etcd(test: u8) -> Option<(Self, TestServer, TempDir)> {
        let dir = tempfile::tempdir().unwrap();
        let host = address(test, 0);
        let (client, peer) = (format!("http://{host}:2379"), format!("http://{host}:2380"));
        let mut command = Command::new("etcd");
        command.args(["--name", "one", "--initial-cluster", &format!("one={peer}")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--data-dir").arg(dir.path().join("etcd"));
        let mut server = TestServer::spawn(command, "Debian's package etcd-server brings it")?;
        server.wait_for("ready to serve client requests");
        let objects = dir.path().join("objects");
        fs::create_dir(&objects).unwrap();
        let hub = Self::new(test, |_| {
            let store = StoreConfig { url: Some(format!("file://{}", objects.display())), ..StoreConfig::default() };
            let etcd = EtcdConfig {
                endpoints: vec![client],
                allow_http: true,
                ca: None,
                certificate: None,
                key: None,
                prefix: "weir/".to_owned(),
            };
            (store, EngineName::Etcd, Some(etcd))
        });
        Some((hub, server, dir))
    }

    fn new(test: u8, engine: impl FnOnce(&Home) -> (StoreConfig, EngineName, Option<EtcdConfig>)) -> Self {
        let hosts: Vec<String> = (1..=3).map(|host| address(test, host)).collect();
        let home = Home::of_hosts(&hosts);
        let (store, engine, etcd) = engine(&home);
        Self { home, upstream: Upstream::small(), test, store, engine, etcd }
    }

    /// Of a bucket of this server.
    pub(crate) async fn on_bucket(test: u8, server: &TestServer) -> Self {
        server.create_bucket("weir-hub").await;
        Self::new(test, |home| {
            ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
            let store = StoreConfig {
                url: Some("s3://weir-hub/prod".to_owned()),
                endpoint: Some(server.endpoint.clone()),
                allow_http: true,
                access_key_id_file: Some(home.file("id")),
                secret_access_key_file: Some(home.file("secret")),
                ..StoreConfig::default()
            };
            (store, EngineName::Bucket, None)
        })
    }

    async fn start(&self, index: usize) -> Node {
        self.home.start(self.config(index)).await
    }

    /// The origin with a number from 1.
    pub(crate) fn config(&self, index: usize) -> Config {
        let mut config = self.home.config(&self.upstream.url());
        config.name = format!("origin-{index}").parse().unwrap();
        config.data_dir = self.home.file(&format!("data-{index}"));
        config.listen = format!("{}:7400", address(self.test, index as u8)).parse().unwrap();
        config.store = self.store.clone();
        config.cluster = Some(ClusterConfig {
            engine: self.engine,
            advertise: format!("https://{}", config.listen),
            zone: None,
            weight: 1,
            session_ttl: Some(Duration::from_secs(3)),
            etcd: self.etcd.clone(),
        });
        let (repository, service) = (config.repositories.remove(0), config.services.remove(0));
        for number in 0..REPOSITORIES {
            let name: RepositoryName = format!("shop-{number}").parse().unwrap();
            let of = ServiceConfig {
                name: name.as_str().parse().unwrap(),
                repository: Some(name.clone()),
                ..service.clone()
            };
            let mut repository = repository.clone();
            repository.name = name;
            config.repositories.push(repository);
            config.services.push(of);
        }
        config
    }

    /// The life of a cluster.
    async fn lives(&self) {
        let (first, second, third) = tokio::join!(self.start(1), self.start(2), self.start(3));
        let mut nodes = BTreeMap::from([(1, first), (2, second), (3, third)]);
        let mut readers = Vec::new();
        for node in nodes.values() {
            readers.push(self.follow(node).await);
        }
        let mut seen = Seen::new();
        let all_joined = async || {
            let mut joined = 0;
            for node in nodes.values() {
                joined += node.status().await["cluster"]["others"].as_array().map_or(0, Vec::len);
            }
            joined == 6
        };
        until(all_joined).await;
        have_one_owner_each(&nodes).await;
        let members = Members::parse(&nodes[&1].get("/v1/members").await.body).unwrap();
        assert!(members.members.iter().all(|member| member.state == MemberState::Active), "{members:?}");
        assert_eq!(members.members.len(), 3);

        // A push is published once, and every origin answers for it.
        self.publish_once(&nodes, &mut seen, "replicas: 2\n").await;

        // An owner dies: others take over, publish, and no reader goes back.
        let dead = *nodes.keys().next().unwrap();
        let before = owned(&nodes[&dead]).await;
        nodes.remove(&dead).unwrap().running.cut().await;
        have_one_owner_each(&nodes).await;
        for node in nodes.values() {
            for (repository, fence) in owned(node).await {
                assert!(before.get(&repository).is_none_or(|before| fence > *before), "the fence of {repository}");
            }
        }
        self.publish_once(&nodes, &mut seen, "replicas: 3\n").await;

        // It comes back at once, because it knows that its last run has ended.
        nodes.insert(dead, self.start(dead).await);
        until(async || nodes[&dead].status().await["cluster"]["has_session"] == true).await;

        // One leaves: it hands over what it has.
        let leaving = *nodes.keys().last().unwrap();
        let released = "weir_origin_cluster_taken_total{from=\"released\"}";
        let leaving = nodes.remove(&leaving).unwrap();
        let before = sum(&nodes, released).await;
        let handed_over = owned(&leaving).await.len() as f64;
        leaving.stop().await;
        have_one_owner_each(&nodes).await;
        assert!(sum(&nodes, released).await - before >= handed_over, "{handed_over} were handed over");
        self.publish_once(&nodes, &mut seen, "replicas: 4\n").await;
        for node in nodes.into_values() {
            node.stop().await;
        }
        for reader in readers {
            reader.await.unwrap();
        }
    }

    /// Reads an origin's events until it stops: no generation goes back.
    async fn follow(&self, node: &Node) -> JoinHandle<()> {
        let mut reader = Reader::of(&self.home.client("edge-client"), node, "").await;
        tokio::spawn(async move {
            let mut seen: BTreeMap<ServiceName, Generation> = BTreeMap::new();
            while let Some(event) = reader.next().await {
                assert!(!matches!(event.kind, EventKind::Tombstone { .. }), "nothing is deleted: {event:?}");
                let EventKind::Descriptor(bytes) = event.kind else { continue };
                let descriptor = Descriptor::parse(bytes).unwrap();
                let (service, generation) = of(&descriptor);
                let before = seen.insert(service, generation);
                assert!(before.is_none_or(|before| before <= generation), "{descriptor:?}");
            }
        })
    }

    /// Pushes, and waits until every origin answers with the new commit for every service. Each is published by one origin.
    async fn publish_once(&self, nodes: &BTreeMap<usize, Node>, seen: &mut Seen, contents: &str) {
        const PUBLICATIONS: &str = "weir_origin_publications_total";
        // The first versions.
        until(async || all_at(nodes, seen, None).await).await;
        let before = sum(nodes, PUBLICATIONS).await;
        let commit = self.upstream.push("deploy/app.yaml", contents.as_bytes());
        until(async || {
            for node in nodes.values() {
                (0..REPOSITORIES).for_each(|number| {
                    node.running.trigger_poll(&format!("shop-{number}").parse().unwrap());
                });
            }
            all_at(nodes, seen, Some(&commit)).await
        })
        .await;
        assert_eq!(sum(nodes, PUBLICATIONS).await - before, REPOSITORIES as f64, "published once each");
    }
}

/// Whether all origins answer for all services, with the same version, of this commit.
async fn all_at(nodes: &BTreeMap<usize, Node>, seen: &mut Seen, commit: Option<&str>) -> bool {
    let mut all = true;
    for number in 0..REPOSITORIES {
        let mut versions = Vec::new();
        for (index, node) in nodes {
            let answer = node.get(&format!("/v1/services/shop-{number}")).await;
            if answer.status != 200 {
                all = false;
                continue;
            }
            let descriptor = Descriptor::parse(answer.body).unwrap();
            let (service, generation) = of(&descriptor);
            let before = seen.insert((*index, service), generation);
            assert!(before.is_none_or(|before| before <= generation), "origin-{index} went back: {descriptor:?}");
            all &= commit.is_none_or(|commit| commit_of(&descriptor) == commit);
            versions.push((generation, descriptor.publication().digest));
        }
        versions.dedup();
        all &= versions.len() == 1;
    }
    all
}

fn of(descriptor: &Descriptor) -> (ServiceName, Generation) {
    (descriptor.publication().service.clone(), descriptor.publication().generation)
}

/// What an origin owns, with the fences.
pub(crate) async fn owned(node: &Node) -> BTreeMap<String, u64> {
    let status = node.status().await;
    let owned = status["cluster"]["owned"].as_array().unwrap().iter();
    owned.map(|owned| (owned["repository"].as_str().unwrap().to_owned(), owned["fence"].as_u64().unwrap())).collect()
}

/// Waits until each repository has an owner. It never has two.
pub(crate) async fn have_one_owner_each(nodes: &BTreeMap<usize, Node>) {
    until(async || {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for node in nodes.values() {
            for (repository, fence) in owned(node).await {
                // A status may be older than the one before it, but a fence has one owner.
                assert_ne!(all.insert(repository, fence), Some(fence), "two owners");
            }
        }
        all.len() == REPOSITORIES
    })
    .await;
}

async fn sum(nodes: &BTreeMap<usize, Node>, series: &str) -> f64 {
    let mut sum = 0.0;
    for node in nodes.values() {
        sum += node.metric(series).await;
    }
    sum
}
