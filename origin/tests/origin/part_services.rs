//! Services whose parts are services.

use weir_origin::versions::ChangeRequest;
use weir_protocol::freshness::Freshness;
use weir_protocol::name::ServiceName;
use weir_protocol::part::{self, Part};

use crate::composed::has_part;
use crate::helm_repository::{Charts, failure, publish};
use crate::prelude::*;
use crate::signing::{new_key, statements};

fn named(name: &str) -> ServiceName {
    name.parse().unwrap()
}

/// The chart `shop-chart`, and `shop-prod` of it and of the folder `deploy` of the Git repository `shop`.
fn config(home: &Home, charts: &Charts, upstream: &Upstream) -> Config {
    let mut config = crate::composed::config(home, charts, upstream);
    let chart = json!({ "name": "shop-chart", "repository": "charts", "chart": "shop", "ref": "semver:^1" });
    let composed = json!({ "name": "shop-prod", "parts": [
        { "service": "shop-chart", "to": "chart" },
        { "repository": "shop", "ref": "main", "folder": "deploy", "to": "a/values" },
    ]});
    config.services = [chart, composed].map(|each| serde_json::from_value(each).unwrap()).to_vec();
    config
}

/// A service is published with this tarball of a service as a part.
fn has_tarball(to: &str, digest: TarballDigest) -> impl Fn(&Descriptor) -> bool {
    let to = to.to_owned();
    move |descriptor| {
        let mut parts = descriptor.publication().parts.iter();
        parts.any(|part| part.to == to && part.digest == Some(digest))
    }
}

