//! The documentation is true where a program can tell: links lead somewhere, configuration is read, and metrics that are
//! named exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::PATIENCE;
use weir_loadtest::scrape;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

/// Pages that speak of the past: metrics of theirs need not exist.
const OF_THE_PAST: &str = "docs/decisions/";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files below a folder of the repository that have an extension, by their paths in it.
fn files(folder: &str, extension: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().into_string().expect("names of the repository are UTF-8");
            let path = folder.join(&name);
            if entry.file_type()?.is_dir() {
                // What git does not keep: builds, trials, corpora.
                if !name.starts_with('.')
                    && !["target", "weir-data", "weir-trial", "corpus", "artifacts"].contains(&&*name)
                {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|of| of == extension) {
                let text = fs::read_to_string(root().join(&path))?;
                found.insert(path.to_str().expect("names of the repository are UTF-8").to_owned(), text);
            }
        }
    }
    Ok(found)
}

/// A page without its blocks of code.
fn prose(text: &str) -> String {
    let mut within = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        within ^= fence;
        !within && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that a page's headings have in links, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for line in prose(text).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim();
        // Of a link in a heading the text counts.
        let heading = heading.split("](").enumerate().map(|(i, part)| if i == 0 { part } else { after_link(part) });
        let kept = heading.collect::<String>().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name = kept.collect::<String>().replace(' ', "-");
        let before = found.entry(name.clone()).or_default();
        names.insert(if *before == 0 { name } else { format!("{name}-{before}") });
        *before += 1;
    }
    names
}

fn after_link(part: &str) -> &str {
    part.split_once(')').map_or(part, |(_, rest)| rest)
}

/// The targets of a page's links, but those that lead to other sites.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).map(str::to_owned).collect()
}

#[test]
fn links_lead_to_files_and_headings_that_exist() -> anyhow::Result<()> {
    let pages = files("", "md")?;
    assert!(pages.len() > 40, "{} pages were found", pages.len());
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = Path::new(page).parent().expect("a page is in a folder").join(file);
            let target = if file.is_empty() { Path::new(page).to_owned() } else { target };
            if !root().join(&target).exists() {
                broken.push(format!("{page}: {link}: there is no such file"));
            } else if !anchor.is_empty() {
                let text = fs::read_to_string(root().join(&target)).with_context(|| format!("{page}: {link}"))?;
                if !anchors(&text).contains(anchor) {
                    broken.push(format!("{page}: {link}: no heading has this name"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}

#[test]
fn the_book_has_every_page() -> anyhow::Result<()> {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md"))?;
    let listed: BTreeSet<String> = links(&summary).into_iter().map(|link| format!("docs/{link}")).collect();
    let pages = files("docs", "md")?.into_keys().filter(|page| page != "docs/SUMMARY.md");
    let missing: Vec<String> = pages.filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
    Ok(())
}

/// Puts the keys of `from` into `into`. A table of a list takes the place of the one with its name.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (Some(toml::Value::Array(into)), toml::Value::Array(from)) if from.iter().all(toml::Value::is_table) => {
                into.retain(|table| !from.iter().any(|other| other.get("name") == table.get("name")));
                into.extend(from);
            }
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// A block of TOML that begins with the name of a configuration file is a part of that file: over the example in
/// `deploy/config` it is read as the role reads it.
#[test]
fn configuration_in_the_documentation_is_valid() -> anyhow::Result<()> {
    let (mut read, mut wrong) = (0, Vec::new());
    for (page, text) in files("docs", "md")? {
        if page.starts_with(OF_THE_PAST) {
            continue;
        }
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap_or(block);
            let name = block.lines().next().and_then(|line| line.trim().strip_prefix("# "));
            let Some(name @ ("origin.toml" | "edge.toml" | "agent.toml")) = name else {
                let _: toml::Table = toml::from_str(block).with_context(|| format!("{page}: {block}"))?;
                continue;
            };
            let example = fs::read_to_string(root().join("deploy/config").join(name))?;
            let mut table: toml::Table = toml::from_str(&example)?;
            merge(&mut table, toml::from_str(block).with_context(|| format!("{page}: {block}"))?);
            let dir = tempfile::tempdir()?;
            let file = dir.path().join(name);
            fs::write(&file, toml::to_string(&table)?)?;
            let taken = match name {
                "origin.toml" => weir_origin::config::Config::load(&file).map(drop).map_err(anyhow::Error::from),
                "edge.toml" => weir_edge::config::Config::load(&file).map(drop).map_err(anyhow::Error::from),
                _ => weir_agent::config::Config::load(&file).map(drop).map_err(anyhow::Error::from),
            };
            wrong.extend(taken.err().map(|error| format!("{page}: {error:#}: {block}")));
            read += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 20, "{read} parts of configuration files were found");
    Ok(())
}

/// Whoever looks for a place in the code finds it.
#[test]
fn the_architecture_names_files_that_exist() -> anyhow::Result<()> {
    let text = fs::read_to_string(root().join("docs/contributing/architecture.md"))?;
    let prose = prose(&text);
    let named = prose.split('`').skip(1).step_by(2).filter(|code| code.contains('/') && !code.contains([' ', '<']));
    let missing: Vec<&str> = named.filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "docs/contributing/architecture.md names {missing:?}");
    Ok(())
}

/// A row of the comparison with git-sync is believed because a test shows it: `file::function`, of the agent, `origin/` or `git/`.
#[test]
fn the_comparison_names_tests_that_exist() -> anyhow::Result<()> {
    let page = fs::read_to_string(root().join("docs/comparison.md"))?;
    let (_, section) = page.split_once("| git-sync | agent | shown by |\n").context("the table of git-sync")?;
    let rows: Vec<&str> = section.lines().take_while(|line| line.starts_with('|')).skip(1).collect();
    assert!(rows.len() > 20, "{} rows were found", rows.len());
    for row in rows {
        let shown = row.split('|').nth(3).with_context(|| row.to_owned())?;
        let tests: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty() || row.contains("because"), "neither a test nor a reason: {row}");
        for test in tests {
            let (file, function) = test.split_once("::").with_context(|| format!("{test} is no file::function"))?;
            let path = match file.split_once('/') {
                Some(("origin", file)) => format!("origin/tests/origin/{file}.rs"),
                Some(("git", file)) => format!("origin/git/tests/git/{file}.rs"),
                _ => format!("agent/tests/agent/{file}.rs"),
            };
            let text = fs::read_to_string(root().join(&path)).with_context(|| path.clone())?;
            assert!(text.contains(&format!("fn {function}()")), "{path} has no test {function}");
        }
    }
    Ok(())
}

/// The names of metrics in a text of any kind, without the suffixes of a histogram's series.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| is_metric(word));
    let series = ["_bucket", "_sum", "_count"];
    names.map(|word| series.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word)).collect()
}

