//! Every example configuration is one that the roles take.

use std::path::PathBuf;
use std::process::Command;

use weir_loadtest::processes::binary;

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

/// A configuration is often checked where its secrets are not: what is missing is said, and is no error.
#[test]
fn the_binaries_check_the_examples_without_their_secrets() -> anyhow::Result<()> {
    for role in ["origin", "edge", "agent"] {
        let file = example(&format!("{role}.toml"));
        let run =
            Command::new(binary(&format!("weir-{role}"))?).arg("--config").arg(&file).arg("--check-config").output()?;
        let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && out.contains("configuration ok"), "{role}: {out}{error}");

        let dir = tempfile::tempdir()?;
        let wrong = dir.path().join("wrong.toml");
        std::fs::write(&wrong, format!("no_such_key = 1\n{}", std::fs::read_to_string(&file)?))?;
        let run = Command::new(binary(&format!("weir-{role}"))?)
            .arg("--config")
            .arg(&wrong)
            .arg("--check-config")
            .output()?;
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{role}: {error}");
        assert!(error.contains("no_such_key"), "{role}: {error}");
    }
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

/// The other answer to who may read, which stands in the edge's example behind `#:`.
#[test]
fn the_edge_s_example_with_credentials_is_read() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(example("edge.toml"))?;
    let open = |line: &&str| *line == "[auth]" || line.starts_with("mode = \"open\"");
    let lines = text.lines().filter(|line| !open(line)).map(|line| line.strip_prefix("#: ").unwrap_or(line));
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("edge.toml");
    std::fs::write(&path, lines.collect::<Vec<_>>().join("\n"))?;
    let auth = weir_edge::config::Config::load(&path)?.auth;
    assert_eq!((auth.mode, auth.certificates.len()), (weir_edge::config::AuthMode::Required, 1));
    assert_eq!(auth.keys_from_origins, weir_edge::config::AuthConfig::default().keys_from_origins);
    assert_eq!(auth.keys, [dir.path().join("fleet.key.pub")]);
    Ok(())
}
