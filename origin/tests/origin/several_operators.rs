//! Operators at any origin of a cluster, and who may call its members.

use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use weir_origin::config::{ClusterConfig, EngineName, StoreConfig};
use weir_protocol::descriptor::Generation;

use crate::artifacts;
use crate::node::Edge;
use crate::prelude::*;
use crate::registry_server::RegistryServer;
use crate::several_origins::address;
use weir_store::testing::TestServer;

/// Enough that each of two origins owns some.
const REPOSITORIES: usize = 6;

/// The form of a signature, of nothing.
const UNSIGNED: &str = "sha256=0000000000000000000000000000000000000000000000000000000000000000";

/// The credentials of a bucket, and certificates for two origins.
fn home_of(test: u8) -> Home {
    let home = Home::of_hosts(&[address(test, 1), address(test, 2)]);
    ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
    home
}

/// An origin on a bucket, with nothing in its file.
pub(crate) fn member(home: &Home, server: &TestServer, test: u8, index: u8) -> Config {
    let mut config = empty_config(home);
    config.name = format!("origin-{index}").parse().unwrap();
    config.data_dir = home.file(&format!("data-{index}"));
    config.listen = format!("{}:7400", address(test, index)).parse().unwrap();
    config.store = StoreConfig {
        url: Some("s3://weir-hub/prod".to_owned()),
        endpoint: Some(server.endpoint.clone()),
        allow_http: true,
        access_key_id_file: Some(home.file("id")),
        secret_access_key_file: Some(home.file("secret")),
        ..StoreConfig::default()
    };
    config.cluster = Some(ClusterConfig {
        engine: EngineName::Bucket,
        advertise: format!("https://{}", config.listen),
        zone: None,
        weight: 1,
        session_ttl: Some(Duration::from_secs(10)),
        etcd: None,
    });
    config
}

/// Two origins of one bucket.
pub(crate) struct Pair {
    pub(crate) home: Home,
    pub(crate) nodes: [Node; 2],
    pub(crate) operators: [Operator; 2],
}

impl Pair {
    pub(crate) async fn start(test: u8, server: &TestServer) -> Self {
        Box::pin(Self::with(test, server, |_, _| {})).await
    }

    /// `define`: what the file of an origin, 1 or 2, defines.
    pub(crate) async fn with(test: u8, server: &TestServer, define: impl Fn(u8, &mut Config)) -> Self {
        server.create_bucket("weir-hub").await;
        let home = home_of(test);
        let config = |index: u8| {
            let mut config = member(&home, server, test, index);
            define(index, &mut config);
            config
        };
        let (first, second) = tokio::join!(home.start(config(1)), home.start(config(2)));
        let operators = [Operator::of(&home, &first), Operator::of(&home, &second)];
        let pair = Self { nodes: [first, second], operators, home };
        until(async || {
            let mut joined = 0;
            for node in &pair.nodes {
                joined += node.status().await["cluster"]["others"].as_array().map_or(0, Vec::len);
            }
            joined == 2
        })
        .await;
        pair
    }

    /// The index of the origin that owns a repository.
    pub(crate) async fn owner(&self, repository: &str) -> usize {
        for (index, node) in self.nodes.iter().enumerate() {
            let status = node.status().await;
            let owned = status["cluster"]["owned"].as_array().unwrap();
            if owned.iter().any(|owned| owned["repository"] == repository) {
                return index;
            }
        }
        panic!("nobody owns {repository}");
    }

