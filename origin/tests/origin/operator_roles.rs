//! Operators by name: what each role is refused, and what one with `services` sees.

use weir_origin::config::{OperatorConfig, OperatorRole};
use weir_origin::{OperatorRequest, operator_requests};

use crate::lfs_server::LfsBehavior;
use crate::prelude::*;
use crate::several_operators::Pair;
use weir_store::testing::TestServer;

/// `printf %s TOKEN | sha256sum`
fn sha256(token: &str) -> Option<String> {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    Some(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// An operator whose token is `the-token-of-NAME`.
fn operator(name: &str, role: OperatorRole, services: Option<&str>, repositories: Option<&str>) -> OperatorConfig {
    let list = |pattern: Option<&str>| pattern.map(|pattern| vec![pattern.parse().unwrap()]);
    let mut operator = OperatorConfig::new(name.parse().unwrap(), role);
    operator.token_sha256 = sha256(&format!("the-token-of-{name}"));
    (operator.services, operator.repositories) = (list(services), list(repositories));
    operator
}

fn every_role() -> Vec<OperatorConfig> {
    OperatorRole::ALL
        .map(|role| operator(role.as_str(), role, None, (role == OperatorRole::Define).then_some("*")))
        .to_vec()
}

fn with_token(home: &Home, node: &Node, name: &str) -> Operator {
    Operator::without_token(home, node, None).with_token(format!("the-token-of-{name}").leak())
}

/// Refused for the role or the services of the operator.
fn is_refused(reply: &crate::operator::Reply) -> bool {
    reply.status == 403 && reply.problem().0 == "not-permitted"
}

#[tokio::test]
async fn each_role_is_refused_what_the_table_says() {
    let home = Home::new();
    let mut config = empty_config(&home);
    config.operators = every_role();
    config.operators.push(operator("limited", OperatorRole::Deliver, Some("other-*"), None));
    let node = home.start(config).await;
    let mut requests = 0;
    for OperatorRequest { methods, path, role, needs_all_services, .. } in operator_requests() {
        let Some(needed) = role else { continue };
        let is_about_a_service = path.contains("{service}");
        // Nothing has this name, so that nothing is changed, whoever is admitted.
        let path =
            path.split('/').map(|part| if part.starts_with('{') { "none" } else { part }).collect::<Vec<_>>().join("/");
        for method in methods.split(", ").map(|method| Method::from_bytes(method.as_bytes()).unwrap()) {
            for role in OperatorRole::ALL {
                let reply = with_token(&home, &node, role.as_str()).send(method.clone(), &path, &[], None).await.status;
                let is_admitted = !matches!(reply.as_u16(), 401 | 403 | 405);
                assert_eq!(
                    (is_admitted, reply == 403),
                    (role >= needed, role < needed),
                    "{role:?}: {method} {path}: {reply}"
                );
                requests += 1;
            }
            let reply = with_token(&home, &node, "limited").send(method.clone(), &path, &[], None).await.status;
            let lists = ["services", "repositories", "fleet/rows", "fleet/agents", "fleet/summary", "whoami"];
            // Freezes are decided by the services that they name, and plans are shown with those that the operator sees.
            let is_read = method == Method::GET || method == Method::HEAD;
            let is_open = path.strip_prefix("/v1/").is_some_and(|path| {
                lists.contains(&path) || path.starts_with("freezes") || (is_read && path.starts_with("rollouts"))
            });
            assert_eq!(reply == 403, !is_open, "{method} {path}: {reply}");
            assert!(!is_open || !needs_all_services && !is_about_a_service, "{path}");
        }
    }
    assert!(requests > 150, "{requests}");
    let nobody = with_token(&home, &node, "nobody").get("/v1/services").await;
    assert_eq!((nobody.status.as_u16(), nobody.problem().0), (401, "unauthorized"));
    // The token of all goes on as an admin; a certificate that no operator has is refused.
    assert_eq!(Operator::of(&home, &node).get("/v1/whoami").await.body["role"], "admin");
    let certified = Operator::without_token(&home, &node, Some("operator")).get("/v1/services").await;
    assert_eq!((certified.status.as_u16(), certified.problem().0), (403, "unknown-operator"));
    node.stop().await;
}

#[tokio::test]
async fn an_operator_with_services_sees_and_defines_only_these() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let git = serve(&upstream);
    let mut config = empty_config(&home);
    let mut ana = operator("ana", OperatorRole::Define, Some("shop-*"), Some("shop"));
    (ana.token_sha256, ana.certificate) = (None, Some("operator-1".parse().unwrap()));
    config.operators = vec![ana, operator("root", OperatorRole::Admin, None, None)];
    let node = home.start(config).await;
    let (root, ana) = (with_token(&home, &node, "root"), Operator::without_token(&home, &node, Some("operator")));
    for name in ["shop", "blog"] {
        assert_eq!(root.put(&format!("/v1/repositories/{name}"), repository_at(&git)).await.status, 201);
    }
    let document = |repository: &str| json!({ "repository": repository, "ref": "main", "folder": "deploy" });
    assert_eq!(root.put("/v1/services/blog-prod", document("blog")).await.status, 201);
    let me = ana.get("/v1/whoami").await.body;
    let version = env!("CARGO_PKG_VERSION");
    let expected =
        json!({ "name": "ana", "role": "define", "services": ["shop-*"], "by": "certificate", "version": version });
    assert_eq!(me, expected);

    let parts = |part: Value| json!({ "parts": [{ "repository": "shop", "ref": "main", "folder": "deploy", "to": "a" }, part] });
    for (name, document) in [
        ("blog-test", document("shop")),
        ("shop-prod", document("blog")),
        ("shop-prod", parts(json!({ "repository": "blog", "ref": "main", "to": "b" }))),
        ("shop-prod", parts(json!({ "service": "blog-prod", "to": "b" }))),
    ] {
        assert!(is_refused(&ana.put(&format!("/v1/services/{name}"), document.clone()).await), "{name}: {document}");
        let dry_run = ana.send(Method::POST, &format!("/v1/services/{name}/dry-run"), &[], Some(document)).await;
        assert!(is_refused(&dry_run), "{name}: {dry_run:?}");
    }
    assert_eq!(ana.put("/v1/services/shop-prod", document("shop")).await.status, 201);
    let names = async |list: &str| {
        let listed = ana.get(&format!("/v1/{list}")).await.body;
        listed[list].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names("services").await, names("repositories").await), (vec!["shop-prod".into()], vec!["shop".into()]));
    for path in
        ["/v1/services/blog-prod", "/v1/services/blog-prod/history", "/v1/services/blog-none", "/v1/repositories/blog"]
    {
        assert!(is_refused(&ana.get(path).await), "{path}");
    }
    assert!(is_refused(&ana.post("/v1/repositories/blog/refresh").await));
    assert_eq!(ana.post("/v1/repositories/shop/refresh").await.status, 202);

    let edge = Operator::as_edge(&home, &node);
    assert_eq!(crate::observed::report(&edge, crate::observed::message(1)).await.status, 204);
    let all = crate::observed::ask(&root, "/v1/fleet/rows").await;
    assert!(all["total"].as_u64().unwrap() > 0);
    for path in ["/v1/fleet/rows", "/v1/fleet/summary", "/v1/fleet/rows?repository=*"] {
        let seen = crate::observed::ask(&ana, path).await;
        let of_ana = all["rows"].as_array().unwrap().iter().filter(|row| row["service"] == "shop-prod").count();
        assert_eq!(seen["rows"].as_array().map_or(of_ana, Vec::len), of_ana, "{path}");
    }
    // Agents that run hers, and of these what she sees.
    let agents = crate::observed::ask(&ana, "/v1/fleet/agents").await;
    let mut expected = crate::observed::ask(&root, "/v1/fleet/agents").await["agents"].as_array().unwrap().clone();
    let rows_of = |agent: &Value| {
        let all = all["rows"].as_array().unwrap().iter();
        all.filter(|row| row["agent"] == agent["agent"] && row["service"] == "shop-prod").cloned().collect::<Vec<_>>()
    };
    expected.retain(|agent| !rows_of(agent).is_empty());
    for agent in &mut expected {
        let rows = rows_of(agent);
        agent["services"] = rows.len().into();
        agent["problems"] = rows.iter().filter(|row| row["problem"].is_object()).count().into();
    }
    assert!(!expected.is_empty() && agents["agents"] == json!(expected), "{agents}");
    assert!(is_refused(&ana.get("/v1/edges").await));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_that_takes_a_request_decides_and_its_owner_does_it() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) =
        (Box::pin(Pair::with(23, &server, |_, config| config.operators = every_role())).await, Upstream::small());
    let git = serve(&upstream);
    let root = [0, 1].map(|index| with_token(&pair.home, &pair.nodes[index], "admin"));
    assert_eq!(root[0].put("/v1/repositories/shop", repository_at(&git)).await.status, 201);
    let other = 1 - pair.owner("shop").await;
    let define = with_token(&pair.home, &pair.nodes[other], "define");
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    assert_eq!(define.put("/v1/services/shop-prod", document).await.status, 201);
    assert!(is_refused(
        &with_token(&pair.home, &pair.nodes[other], "view").post("/v1/repositories/shop/refresh").await
    ));
    let refreshed = with_token(&pair.home, &pair.nodes[other], "deliver").post("/v1/repositories/shop/refresh").await;
    assert_eq!(refreshed.status, 202, "{refreshed:?}");
    for node in pair.nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn the_state_of_a_repository_names_no_service_of_others() {
    let shop = Shop::new();
    let mut config = shop.config();
    also(&mut config, "plain").lfs = false;
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    config.operators = vec![
        operator("root", OperatorRole::View, None, None),
        operator("ana", OperatorRole::View, Some("plain"), None),
    ];
    let large = shop.server.store(&[7; 1 << 20]);
    shop.git.write("deploy/model.bin", &large);
    shop.git.commit_file("plain/a.txt", "1");
    shop.set_behavior(LfsBehavior { slow: true, only_object: Some(large), ..LfsBehavior::default() });
    let node = shop.home.start(config).await;
    shop.server.wait_for_slow_download().await;
    node.repository(|state| state.lfs.as_ref().is_some_and(|lfs| lfs.fetching)).await;
    for (name, expected) in [("root", json!(["shop-prod"])), ("ana", json!([]))] {
        let operator = with_token(&shop.home, &node, name);
        let (read, listed) = (operator.get("/v1/repositories/shop").await, operator.get("/v1/repositories").await);
        for shown in [&read.body, &listed.body["repositories"][0]] {
            assert_eq!(shown["status"]["lfs"]["services"], expected, "{name}: {shown}");
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_reload_applies_operators_at_once_or_not_at_all() {
    let home = Home::new();
    let mut config = empty_config(&home);
    config.operators =
        vec![operator("ana", OperatorRole::View, None, None), operator("bob", OperatorRole::Admin, None, None)];
    let node = home.start(config).await;
    let [ana, bob, changed] = ["ana", "bob", "ana-1"].map(|name| with_token(&home, &node, name));
    let certified = Operator::without_token(&home, &node, Some("operator"));
    let statuses = async || {
        let mut statuses = Vec::new();
        for operator in [&ana, &bob, &changed, &certified] {
            statuses.push(operator.get("/v1/whoami").await.status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [200, 200, 401, 403]);

    let row = |name: &str, token: &str| {
        let digest = sha256(&format!("the-token-of-{token}")).unwrap();
        format!("[[operator]]\nname = \"{name}\"\ntoken_sha256 = \"{digest}\"\nrole = \"deliver\"\n")
    };
    node.running.reload_file(&home.write_config(&row("ana", "ana-1"))).await.unwrap();
    assert_eq!(statuses().await, [401, 401, 200, 403]);
    assert_eq!(changed.get("/v1/whoami").await.body["role"], "deliver");

    let twice = row("ana", "ana-1") + &row("ana", "bob");
    let refused = node.running.reload_file(&home.write_config(&twice)).await.unwrap_err();
    assert!(format!("{refused:#}").contains("two operators have the name `ana`"), "{refused:#}");
    assert_eq!(statuses().await, [401, 401, 200, 403]);
    assert_eq!(node.metric("weir_origin_reloads_total{result=\"refused\"}").await, 1.0);
    let ready = node.admin("/readyz").await.1;
    assert!(ready.contains("degraded: ") && ready.contains("two operators"), "{ready}");

    // Without a list, every certificate of an operator is an admin's again. A file that was cut off must not do that.
    let refused = node.running.reload_changed_file(&home.write_config("")).await.unwrap_err();
    assert!(format!("{refused:#}").contains("1 of 1 operators"), "{refused:#}");
    assert_eq!(statuses().await, [401, 401, 200, 403]);
    node.running.reload_file(&home.write_config("")).await.unwrap();
    assert_eq!(statuses().await, [401, 401, 401, 200]);
    node.stop().await;
}

#[tokio::test]
async fn a_token_that_can_be_guessed_is_nobody_s() {
    let home = Home::new();
    let mut config = empty_config(&home);
    let mut short = operator("short", OperatorRole::Admin, None, None);
    short.token_sha256 = sha256("test");
    config.operators = vec![short];
    let node = home.start(config).await;
    let reply = Operator::without_token(&home, &node, None).with_token("test").get("/v1/services").await;
    assert_eq!(reply.status, 401, "{reply:?}");
    node.stop().await;
}

#[tokio::test]
async fn an_operator_changes_no_service_that_is_made_of_others() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let git = serve(&upstream);
    let mut config = empty_config(&home);
    let ana = operator("ana", OperatorRole::Define, Some("shop-*"), Some("shop"));
    let bob = operator("bob", OperatorRole::Define, None, Some("shop"));
    config.operators = vec![ana, bob, operator("root", OperatorRole::Admin, None, None)];
    let node = home.start(config).await;
    let [ana, bob, root] = ["ana", "bob", "root"].map(|name| with_token(&home, &node, name));
    for name in ["shop", "payments"] {
        assert_eq!(root.put(&format!("/v1/repositories/{name}"), repository_at(&git)).await.status, 201);
    }
    let document = |repository: &str| json!({ "repository": repository, "ref": "main", "folder": "deploy" });
    let composed = json!({ "parts": [{ "repository": "shop", "ref": "main", "folder": "deploy", "to": "a" },
        { "service": "shop-prod", "to": "b" }] });
    for (name, document) in [("payments", document("payments")), ("shop-prod", document("shop")), ("other", composed)] {
        let put = root.put(&format!("/v1/services/{name}"), document).await;
        assert_eq!(put.status, 201, "{put:?}");
    }
    assert!(is_refused(&bob.put("/v1/services/payments", document("shop")).await));
    assert!(is_refused(&bob.send(Method::DELETE, "/v1/services/payments", &[], None).await));
    for path in ["/v1/services/shop-prod", "/v1/services/shop-prod?cascade=true"] {
        let refused = ana.send(Method::DELETE, path, &[], None).await;
        assert!(is_refused(&refused) && !refused.body.to_string().contains("other"), "{refused:?}");
    }
    assert_eq!(bob.send(Method::DELETE, "/v1/services/shop-prod", &[], None).await.status, 409);
    assert_eq!(bob.send(Method::DELETE, "/v1/services/shop-prod?cascade=true", &[], None).await.status, 204);
    node.stop().await;
}
