//! `weir-agent doctor`, against an edge that is well and others that are not.

use std::process::Command;

use weir_agent::Config;
use weir_agent::config::{HttpMode, ServiceConfig, ServiceList};
use weir_agent::doctor::{Finding, Verdict, doctor};

use crate::agent_under_test::{World, shop};
use crate::edge::Fault;
use crate::tarball::with_content;

async fn findings(config: &Config) -> Vec<(&'static str, Verdict, String)> {
    let report = doctor(config).await;
    let of_edges = report.findings.into_iter().filter(|finding| finding.subject != "this machine");
    let text = |finding: &Finding| format!("{} → {}", finding.message, finding.advice.as_deref().unwrap_or_default());
    of_edges.map(|finding| (finding.check, finding.verdict, text(&finding))).collect()
}

fn of<'f>(found: &'f [(&'static str, Verdict, String)], check: &str) -> &'f (&'static str, Verdict, String) {
    found.iter().find(|(name, ..)| *name == check).unwrap_or_else(|| panic!("no {check}: {found:?}"))
}

#[tokio::test]
async fn a_good_edge_is_ok_in_every_line() {
    let (world, edge) = World::offering("one").await;
    let mut config = world.config(&[edge.url()]);
    let found = findings(&config).await;
    let checks: Vec<_> = found.iter().map(|(check, ..)| *check).collect();
    assert_eq!(checks, ["dns", "tcp", "tls", "udp", "identity", "clock"]);
    assert!(found.iter().all(|(_, verdict, _)| *verdict == Verdict::Ok), "{found:?}");
    let machine = doctor(&config).await;
    assert!(!machine.has_failed() && !world.path().join("root").exists(), "{machine}");

    config.services.push(ServiceConfig::new(&"unknown".parse().unwrap()));
    let found = findings(&config).await;
    let (_, verdict, text) = of(&found, "identity");
    assert!(*verdict == Verdict::Warn && text.contains("unknown"), "{text}");
    edge.answers.fail_always(Fault::Problem(401, "the token has expired".to_owned()));
    let found = findings(&config).await;
    let (_, verdict, text) = of(&found, "identity");
    assert!(
        *verdict == Verdict::Fail && text.contains("the token has expired") && text.contains("token_file"),
        "{text}"
    );
}

#[tokio::test]
async fn what_an_edge_offers_is_counted() {
    let (world, edge) = World::with_edge().await;
    let bakery = "bakery".parse().unwrap();
    edge.answers.publish(&shop(), with_content("one"));
    edge.answers.publish(&bakery, with_content("bread"));
    let mut config = world.config(&[edge.url()]);
    (config.list, config.services) = (ServiceList::Assigned, Vec::new());
    let services = async |config: &Config, check: &str| {
        let found = findings(config).await;
        let (_, verdict, text) = of(&found, check).clone();
        assert_eq!(of(&found, "clock").1, Verdict::Ok);
        (verdict, text)
    };
    let (verdict, text) = services(&config, "identity").await;
    assert!(verdict == Verdict::Fail && text.contains("who this agent is") && text.contains("token_file"), "{text}");
    edge.answers.assign(&[]);
    let (verdict, text) = services(&config, "services").await;
    assert!(verdict == Verdict::Warn && text.contains("0 services") && text.contains("Assign"), "{text}");
    edge.answers.assign(&[&shop(), &bakery]);
    config.allow = vec!["s*".parse().unwrap()];
    let (verdict, text) = services(&config, "services").await;
    assert!(verdict == Verdict::Ok && text.contains("2 services are assigned") && text.contains("follows 1"), "{text}");
    config.allow.clear();
    (config.list, config.services) = (ServiceList::Listed, vec![ServiceConfig::of("b*".parse().unwrap())]);
    let (verdict, text) = services(&config, "services").await;
    assert!(verdict == Verdict::Ok && text.contains("follows 1"), "{text}");
    edge.answers.fail_batch_polls(503);
    assert_eq!(services(&config, "services").await.0, Verdict::Warn);
}

#[tokio::test]
async fn each_obstacle_is_named_with_what_to_do() {
    let (world, edge) = World::offering("one").await;
    // Nothing listens.
    let found = findings(&world.config(&["https://127.0.0.1:1".to_owned()])).await;
    assert_eq!(of(&found, "tcp").1, Verdict::Fail);
    assert!(found.iter().all(|(check, ..)| *check != "tls"), "it could not be tried: {found:?}");
    let found = findings(&world.config(&["https://no-such-host.invalid".to_owned()])).await;
    assert!(found.len() == 1 && of(&found, "dns").1 == Verdict::Fail, "{found:?}");

    // TCP alone: UDP is a warning, unless nothing else is allowed.
    let relay = crate::relay::Relay::start(edge.address).await;
    relay.open_udp(false);
    let mut config = world.config(&[relay.url()]);
    let found = findings(&config).await;
    let (_, verdict, text) = of(&found, "udp");
    assert!(*verdict == Verdict::Warn && text.contains("HTTP/2"), "{text}");
    config.http = HttpMode::H3;
    assert_eq!(of(&findings(&config).await, "udp").1, Verdict::Fail);

    // Another authority, another name.
    let other = World::new();
    let mut config = world.config(&[edge.url()]);
    config.ca = other.path().join("ca.pem");
    let other_ca = config.clone();
    // Nor is the edge's own certificate an authority, nor can this be said of UDP where TCP is closed.
    config.ca = world.path().join("edge.pem");
    let mut no_tcp = other_ca.clone();
    let relay = crate::relay::Relay::start(edge.address).await;
    relay.close_tcp();
    no_tcp.edges = vec![relay.url().parse().unwrap()];
    for config in [&other_ca, &config, &no_tcp] {
        let found = findings(config).await;
        let of_ca: Vec<_> = found.iter().filter(|(_, _, text)| text.contains("Let `ca`")).collect();
        assert!(of_ca.len() == 1 && of_ca[0].1 == Verdict::Fail, "{found:?}");
        assert!(
            found.iter().all(|(_, _, text)| !text.contains("Let UDP port") && !text.contains("opens TLS")),
            "{found:?}"
        );
    }
    let config = world.config(&[format!("https://127.0.0.2:{}", edge.address.port())]);
    let relay = tokio::net::TcpListener::bind(("127.0.0.2", edge.address.port())).await.unwrap();
    let to = edge.address;
    let relayed = tokio::spawn(async move {
        let (mut from, _) = relay.accept().await.unwrap();
        let mut to = tokio::net::TcpStream::connect(to).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    });
    let found = findings(&config).await;
    let (_, verdict, text) = of(&found, "tls");
    assert!(*verdict == Verdict::Fail && text.contains("Issue a certificate for `127.0.0.2`"), "{text}");
    relayed.abort();
}

#[tokio::test]
async fn the_command_prints_lines_or_json_and_has_an_exit_code() {
    let (world, edge) = World::offering("one").await;
    let run = async |url: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-agent"));
        command.env_clear().args(["doctor", "--edge", url, "--service", "shop"]).args(more);
        command.arg("--ca").arg(world.path().join("ca.pem")).arg("--root").arg(world.path().join("root"));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(&edge.url(), &[]).await;
    assert!(code == Some(0) && text.contains("this machine\n") && text.contains("  ok    tls  "), "{text}");
    let (code, text) = run("https://127.0.0.1:1", &["--json"]).await;
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tcp = report["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == "tcp").unwrap();
    assert!(code == Some(1) && tcp["verdict"] == "fail" && tcp["advice"].is_string(), "{text}");
    assert_eq!(run("http://x", &[]).await.0, Some(2));
}