    async fn forwarded(&self, node: usize, labels: &str) -> f64 {
        self.nodes[node].metric(&format!("weir_origin_member_requests_total{{{labels}}}")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_origin_answers_operators_as_the_owner_would() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) = (Box::pin(Pair::start(3, &server)).await, Upstream::small());
    let git = serve(&upstream);
    let mut of = [None, None];
    for number in 0..REPOSITORIES {
        let (name, by) = (format!("shop-{number}"), &pair.operators[number % 2]);
        let made = by.put(&format!("/v1/repositories/{name}"), repository_at(&git)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let document = json!({ "repository": name, "ref": "main", "folder": "deploy" });
        let made = pair.operators[(number + 1) % 2].put(&format!("/v1/services/{name}"), document).await;
        assert_eq!(made.status, 201, "{made:?}");
        // A read right after a write sees it, everywhere.
        for operator in &pair.operators {
            let listed = operator.get("/v1/services?limit=1000").await.body;
            let listed = listed["services"].as_array().unwrap();
            assert!(listed.iter().any(|each| each["name"] == name.as_str()), "{listed:?}");
            let read = operator.get(&format!("/v1/services/{name}")).await;
            assert_eq!((read.status.as_u16(), &read.etag[..9]), (200, &made.etag[..9]), "{read:?}");
        }
        of[pair.owner(&name).await].get_or_insert(name);
    }
    let [Some(one), Some(two)] = of else { panic!("each owns some: {of:?}") };

    // Both list the same members, and what each owns.
    let listed = pair.operators[0].get("/v1/members?repositories").await;
    assert_eq!((listed.status.as_u16(), &listed.body["unowned"]["repositories"]), (200, &json!(0)), "{listed:?}");
    for (index, owned) in [&one, &two].into_iter().enumerate() {
        let member = &listed.body["members"][index];
        assert_eq!([&member["name"], &member["state"]], [&json!(format!("origin-{}", index + 1)), &json!("active")]);
        let names = member["owns"]["names"].as_array().unwrap();
        assert!(names.contains(&json!(owned)) && member["owns"]["repositories"] == names.len(), "{member}");
    }
    assert_eq!(pair.operators[1].get("/v1/members?repositories").await.body, listed.body);

    // Preconditions, names and refusals pass unchanged.
    let path = format!("/v1/services/{two}");
    let refused = pair.operators[0].send(Method::DELETE, &path, &[("if-match", "\"other\"")], None).await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (412, "precondition-failed"));
    until(async || pair.operators[0].get(&path).await.body["status"]["published"].is_object()).await;
    let certified = Operator::without_token(&pair.home, &pair.nodes[0], Some("operator"));
    let pinned = certified.send(Method::PUT, &format!("{path}/pin"), &[], None).await;
    let me = certified.get("/v1/whoami").await.body;
    assert_eq!([&me["name"], &me["role"], &me["by"]], ["operator-1", "admin", "certificate"]);
    assert!(me["services"].is_null(), "{me}");
    assert_eq!((pinned.status.as_u16(), &pinned.body["status"]["condition"]), (200, &json!("pinned")), "{pinned:?}");
    assert_eq!(pair.operators[0].delete(&format!("{path}/pin")).await.status, 200);
    assert_eq!(pair.operators[0].get("/v1/services/none").await.problem().0, "no-such-service");
    let orphan = pair.operators[0].put("/v1/services/orphan", json!({ "repository": "none" })).await;
    assert_eq!((orphan.status.as_u16(), orphan.problem().0), (409, "repository-missing"), "{orphan:?}");
    // An owner decides by what the other one has just written.
    let document = |of: &str| json!({ "repository": of, "ref": "main", "folder": "deploy" });
    assert_eq!(pair.operators[0].put("/v1/services/new", document(&one)).await.status, 201);
    let is_new = [("if-none-match", "*")];
    let again = pair.operators[1].send(Method::PUT, "/v1/services/new", &is_new, Some(document(&two))).await;
    assert!(matches!(again.status.as_u16(), 409 | 412), "{again:?}");
    let dry_run = pair.operators[0].post(&format!("{path}/dry-run")).await;
    assert_eq!((dry_run.status.as_u16(), &dry_run.body["service"]), (200, &json!(two)), "{dry_run:?}");

    // The owner verifies a delivery.
    let nobody = Operator::without_token(&pair.home, &pair.nodes[0], None);
    let headers = [("x-github-event", "push"), ("x-hub-signature-256", UNSIGNED)];
    let delivery = nobody.send(Method::POST, &format!("/v1/webhooks/github/{two}"), &headers, Some(json!({}))).await;
    assert_eq!((delivery.status.as_u16(), delivery.problem().0), (401, "webhook-refused"));
    assert_eq!(pair.forwarded(0, "kind=\"webhook\",status=\"401\"").await, 1.0);

    // A service moves to a repository of the other owner: both agree, and its generation grows.
    let current = async |index: usize| {
        let answer = pair.nodes[index].get(&format!("/v1/services/{one}")).await;
        (answer.status == 200).then(|| Descriptor::parse(answer.body).unwrap())
    };
    until(async || current(0).await.is_some()).await;
    let before = current(0).await.unwrap();
    let mut reader = Reader::of(&pair.home.client("edge-client"), &pair.nodes[0], "").await;
    let document = json!({ "repository": two, "ref": "main", "folder": "deploy" });
    let moved = pair.operators[0].put(&format!("/v1/services/{one}"), document).await;
    assert_eq!(moved.status, 200, "{moved:?}");
    for index in [0, 1] {
        until(async || current(index).await.is_some_and(|now| now.publication().repository.as_str() == two)).await;
        let now = current(index).await.unwrap();
        assert!(now.publication().generation > before.publication().generation, "{now:?}");
    }
    let no_longer_vouches = |kind: &EventKind| {
        assert!(!matches!(kind, EventKind::Tombstone { .. }), "it is not gone: {kind:?}");
        matches!(kind, EventKind::Released(repository) if repository.as_str() == one)
    };
    reader.until(no_longer_vouches).await;

    // It comes back: the old mark does not hold it.
    let before = current(0).await.unwrap();
    let document = json!({ "repository": one, "ref": "main", "folder": "deploy" });
    assert_eq!(pair.operators[1].put(&format!("/v1/services/{one}"), document).await.status, 200);
    until(async || current(1).await.is_some_and(|now| now.publication().repository.as_str() == one)).await;
    assert!(current(1).await.unwrap().publication().generation > before.publication().generation);
    let gone = pair.operators[0].delete(&format!("/v1/repositories/{two}?cascade=true")).await;
    assert_eq!(gone.status, 204, "{gone:?}");
    for operator in &pair.operators {
        assert_eq!(operator.get(&format!("/v1/repositories/{two}")).await.status, 404);
        assert_eq!(operator.get(&path).await.status, 404);
    }
    for node in pair.nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_stays_while_its_owner_cannot_be_asked() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) = (Box::pin(Pair::start(5, &server)).await, Upstream::small());
    let git = serve(&upstream);
    let mut of = [None, None];
    for number in 0..REPOSITORIES {
        let name = format!("shop-{number}");
        let made = pair.operators[1].put(&format!("/v1/repositories/{name}"), repository_at(&git)).await;
        assert_eq!(made.status, 201, "{made:?}");
        of[pair.owner(&name).await].get_or_insert(name);
    }
    let [Some(one), Some(two)] = of else { panic!("each owns some: {of:?}") };