/// The names that sources give to their metrics.
fn registered(role: &str, folder: &str, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    for text in files(folder, "rs")?.values() {
        let literals = text.split('"').filter(|part| is_metric(part));
        names.extend(literals.map(str::to_owned));
        // Those that each role has under its own name.
        let of_roles = text.split('"').filter_map(|part| part.strip_prefix("weir_{role}_"));
        names.extend(of_roles.map(|name| format!("weir_{role}_{name}")));
    }
    Ok(())
}

fn is_metric(text: &str) -> bool {
    let of_ours =
        ["weir_origin_", "weir_edge_", "weir_agent_", "weir_http_", "weir_quic_", "weir_build_", "weir_bound_"];
    of_ours.iter().any(|prefix| text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && !rest.ends_with('_')))
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[test]
fn dashboards_alerts_and_pages_name_metrics_that_exist() -> anyhow::Result<()> {
    let mut exist = BTreeSet::new();
    for role in ["edge", "agent", "origin"] {
        registered(role, "shared", &mut exist)?;
        // The role itself, and the crates in its folder.
        for part in fs::read_dir(root().join(role))? {
            let part = part?.file_name().into_string().expect("names of the repository are UTF-8");
            let folder = if part == "src" { format!("{role}/src") } else { format!("{role}/{part}/src") };
            if root().join(&folder).is_dir() {
                registered(role, &folder, &mut exist)?;
            }
        }
    }
    let mut texts = files("deploy", "yml")?;
    texts.extend(files("deploy", "json")?);
    assert!(texts.len() >= 9, "rules and dashboards were found");
    texts.extend(files("docs", "md")?);
    for (file, text) in texts.iter().filter(|(file, _)| !file.starts_with(OF_THE_PAST)) {
        for name in named(text) {
            assert!(exist.contains(name), "{file} names `{name}`, and no role has it");
        }
    }
    Ok(())
}

