//! Every example configuration is one that the roles take.

use std::path::PathBuf;

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config").join(name)
}

#[test]
fn the_example_configurations_are_read_and_say_what_their_comments_say() -> anyhow::Result<()> {
    let origin = weir_origin::config::Config::load(&example("origin.toml"))?;
    assert_eq!(origin.repositories[0].poll_interval.as_secs(), 120);
    assert_eq!(origin.services[0].folder.to_string(), "deploy/prod");

    let edge = weir_edge::config::Config::load(&example("edge.toml"))?;
    let defaults = weir_edge::config::FreshnessConfig::default();
    assert_eq!(edge.freshness.fresh, defaults.fresh);
    assert_eq!(edge.freshness.stale_while_revalidate, defaults.stale_while_revalidate);
    assert_eq!(edge.freshness.wait, defaults.wait);

    let agent = weir_agent::config::Config::load(&example("agent.toml"))?;
    assert_eq!((agent.poll_interval.as_secs(), agent.refresh_interval.as_secs()), (30, 7200));
    Ok(())
}

/// What is commented out must be right as well.
#[test]
fn the_examples_with_all_their_options_are_read_too() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for name in ["origin.toml", "edge.toml", "agent.toml"] {
        let text = std::fs::read_to_string(example(name))?;
        let is_option = |line: &str| {
            line.strip_prefix("# ").is_some_and(|rest| {
                rest.split_once(" = ").is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
            })
        };
        let with_options: Vec<&str> =
            text.lines().map(|line| if is_option(line) { &line[2..] } else { line }).collect();
        assert!(with_options.iter().zip(text.lines()).any(|(a, b)| *a != b), "{name} has no option");
        let path = dir.path().join(name);
        std::fs::write(&path, with_options.join("\n"))?;
        match name {
            "origin.toml" => drop(weir_origin::config::Config::load(&path)?),
            "edge.toml" => drop(weir_edge::config::Config::load(&path)?),
            _ => drop(weir_agent::config::Config::load(&path)?),
        }
    }
    Ok(())
}