    // The first origin has not read its record: the owner verifies the delivery. One without a proof does not reach it.
    let mut number = REPOSITORIES;
    let unread = loop {
        let name = format!("shop-{number}");
        let made = pair.operators[1].put(&format!("/v1/repositories/{name}"), repository_at(&git)).await;
        assert_eq!(made.status, 201, "{made:?}");
        if pair.owner(&name).await == 1 {
            break name;
        }
        number += 1;
    };
    let nobody = Operator::without_token(&pair.home, &pair.nodes[0], None);
    let path = format!("/v1/webhooks/github/{unread}");
    let push = ("x-github-event", "push");
    assert_eq!(nobody.send(Method::POST, &path, &[push], Some(json!({}))).await.status, 401);
    assert_eq!(pair.forwarded(0, "kind=\"webhook\",status=\"401\"").await, 0.0);
    let signed = [push, ("x-hub-signature-256", UNSIGNED)];
    // Unknown names are looked up once a second at most.
    until(async || {
        assert_eq!(nobody.send(Method::POST, &path, &signed, Some(json!({}))).await.status, 401);
        pair.forwarded(0, "kind=\"webhook\",status=\"401\"").await == 1.0
    })
    .await;

    let document = |of: &str| json!({ "repository": of, "ref": "main", "folder": "deploy" });
    let made = pair.operators[1].put("/v1/services/moving", document(&one)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let Pair { nodes: [first, second], operators, .. } = pair;
    until(async || second.get("/v1/services/moving").await.status == 200).await;
    first.running.cut().await;
    let refused = operators[1].put("/v1/services/moving", document(&two)).await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (503, "owner-unreachable"), "{refused:?}");
    let listed = operators[1].get("/v1/services?limit=1000").await.body;
    let moving = listed["services"].as_array().unwrap().iter().find(|each| each["name"] == "moving").unwrap();
    assert_eq!(moving["repository"], json!(one), "{moving}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_origin_s_certificate_opens_the_requests_of_members() {
    let Some(server) = TestServer::moto() else { return };
    let pair = Box::pin(Pair::start(4, &server)).await;
    let git = serve(&Upstream::small());
    let made = pair.operators[0].put("/v1/repositories/shop", repository_at(&git)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let owner = pair.owner("shop").await;
    let at = |node: usize, certificate: &str| Edge {
        client: pair.home.client(certificate),
        origin: pair.nodes[node].running.address().to_string(),
    };
    // Members read it in the record of each other.
    let bucket = AmazonS3Builder::new().with_bucket_name("weir-hub").with_region("us-east-1").with_allow_http(true);
    let bucket = bucket.with_access_key_id("id").with_secret_access_key("secret").with_endpoint(&server.endpoint);
    let bucket = bucket.build().unwrap();
    let mut secrets = Vec::new();
    for index in [1, 2] {
        let record = bucket.get(&format!("prod/_records/nodes/origin-{index}").into()).await.unwrap();
        let record = record.bytes().await.unwrap();
        let json = record.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        let node: Value = serde_json::from_slice(json).unwrap();
        secrets.push(node["secret"].as_str().unwrap().to_owned());
    }
    let by = |node: usize| [("weir-caller", "somebody"), ("weir-member-secret", secrets[node].as_str())];
    let caller = by(owner);
    let messages = ["ask/shop", "tell/shop", "changed/shop", "operator/v1/repositories/shop/refresh"];
    for path in messages.map(|path| format!("/v1/members/{path}")) {
        let as_edge = at(owner, "edge-client").request(Method::POST, &path, &caller).await;
        assert_eq!((as_edge.status.as_u16(), as_edge.problem().0.as_str()), (404, "no-such-path"), "{path}");
        for certificate in ["agent", "operator"] {
            let answer = at(owner, certificate).request(Method::POST, &path, &caller).await;
            assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (401, "unauthorized"), "{path}");
        }
        let as_member = at(owner, "origin").request(Method::POST, &path, &caller).await;
        assert!(as_member.status.is_success(), "{path}: {as_member:?}");
    }
    let (member, path) = (at(owner, "origin"), "/v1/members/operator/v1/repositories/shop");
    let read = member.request(Method::GET, path, &caller).await;
    assert_eq!((read.status.as_u16(), read.header("etag").len() > 10), (200, true), "{read:?}");
    for shown in [&caller[..1], &[caller[0], by(1 - owner)[1]]] {
        let refused = member.request(Method::GET, path, shown).await;
        assert_eq!((refused.status.as_u16(), refused.problem().0.as_str()), (503, "not-a-member"), "{refused:?}");
    }
    for (role, status) in [("view", 200), ("auditor", 403)] {
        let answer = member.request(Method::GET, path, &[caller[0], caller[1], ("weir-caller-role", role)]).await;
        assert_eq!(answer.status, status, "{role}: {answer:?}");
        assert!(status == 200 || answer.problem().0 == "unknown-role", "{answer:?}");
    }
    for nameless in [&[][..], &[("weir-caller", "not a name")]] {
        assert_eq!(member.request(Method::GET, path, nameless).await.problem().0, "malformed-request");
    }
    assert_eq!(member.request(Method::GET, "/v1/members/ask/shop", &[]).await.header("allow"), "POST");
    assert_eq!(member.get("/v1/members").await.status, 200);
    assert_eq!(member.get("/v1/members/none").await.status, 404);

    for path in messages.map(|path| format!("/v1/members/{path}")) {
        let from_elsewhere = [caller[0], ("weir-cluster", "another")];
        let answer = at(owner, "origin").request(Method::POST, &path, &from_elsewhere).await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (421, "another-cluster"), "{path}");
    }