#[tokio::test]
async fn what_a_service_publishes_is_a_part_and_its_rollbacks_pass_through() {
    let (home, charts, upstream) = (Home::new(), Charts::start(), Upstream::small());
    publish(&charts, "1.0.0", "a: 1");
    let (mut config, (key_file, key)) = (config(&home, &charts, &upstream), new_key(&home, "signing.key"));
    config.signing.keys = vec![key_file];
    let node = home.start(config.clone()).await;
    let chart = node.published_of("shop-chart", |_| true).await;
    let first = node.published(|_| true).await;
    let (publication, of_chart) = (first.publication(), chart.publication());
    let head = format!("sha1:{}", upstream.git(&["rev-parse", "HEAD"]));
    let values = Part::of_repository("a/values".to_owned(), repository(), head.parse().unwrap());
    let part = Part {
        service: Some(named("shop-chart")),
        digest: Some(of_chart.digest),
        ..Part::of_repository("chart".to_owned(), of_chart.repository.clone(), of_chart.revision_id.clone())
    };
    assert_eq!(publication.parts, [values, part]);
    assert_eq!((publication.repository.as_str(), &publication.commit), ("charts", &None), "that of its first part");
    assert_eq!(publication.revision_id, part::revision_of(&publication.parts));
    assert_eq!(first.followed_ref(), "parts:a/values=main,chart=service:shop-chart");
    let expected = [
        "a/",
        "a/values/",
        "a/values/app.yaml",
        "chart/",
        "chart/Chart.yaml",
        "chart/templates/",
        "chart/templates/map.yaml",
    ];
    assert_eq!(names(&node.tarball(&first).await), expected);

    // A change of the part is published without a poll of anything else.
    publish(&charts, "1.1.0", "a: 2");
    assert!(node.running.trigger_poll(&"charts".parse().unwrap()));
    let newer = node.published_of("shop-chart", |now| now.publication().digest != of_chart.digest).await;
    let second = node.published(has_tarball("chart", newer.publication().digest)).await;
    assert_eq!(second.publication().parts[0], publication.parts[0]);
    let status = node.status().await;
    let composed = status["services"].as_array().unwrap().iter().find(|each| each["name"] == "shop-prod").unwrap();
    assert_eq!(composed["published"]["parts"][1]["service"], "shop-chart", "{composed}");

    // Whoever rolls the part back does so for all that are composed of it, also while the upstream is down.
    charts.is_down.store(true, Ordering::Relaxed);
    let (versions, change) = (node.running.versions(), ChangeRequest::default());
    versions.roll_back(&named("shop-chart"), &of_chart.digest, change.clone()).await.unwrap();
    let back = node.published(has_tarball("chart", of_chart.digest)).await;
    assert_eq!((back.publication().digest, &back.publication().parts), (publication.digest, &publication.parts));
    let mut condition = node.running.condition(&service()).unwrap();
    in_time(condition.wait_for(|now| *now == Condition::Following)).await.unwrap();
    versions.unpin(&named("shop-chart"), change).await.unwrap();
    node.published(has_tarball("chart", newer.publication().digest)).await;

    // Its statement of freshness is about the upstreams of both.
    let mut of_charts = node.running.repository(&"charts".parse().unwrap()).unwrap();
    assert!(node.running.trigger_poll(&"charts".parse().unwrap()));
    in_time(of_charts.wait_for(|state| matches!(state.health, Health::Unhealthy { .. }))).await.unwrap();
    let [signed] = &statements(&home, &node, &[SERVICE]).await[..] else { panic!("both have an owner here") };
    let statement = Freshness::signed_by(&signed.envelope, &key).unwrap();
    assert!(statement.upstream_unreachable_since.is_some(), "{statement:?}");
    node.stop().await;

    // After a restart the values need a build: the chart's part is read from the store, while its upstream is still down.
    charts.answers();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    let head = format!("sha1:{}", upstream.push("deploy/app.yaml", b"replicas: 4\n"));
    node.poll().await;
    let fourth = node.published(has_part("a/values", &head)).await;
    assert_eq!((charts.answers(), fourth.publication().parts[1].digest), (vec![], Some(newer.publication().digest)));
    // An object of it that is lost is rebuilt from its parts.
    fs::remove_file(home.data_dir().join("objects/charts/public").join(object_of(&fourth).hex())).unwrap();
    until(async || {
        let path = object_path(&object_of(&fourth)).replace("/shop/", "/charts/");
        node.try_request(Method::GET, &path, &[]).await.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    assert_eq!(fs::read_dir(home.data_dir().join("parts")).unwrap().count(), 0, "no unpacked tarball stays");
    node.stop().await;
}

#[tokio::test]
async fn operators_compose_services_of_services() {
    let (home, one, two) = (Home::new(), Upstream::small(), Upstream::small());
    let (of_one, of_two) = (serve(&one), serve(&two));
    let (node, operator) = operated(&home).await;
    for (name, server) in [("shop", &of_one), ("config", &of_two)] {
        assert_eq!(operator.put(&format!("/v1/repositories/{name}"), repository_at(server)).await.status, 201);
    }
    let document = json!({ "parts": [{ "service": "chart", "to": "chart" }, { "service": "values", "to": "values" }] });
    let missing = operator.put("/v1/services/shop-prod", document.clone()).await;
    assert!(missing.status == 400 && missing.body.to_string().contains("no service `chart`"), "{missing:?}");
    for (name, repository, folder) in [("chart", "shop", "deploy"), ("values", "config", "later")] {
        let put = json!({ "repository": repository, "ref": "main", "folder": folder });
        assert_eq!(operator.put(&format!("/v1/services/{name}"), put).await.status, 201);
    }
    for (part, detail) in [
        (json!({ "to": "a" }), "part `a`: it has no source: name a `repository` or a `service`"),
        (json!({ "service": "chart", "repository": "shop", "to": "a" }), "remove one of them"),
        (json!({ "service": "chart", "folder": "x", "to": "a" }), "`folder`: the published tarball of the `service`"),
        (json!({ "service": "shop-prod", "to": "a" }), "`shop-prod` cannot be a part of itself"),
    ] {
        let reply = operator.put("/v1/services/shop-prod", json!({ "parts": [part] })).await;
        assert!(reply.status == 400 && reply.body.to_string().contains(detail), "{reply:?}");
    }
    node.published_of("chart", |_| true).await;
    // The folder `later` is missing, so that nothing is published of it yet.
    assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 201);
    let reason = failure(&node, "shop-prod").await;
    assert_eq!(reason, "[resolve] part `values` (service `values`): it has no published version yet");
    two.push("later/x.yaml", b"x: 1\n");
    assert!(node.running.trigger_poll(&"config".parse().unwrap()));
    let first = node.published(|_| true).await;
    assert_eq!(names(&node.tarball(&first).await), ["chart/", "chart/app.yaml", "values/", "values/x.yaml"]);
    assert_eq!(first.publication().repository, repository());
    let read = operator.get("/v1/services/shop-prod").await;
    assert_eq!(operator.put("/v1/services/shop-prod", read.body.clone()).await.etag, read.etag);
    let listed = operator.send(Method::POST, "/v1/services/shop-prod/dry-run", &[], None).await;
    assert_eq!(listed.body["revision_id"], json!(first.publication().revision_id), "{listed:?}");

    // What is a part stays as it is, unless that is meant.
    let with_parts = json!({ "parts": [{ "service": "chart", "to": "chart" }] });
    let refused = operator.put("/v1/services/values", with_parts).await;
    assert!(refused.status == 409 && refused.problem().1.contains("a part has no parts itself"), "{refused:?}");
    let refused = operator.put("/v1/services/chart", json!({ "repository": "config", "ref": "main" })).await;
    assert!(refused.status == 409 && refused.problem().1.contains("the first part of"), "{refused:?}");
    let refused = operator.delete("/v1/services/values").await;
    assert!(refused.status == 409 && refused.problem().1.contains("`shop-prod`"), "{refused:?}");
    let refused = operator.delete("/v1/repositories/config").await;
    assert!(refused.status == 409 && refused.problem().1.contains("`shop-prod`"), "{refused:?}");
    assert_eq!(operator.delete("/v1/services/values?cascade=true").await.status, 204);
    let reason = failure(&node, "shop-prod").await;
    assert_eq!(reason, "[resolve] part `values` (service `values`): it was deleted, and is not published again yet");
    assert_eq!(node.descriptor().await.bytes(), first.bytes(), "the last publication stays");
    // Defined again, as another one. The history says which part that was.
    let put = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    assert_eq!(operator.put("/v1/services/values", put).await.status, 201);
    let again = node.published(|now| now.publication().digest != first.publication().digest).await;
    assert_eq!(names(&node.tarball(&again).await), ["chart/", "chart/app.yaml", "values/", "values/app.yaml"]);
    let history = operator.get("/v1/services/shop-prod/history").await.body;
    assert_eq!(history["publications"][0]["changed_parts"], json!(["values"]), "{history}");
    node.stop().await;
}

#[test]
fn the_file_names_services_that_are_in_it() {
    let home = Home::new();
    let mut config = home.config("https://git.example/x.git");
    let plain = json!({ "name": "chart", "repository": "shop" });
    let composed = |name: &str, part: &str| json!({ "name": name, "parts": [{ "service": part, "to": "chart" }] });
    for (services, expected) in [
        (vec![plain.clone(), composed("a", "chart")], None),
        (vec![plain.clone(), composed("a", "other")], Some("service `a`: `parts`: there is no [[service]] `other`")),
        (vec![composed("a", "a")], Some("`a` cannot be a part of itself")),
        (
            vec![plain, composed("a", "chart"), composed("b", "a")],
            Some("service `b`: `parts`: service `a` has parts itself: name these in place of it"),
        ),
    ] {
        config.services = services.into_iter().map(|each| serde_json::from_value(each).unwrap()).collect();
        let error = config.validate().err().map(|error| error.to_string());
        assert!(error.as_deref().unwrap_or_default().contains(expected.unwrap_or_default()), "{error:?}");
        assert_eq!(error.is_some(), expected.is_some());
    }
}