/// Queries of the pages have a line each.
#[test]
fn queries_in_the_documentation_are_read() -> anyhow::Result<()> {
    let mut rules = "groups: [{name: documentation, rules: [".to_owned();
    let mut count = 0;
    for text in files("docs", "md")?.values() {
        for block in text.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            for line in block.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
                count += 1;
                rules.push_str(&format!("{{record: 'query:{count}', expr: {}}},", serde_json::to_string(line)?));
            }
        }
    }
    assert!(count > 20, "{count} queries were found");
    rules.push_str("]}]");
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("rules.yml"), &rules)?;
    promtool(dir.path(), &["check", "rules", "--lint=none", "rules.yml"])
}

/// Each formula of `hit-ratio.md` is that of the panel with the same name.
#[test]
fn panels_have_the_documented_formulas() -> anyhow::Result<()> {
    let page = fs::read_to_string(root().join("docs/how-to/hit-ratio.md"))?;
    let dashboard = fs::read_to_string(root().join("deploy/grafana/edge.json"))?;
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard)?;
    let formulas = page.split("```promql\n").nth(1).and_then(|rest| rest.split("```").next()).context("no formulas")?;
    let mut compared = 0;
    for formula in formulas.split("# ").skip(1) {
        let (title, formula) = formula.split_once('\n').context("a title has a formula")?;
        let (title, _) = title.split_once(':').context("a title says what it is")?;
        let panel = dashboard["panels"].as_array().into_iter().flatten().find(|panel| panel["title"] == title);
        let of_panel = panel.and_then(|panel| panel["targets"][0]["expr"].as_str());
        let of_panel = of_panel.with_context(|| format!("no panel is called `{title}`"))?;
        let of_all = of_panel.replace("instance=~\"$instance\"", "").replace("{, ", "{").replace("{}", "");
        assert_eq!(of_all, formula.trim(), "{title}");
        compared += 1;
    }
    assert_eq!(compared, 3, "formulas were found");
    Ok(())
}

/// Who runs a version reads its runbook.
#[test]
fn alerts_link_to_the_runbook_of_this_version() -> anyhow::Result<()> {
    let folder = concat!("https://github.com/weir-cdn/weir/blob/v", env!("CARGO_PKG_VERSION"), "/docs/runbooks/");
    let mut links = 0;
    for (file, text) in files("deploy", "yml")? {
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")) {
            let link = line.strip_prefix(folder).and_then(|rest| rest.split_once(".md#"));
            let (page, section) = link.ok_or_else(|| anyhow::anyhow!("{file}: {line} is not below {folder}"))?;
            let runbook = fs::read_to_string(root().join(format!("docs/runbooks/{page}.md")))?;
            let has_section = runbook.lines().filter_map(|line| line.strip_prefix("## "));
            assert!(has_section.map(str::to_lowercase).any(|title| title == section), "{file}: {line}");
            links += 1;
        }
    }
    assert!(links > 20, "{links} links were found");
    Ok(())
}

#[test]
fn alerts_fire_when_they_should_and_are_silent_when_not() -> anyhow::Result<()> {
    let tests = ["test", "rules", "edge.rules.test.yml", "agent.rules.test.yml", "origin.rules.test.yml"];
    promtool(&root().join("deploy/prometheus"), &tests)
}

/// Runs Prometheus' `promtool` in a folder, where it is installed; under CI it has to be.
fn promtool(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    match Command::new("promtool").current_dir(folder).args(arguments).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
            eprintln!("promtool is not installed: {arguments:?} was not run");
        }
        ran => {
            let output = ran?;
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_in_the_reference() -> anyhow::Result<()> {
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

    let reference =
        fs::read_to_string(root().join("docs/reference/metrics.md")).context("docs/reference/metrics.md")?;
    let reference: BTreeSet<&str> = reference.split('`').skip(1).step_by(2).collect();
    for admin in [cluster.origin.admin_address(), cluster.edges[0].admin_address(), cluster.agents[0].admin_address()] {
        let (_, metrics) = scrape::get(admin.expect("there is an admin listener"), "/metrics").await?;
        for line in metrics.lines() {
            let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) else { continue };
            assert!(reference.contains(name), "`{name}` does not stand in docs/reference/metrics.md");
        }
    }
    assert!(cluster.drain(PATIENCE).await);
    Ok(())
}