    // It is passed on once.
    let twice = at(1 - owner, "origin").request(Method::GET, path, &by(1 - owner)).await;
    assert_eq!((twice.status.as_u16(), twice.problem().0.as_str()), (503, "no-owner"), "{twice:?}");
    assert_eq!(twice.header("retry-after"), "2");
    for node in pair.nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_differ_are_named_where_they_contradict_each_other() {
    let Some(server) = TestServer::moto() else { return };
    let upstream = Upstream::small();
    let define = |index: u8, config: &mut Config| {
        for number in 0..REPOSITORIES {
            let name: RepositoryName = format!("shop-{number}").parse().unwrap();
            let service = |named: String| {
                let mut service = ServiceConfig::new(named.parse().unwrap(), name.clone());
                service.folder = "deploy".parse().unwrap();
                service
            };
            config.repositories.push(RepositoryConfig::new(name.clone(), upstream.url().as_str()));
            config.services.push(service(format!("same-{number}")));
            let mut other = service(format!("other-{number}"));
            other.followed_ref = format!("refs/heads/of-{index}").parse().unwrap();
            config.services.push(other);
            if index == 1 {
                config.services.push(service(format!("more-{number}")));
            }
        }
    };
    let pair = Box::pin(Pair::with(7, &server, define)).await;
    let owned_by =
        async |node: &Node| node.status().await["cluster"]["owned"][0]["repository"].as_str().map(str::to_owned);
    until(async || owned_by(&pair.nodes[0]).await.is_some() && owned_by(&pair.nodes[1]).await.is_some()).await;
    let repository = owned_by(&pair.nodes[1]).await.unwrap();
    let number = repository.strip_prefix("shop-").unwrap();
    let [first, second] = &pair.operators;

    let listed = first.get(&format!("/v1/services?limit=1000&repository={repository}")).await.body;
    assert_eq!(listed["services"].as_array().unwrap().len(), 3, "{listed}");
    for (name, status) in [("same", 200), ("other", 409), ("more", 409)] {
        let read = first.get(&format!("/v1/services/{name}-{number}")).await;
        assert_eq!(read.status, status, "{name}: {read:?}");
        if status == 409 {
            let (kind, detail) = read.problem();
            assert!(kind == "configurations-differ" && detail.contains("origin `origin-2`"), "{detail}");
        }
    }
    let missing = second.get(&format!("/v1/services/more-{number}")).await;
    let (kind, detail) = missing.problem();
    assert!(
        missing.status == 404 && kind == "no-such-service" && detail.contains("not this origin's: origin-1"),
        "{detail}"
    );
    for node in &pair.nodes {
        until(async || node.admin("/readyz").await.0 == 200).await;
        let lines = node.admin("/readyz").await.1;
        assert!(lines.contains("degraded: 1 members of the cluster have another"), "{lines}");
    }

    // Its owner dies, and its session has not ended yet.
    let [node, dead] = pair.nodes;
    dead.running.cut().await;
    let read = first.get(&format!("/v1/services/same-{number}")).await;
    let change = first.post(&format!("/v1/repositories/{repository}/refresh")).await;
    for (answer, expected) in [(read, "Nothing was changed"), (change, "Whether the change was made is not known")] {
        let (kind, detail) = answer.problem();
        assert!(answer.status == 503 && kind == "owner-unreachable" && detail.contains(expected), "{detail}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_member_follows_its_file() {
    let Some(server) = TestServer::moto() else { return };
    server.create_bucket("weir-hub").await;
    let (home, upstream) = (home_of(8), Upstream::small());
    let node = home.start(member(&home, &server, 8, 1)).await;
    // Otherwise the store may have lost what operators defined, and no name is absent.
    let git = serve(&upstream);
    let operator = Operator::of(&home, &node);
    until(async || operator.put("/v1/repositories/other", repository_at(&git)).await.status.is_success()).await;
    let reload = async |names: &[&str]| {
        let defined = names.iter().map(|name| {
            let url = upstream.url();
            format!(
                "[[repository]]\nname = \"{name}\"\nurl = \"{url}\"\n\n\
                 [[service]]\nname = \"{name}\"\nrepository = \"{name}\"\nref = \"main\"\nfolder = \"deploy\"\n\n"
            )
        });
        node.running.reload_file(&home.write_config(&defined.collect::<String>())).await.unwrap();
    };
    let generation = async |service: &str| -> Result<Generation, u16> {
        let answer = node.get(&format!("/v1/services/{service}")).await;
        if answer.status != 200 {
            return Err(answer.status.as_u16());
        }
        Ok(Descriptor::parse(answer.body).unwrap().publication().generation)
    };
    reload(&["shop"]).await;
    until(async || generation("shop").await.is_ok()).await;
    let before = generation("shop").await.unwrap();
    let mut reader = Reader::of(&home.client("edge-client"), &node, "").await;

    reload(&["blog"]).await;
    until(async || generation("blog").await.is_ok()).await;
    loop {
        let event = in_time(reader.next()).await.unwrap();
        if let EventKind::Tombstone { service, .. } = event.kind {
            assert_eq!(service.as_str(), "shop");
            break;
        }
    }
    // An edge without the tombstone learns it, too.
    until(async || generation("shop").await == Err(404)).await;
    assert!(node.running.repository(&"shop".parse().unwrap()).is_none(), "it is not polled any longer");

    reload(&["blog", "shop"]).await;
    until(async || generation("shop").await.is_ok()).await;
    assert!(generation("shop").await.unwrap() > before);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_owner_of_an_artifact_asks_for_its_manifest_alone() {
    let Some(server) = TestServer::moto() else { return };
    let registry = RegistryServer::start(None);
    registry.push_archive("acme/shop", "v1", &[("map.yaml", "a: 1")]);
    let keys = json!({ "insecure": true });
    let of_one = artifacts::config(&Home::new(), &registry.url("acme/shop"), &keys, &[("shop", "v1")]);
    let define = |_: u8, config: &mut Config| {
        let Config { repositories, services, upstreams, .. } = of_one.clone();
        (config.repositories, config.services, config.upstreams) = (repositories, services, upstreams);
    };
    let pair = Box::pin(Pair::with(10, &server, define)).await;
    let name = of_one.repositories[0].name.to_string();
    let owns = async |node: &Node| {
        let status = node.status().await;
        status["cluster"]["owned"].as_array().unwrap().iter().any(|owned| owned["repository"] == name.as_str())
    };
    until(async || owns(&pair.nodes[0]).await || owns(&pair.nodes[1]).await).await;
    let owner = pair.owner(&name).await;
    pair.nodes[owner].published_of("shop", |_| true).await;
    assert!(registry.requests().iter().any(|request| request.contains("/blobs/")));

    let Pair { nodes: [first, second], .. } = pair;
    let (stopping, staying) = if owner == 0 { (first, second) } else { (second, first) };
    stopping.stop().await;
    until(async || owns(&staying).await).await;
    staying.repository(|state| state.applied_polls > 0).await;
    let requests = registry.requests();
    let manifests = ["200 HEAD /v2/acme/shop/manifests/v1", "200 GET /v2/acme/shop/manifests/sha256:"];
    assert_eq!(requests.len(), 2, "what is published is not downloaded again: {requests:?}");
    assert!(requests.iter().zip(manifests).all(|(request, expected)| request.starts_with(expected)), "{requests:?}");
    staying.stop().await;
}
