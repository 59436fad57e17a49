//! Composed services of a cluster, whose parts belong to other origins.

use std::collections::BTreeMap;

use futures_util::future::select_ok;
use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use weir_origin::versions::ChangeRequest;
use weir_protocol::freshness::Freshness;
use weir_protocol::token::PublicKey;
use weir_store::testing::TestServer;

use crate::prelude::*;
use crate::several_operators::Pair;
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
        // What is asked of an owner needs one that keeps its session on a busy machine.
        config.cluster.as_mut().unwrap().session_ttl = Some(Duration::from_secs(10));
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
        both_own_some(&nodes).await;
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
        let (versions, change) = (nodes[&other].running.versions(), ChangeRequest::default());
        let service = part.parse().unwrap();
        let has = async |nodes: &BTreeMap<usize, Node>, digest: TarballDigest| {
            let now = current(nodes, &composed).await;
            now.is_some_and(|now| now.publication().parts[1].digest == Some(digest))
        };
        let ahead = current(&nodes, &part).await.unwrap().publication().digest;
        // Its owner tells the other one: the parts are not resolved again by the clock meanwhile. That may happen once.
        let by_clock = async || nodes[&home].metric("weir_origin_parts_resolved_again_total").await;
        let mut is_told = false;
        for _ in 0..3 {
            let (resolved, costs) = (by_clock().await, costs(&nodes[&home]).await);
            until(async || versions.roll_back(&service, &before, change.clone()).await.is_ok()).await;
            until(async || has(&nodes, before).await).await;
            is_told = by_clock().await == resolved;
            for (series, after) in self::costs(&nodes[&home]).await {
                let cost = after - costs.get(&series).unwrap_or(&0.0);
                if cost > 0.0 {
                    println!("a part of another owner: {series} +{cost}");
                }
            }
            if is_told {
                break;
            }
            versions.unpin(&service, change.clone()).await.unwrap();
            until(async || has(&nodes, ahead).await).await;
        }
        assert!(is_told, "the clock alone published what the part is");

        // The owner of the part says how fresh it is.
        until(async || {
            let signed = statements(&self.hub.home, &nodes[&home], &[&composed]).await;
            let stated = signed.first().and_then(|signed| Freshness::signed_by(&signed.envelope, &self.key));
            assert!(nodes[&other].running.trigger_poll(&part.parse().unwrap()));
            stated.is_some_and(|stated| stated.upstream_unreachable_since.is_some())
        })
        .await;

        // Its owner dies, and the other part changes.
        self.hub.upstream.give_back();
        nodes.remove(&other).unwrap().running.cut().await;
        let commit = self.hub.upstream.push("deploy/app.yaml", b"replicas: 3\n");
        let revision = format!("sha1:{commit}");
        until(async || {
            nodes[&home].running.trigger_poll(&format!("shop-{number}").parse().unwrap());
            let now = current(&nodes, &composed).await.unwrap();
            now.publication().parts[0].revision_id.as_str() == revision
        })
        .await;
        assert!(has(&nodes, before).await, "the pin holds");
        have_one_owner_each(&nodes).await;
        nodes[&home].running.versions().unpin(&service, change).await.unwrap();
        self.are_composed_of(&nodes, Some(&commit)).await;

        // Owners die in the middle of a build: of a part, and of what is composed.
        nodes.insert(other, self.start(other).await);
        for built in ["shop-", "composed-"] {
            both_own_some(&nodes).await;
            let dead = self.cut_while_building(&mut nodes, built).await;
            have_one_owner_each(&nodes).await;
            let commit = self.hub.upstream.push("deploy/app.yaml", format!("dead: {dead}\n{built}: 1\n").as_bytes());
            self.are_composed_of(&nodes, Some(&commit)).await;
            nodes.insert(dead, self.start(dead).await);
        }
        for node in nodes.into_values() {
            node.stop().await;
        }
    }

    /// Pushes until an origin builds a service whose name begins like this, and cuts that off. Returns which one.
    async fn cut_while_building(&self, nodes: &mut BTreeMap<usize, Node>, name: &str) -> usize {
        for pushes in 0.. {
            let mut building = Vec::new();
            for (index, node) in nodes.iter() {
                let repositories = (0..REPOSITORIES).map(|number| format!("shop-{number}").parse().unwrap());
                for mut state in repositories.filter_map(|repository| node.running.repository(&repository)) {
                    let is_it = |state: &RepositoryState| {
                        state.building.iter().any(|(service, _)| service.as_str().starts_with(name))
                    };
                    building.push(Box::pin(async move { state.wait_for(is_it).await.map(|_| *index) }));
                }
            }
            let commit = self.hub.upstream.push("deploy/app.yaml", format!("{name}: {pushes}\n").as_bytes());
            let dead = tokio::select! {
                biased;
                Ok((index, _)) = select_ok(building) => index,
                // It was too fast.
                () = self.are_composed_of(nodes, Some(&commit)) => continue,
            };
            nodes.remove(&dead).unwrap().running.cut().await;
            return dead;
        }
        unreachable!("it pushes for ever")
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

/// Waits until each repository has an owner, and each of two origins owns some.
async fn both_own_some(nodes: &BTreeMap<usize, Node>) {
    until(async || {
        let mut owners = 0;
        for node in nodes.values() {
            owners += usize::from(!owned(node).await.is_empty());
        }
        owners == 2
    })
    .await;
    have_one_owner_each(nodes).await;
}

/// What an origin has built and requested of its store.
async fn costs(node: &Node) -> BTreeMap<String, f64> {
    let all = node.admin("/metrics").await.1;
    let lines = all.lines().filter_map(|line| line.rsplit_once(' '));
    let of_costs =
        ["weir_origin_frames_total", "weir_origin_store_requests_total", "weir_origin_record_requests_total"];
    let lines = lines.filter(|(series, _)| of_costs.iter().any(|name| series.starts_with(name)));
    lines.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_moves_between_owners_and_is_deleted_defined_again_and_older() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) = (Box::pin(Pair::start(16, &server)).await, Upstream::small());
    let git = serve(&upstream);
    let mut of = [None, None];
    for number in 0.. {
        let name = format!("shop-{number}");
        let made = pair.operators[0].put(&format!("/v1/repositories/{name}"), repository_at(&git)).await;
        assert_eq!(made.status, 201, "{made:?}");
        of[pair.owner(&name).await].get_or_insert(name);
        if of.iter().all(Option::is_some) {
            break;
        }
    }
    let [Some(home), Some(away)] = of else { unreachable!("each owns one") };
    let [operator, _] = &pair.operators;
    let define = async |name: &str, document: Value| {
        let made = operator.put(&format!("/v1/services/{name}"), document).await;
        assert!(made.status.is_success(), "{made:?}");
    };
    define("values", json!({ "repository": home, "ref": "main", "folder": "deploy" })).await;
    define("chart", json!({ "repository": home, "ref": "main", "folder": "docs" })).await;
    let parts = json!([{ "service": "values", "to": "values" }, { "service": "chart", "to": "chart" }]);
    define("shop", json!({ "parts": parts })).await;
    let chart = |now: &Descriptor| now.publication().parts.iter().find(|part| part.to == "chart").unwrap().clone();
    pair.nodes[0].published_of("shop", |now| chart(now).repository.as_str() == home).await;

    // It moves to a repository of the other origin, and is followed there.
    let moved = json!({ "repository": away, "ref": "main" });
    define("chart", moved.clone()).await;
    let is_away = |now: &Descriptor| chart(now).repository.as_str() == away;
    let mut last = pair.nodes[0].published_of("shop", is_away).await;

    let failed = async |why: &str| {
        let mut condition = pair.nodes[0].running.condition(&"shop".parse().unwrap()).unwrap();
        let is = |now: &Condition| matches!(now, Condition::Unhealthy { reason, .. } if reason.contains(why));
        in_time(condition.wait_for(is)).await.unwrap();
    };
    for again in [json!({ "repository": home, "ref": "main", "folder": "docs" }), moved] {
        assert_eq!(operator.delete("/v1/services/chart?cascade=true").await.status, 204);
        failed("(service `chart`): it was deleted, and is not published again yet").await;
        define("chart", again).await;
        last = pair.nodes[0].published_of("shop", |now| chart(now).digest != chart(&last).digest).await;
    }

    // Its record is an older copy: what is composed stays, until an operator wants the older version.
    let bucket = AmazonS3Builder::new().with_bucket_name("weir-hub").with_region("us-east-1").with_allow_http(true);
    let bucket = bucket.with_access_key_id("id").with_secret_access_key("secret").with_endpoint(&server.endpoint);
    let (bucket, record) = (bucket.build().unwrap(), format!("prod/_records/repositories/{away}").into());
    let older = bucket.get(&record).await.unwrap().bytes().await.unwrap();
    upstream.push("docs/readme.md", b"other words\n");
    assert!(pair.nodes[1].running.trigger_poll(&away.parse().unwrap()));
    let newer = pair.nodes[0].published_of("shop", |now| chart(now).digest != chart(&last).digest).await;
    bucket.put(&record, older.into()).await.unwrap();
    upstream.push("deploy/app.yaml", b"replicas: 2\n");
    assert!(pair.nodes[0].running.trigger_poll(&home.parse().unwrap()));
    failed(&format!("which was used: the store may have an older copy of its record. To publish it all the same, refresh repository `{home}`")).await;
    let stays = pair.nodes[0].published_of("shop", |_| true).await;
    assert_eq!(chart(&stays), chart(&newer));
    assert_eq!(operator.post(&format!("/v1/repositories/{home}/refresh")).await.status, 202);
    pair.nodes[0].published_of("shop", |now| chart(now).digest == chart(&last).digest).await;
    let [first, second] = pair.nodes;
    first.stop().await;
    second.stop().await;
}
