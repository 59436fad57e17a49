//! The operating manual names every metric that the roles have, and no other; dashboards and alerts name no others.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::PATIENCE;
use weir_loadtest::scrape;
use weir_origin::config::{RepositoryConfig, ServiceConfig};

const MANUAL: &str = include_str!("../../../docs/operating.md");

/// What is written in the language of Prometheus, and about which role.
const IN_PROMETHEUS_WORDS: [(&str, &str, &str); 9] = [
    ("edge", "deploy/prometheus/edge.rules.yml", include_str!("../../../deploy/prometheus/edge.rules.yml")),
    ("edge", "deploy/prometheus/edge.rules.test.yml", include_str!("../../../deploy/prometheus/edge.rules.test.yml")),
    ("edge", "deploy/grafana/edge.json", include_str!("../../../deploy/grafana/edge.json")),
    ("agent", "deploy/prometheus/agent.rules.yml", include_str!("../../../deploy/prometheus/agent.rules.yml")),
    (
        "agent",
        "deploy/prometheus/agent.rules.test.yml",
        include_str!("../../../deploy/prometheus/agent.rules.test.yml"),
    ),
    ("agent", "deploy/grafana/agent.json", include_str!("../../../deploy/grafana/agent.json")),
    ("origin", "deploy/prometheus/origin.rules.yml", include_str!("../../../deploy/prometheus/origin.rules.yml")),
    (
        "origin",
        "deploy/prometheus/origin.rules.test.yml",
        include_str!("../../../deploy/prometheus/origin.rules.test.yml"),
    ),
    ("origin", "deploy/grafana/origin.json", include_str!("../../../deploy/grafana/origin.json")),
];

/// The names of metrics that a text mentions between backticks, without the suffixes of a histogram's series.
fn mentioned(manual: &str) -> BTreeSet<&str> {
    manual.split('`').skip(1).step_by(2).filter(|code| is_metric(code)).collect()
}

/// The names of metrics in a text of any kind, without the suffixes of a histogram's series.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| is_metric(word));
    names.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
}

/// The names that a role's sources give to their metrics.
fn registered(role: &str, sources: &Path, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(sources)? {
        let path = entry?.path();
        if path.is_dir() {
            registered(role, &path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let literals = text.split('"').filter(|part| is_metric(part));
            names.extend(literals.map(str::to_owned));
            // Those that each role has under its own name.
            let of_roles = text.split('"').filter_map(|part| part.strip_prefix("weir_{role}_"));
            names.extend(of_roles.map(|name| format!("weir_{role}_{name}")));
        }
    }
    Ok(())
}

#[test]
fn dashboards_and_alerts_name_metrics_that_exist_and_so_does_the_manual() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for role in ["edge", "agent", "origin"] {
        let mut exist = BTreeSet::new();
        registered(role, &root.join(role).join("src"), &mut exist)?;
        registered(role, &root.join("shared/runtime/src"), &mut exist)?;
        for (_, file, text) in IN_PROMETHEUS_WORDS.iter().filter(|(of, _, _)| *of == role) {
            let named = named(text);
            assert!(named.len() > 10, "{file} names metrics");
            // Those of the process are the library's.
            for name in named.into_iter().filter(|name| !name.starts_with("process_")) {
                assert!(exist.contains(name), "{file} names `{name}`, and no {role} has it");
            }
        }
        for name in mentioned(MANUAL).into_iter().filter(|name| name.starts_with(&format!("weir_{role}_"))) {
            assert!(exist.contains(name), "docs/operating.md names `{name}`, and no {role} has it");
        }
    }
    Ok(())
}

/// Rules are checked, and their own tests run, where Prometheus' `promtool` is installed; under CI it has to be.
#[test]
fn alerts_fire_when_they_should_and_are_silent_when_not() -> anyhow::Result<()> {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus");
    let tests = ["test", "rules", "edge.rules.test.yml", "agent.rules.test.yml", "origin.rules.test.yml"];
    let ran = Command::new("promtool").current_dir(rules).args(tests).output();
    match ran {
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
            eprintln!("promtool is not installed: the rules' own tests were not run");
        }
        ran => {
            let output = ran?;
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        }
    }
    Ok(())
}

fn is_metric(text: &str) -> bool {
    (text.starts_with("weir_") || text.starts_with("process_")) && is_name(text)
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_stands_in_the_operating_manual() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let upstream = GitRepository::create(dir.path(), "shop")?;
    upstream.write("version", "1")?;
    upstream.commit_and_push("one")?;
    let repository = RepositoryConfig::new("shop".parse()?, upstream.bare().to_str().expect("UTF-8"));
    let service: weir_protocol::name::ServiceName = "shop".parse()?;
    let cluster = Cluster::start(Plan {
        repositories: vec![repository],
        services: vec![ServiceConfig::new(service.clone(), "shop".parse()?)],
        agents: 1,
        ..Plan::default()
    })
    .await?;
    let mut status = cluster.agents[0].service(&service).expect("the agent follows it");
    tokio::time::timeout(PATIENCE, status.wait_for(|status| status.unchanged > 0)).await??;

    let mentioned = mentioned(MANUAL);
    for admin in [cluster.origin.admin_address(), cluster.edges[0].admin_address(), cluster.agents[0].admin_address()] {
        let (_, metrics) = scrape::get(admin.expect("there is an admin listener"), "/metrics").await?;
        for line in metrics.lines() {
            let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) else { continue };
            assert!(mentioned.contains(name), "`{name}` does not stand in docs/operating.md");
        }
    }
    assert!(cluster.drain(PATIENCE).await);
    Ok(())
}
