//! Composed services of a cluster, whose parts belong to other origins.

use std::collections::BTreeMap;

use weir_origin::versions::ChangeRequest;
use weir_protocol::freshness::Freshness;
use weir_protocol::token::PublicKey;
use weir_store::testing::TestServer;

use crate::prelude::*;
use crate::several_origins::{Hub, REPOSITORIES, have_one_owner_each, owned};
use crate::signing::{new_key, statements};

#[tokio::test(flavor = "multi_thread")]
async fn parts_have_other_owners_on_a_bucket() {
    let Some(server) = TestServer::moto() else { return };
    Box::pin(Composed::of(Hub::on_bucket(13, &server).await).live()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_have_other_owners_on_etcd() {
    let Some((hub, _server, _dir)) = Hub::on_etcd(15) else { return };
    Box::pin(Composed::of(hub).live()).await;
}

/// Of each repository `shop-N` the service `shop-N`, and `composed-N` of it and of the next one.
struct Composed {
    hub: Hub,
    key_file: PathBuf,
    key: PublicKey,
}

impl Composed {
    fn of(hub: Hub) -> Self {
        let (key_file, key) = new_key(&hub.home, "signing.key");
        Self { hub, key_file, key }
    }

    async fn start(&self, index: usize) -> Node {
        let mut config = self.hub.config(index);
        for number in 0..REPOSITORIES {
            let [one, other] = [number, next(number)].map(|number| format!("shop-{number}"));
            let parts = json!([{ "service": one, "to": "one" }, { "service": other, "to": "other" }]);
            let service = json!({ "name": format!("composed-{number}"), "parts": parts });
            config.services.push(serde_json::from_value(service).unwrap());
        }
        config.signing.keys = vec![self.key_file.clone()];
        self.hub.home.start(config).await
    }

    async fn live(&self) {
        let (first, second) = tokio::join!(self.start(1), self.start(2));
        let mut nodes = BTreeMap::from([(1, first), (2, second)]);
        until(async || {
            let mut owners = 0;
            for node in nodes.values() {
                owners += usize::from(!owned(node).await.is_empty());
            }
            owners == 2
        })
        .await;
        have_one_owner_each(&nodes).await;
        self.are_composed_of(&nodes, None).await;

        // What each part publishes is published in all that are composed of it, whoever owns them.
        let before = current(&nodes, "shop-0").await.unwrap().publication().digest;
        let commit = self.hub.upstream.push("deploy/app.yaml", b"replicas: 2\n");
        self.are_composed_of(&nodes, Some(&commit)).await;

        // Git is gone, and a part is rolled back at its owner.
        let mut owners = BTreeMap::new();
        for (index, node) in &nodes {
            owners.extend(owned(node).await.into_keys().map(|repository| (repository, *index)));
        }
        let is_apart = |number: &usize| owners[&format!("shop-{number}")] != owners[&format!("shop-{}", next(*number))];
        let number = (0..REPOSITORIES).find(is_apart).expect("both own some");
        let (composed, part) = (format!("composed-{number}"), format!("shop-{}", next(number)));
        let (home, other) = (owners[&format!("shop-{number}")], owners[&part]);
        self.hub.upstream.take_away();
        let (versions, change) = (nodes[&other].running.versions(), ChangeRequest { by: None, expected: None });
        let service = part.parse().unwrap();
        versions.roll_back(&service, &before, change.clone()).await.unwrap();
        let has = async |digest: TarballDigest| {
            let now = current(&nodes, &composed).await;
            now.is_some_and(|now| now.publication().parts.iter().any(|part| part.digest == Some(digest)))
        };
        until(async || has(before).await).await;

        // The owner of the part says how fresh it is.
        until(async || {
            let signed = statements(&self.hub.home, &nodes[&home], &[&composed]).await;
            let stated = signed.first().and_then(|signed| Freshness::signed_by(&signed.envelope, &self.key));
            assert!(nodes[&other].running.trigger_poll(&part.parse().unwrap()));
            stated.is_some_and(|stated| stated.upstream_unreachable_since.is_some())
        })
        .await;
        versions.unpin(&service, change).await.unwrap();
        let ahead = current(&nodes, &format!("shop-{number}")).await.unwrap().publication().digest;
        until(async || !has(before).await && has(ahead).await).await;

        // Its owner dies: what is composed of it is published by whoever is left.
        self.hub.upstream.give_back();
        nodes.remove(&other).unwrap().running.cut().await;
        have_one_owner_each(&nodes).await;
        let commit = self.hub.upstream.push("deploy/app.yaml", b"replicas: 3\n");
        self.are_composed_of(&nodes, Some(&commit)).await;
        for node in nodes.into_values() {
            node.stop().await;
        }
    }

    /// Waits until all services are published, at this commit, and each composed one has the versions in force of its parts.
    async fn are_composed_of(&self, nodes: &BTreeMap<usize, Node>, commit: Option<&str>) {
        until(async || {
            for node in nodes.values() {
                (0..REPOSITORIES).for_each(|number| {
                    node.running.trigger_poll(&format!("shop-{number}").parse().unwrap());
                });
            }
            for number in 0..REPOSITORIES {
                let Some(composed) = current(nodes, &format!("composed-{number}")).await else { return false };
                let parts = &composed.publication().parts;
                assert_eq!(composed.publication().repository.as_str(), format!("shop-{number}"));
                for (part, of) in parts.iter().zip([number, next(number)]) {
                    let Some(of) = current(nodes, &format!("shop-{of}")).await else { return false };
                    let is_at = commit.is_none_or(|commit| commit_of(&of) == commit);
                    if !is_at || part.digest != Some(of.publication().digest) {
                        return false;
                    }
                }
            }
            true
        })
        .await;
    }
}

fn next(number: usize) -> usize {
    (number + 1) % REPOSITORIES
}

/// What all origins answer. `None`: they do not agree yet.
async fn current(nodes: &BTreeMap<usize, Node>, service: &str) -> Option<Descriptor> {
    let mut versions = Vec::new();
    for node in nodes.values() {
        let answer = node.get(&format!("/v1/services/{service}")).await;
        versions.push((answer.status == 200).then(|| Descriptor::parse(answer.body).unwrap())?);
    }
    versions.dedup_by_key(|version| version.version());
    (versions.len() == 1).then(|| versions.remove(0))
}
