//! Every example configuration is one that the roles take.

use std::path::{Path, PathBuf};
use std::process::Command;

use weir_loadtest::processes::binary;

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config").join(name)
}

#[test]
fn the_example_configurations_are_valid_and_match_their_comments() -> anyhow::Result<()> {
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

/// They are valid only with the certificates that they name.
#[test]
fn the_binaries_check_the_examples_with_and_without_their_certificates() -> anyhow::Result<()> {
    let (bare, whole) = (tempfile::tempdir()?, tempfile::tempdir()?);
    weir_runtime::certificates::write(whole.path(), &[])?;
    for role in ["origin", "edge", "agent"] {
        let check = |dir: &Path, text: &str| -> anyhow::Result<(Option<i32>, String)> {
            let file = dir.join(format!("{role}.toml"));
            std::fs::write(&file, text)?;
            let run = Command::new(binary(&format!("weir-{role}"))?)
                .arg("--config")
                .arg(&file)
                .arg("--check-config")
                .output()?;
            Ok((run.status.code(), String::from_utf8([run.stdout, run.stderr].concat())?))
        };
        let text = std::fs::read_to_string(example(&format!("{role}.toml")))?;
        assert_eq!(check(whole.path(), &text)?, (Some(0), "configuration ok\n".to_owned()), "{role}");
        let (_, output) = check(bare.path(), &text)?;
        assert!(output.contains("ca.pem"), "{role}: {output}");
        let (code, output) = check(whole.path(), &format!("no_such_key = 1\n{text}"))?;
        assert!(code == Some(2) && output.contains("no_such_key"), "{role}: {output}");
    }
    Ok(())
}

/// What is commented out must be right as well.
#[test]
fn the_examples_with_all_options_are_valid() -> anyhow::Result<()> {
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
fn the_example_of_an_edge_with_credentials_is_valid() -> anyhow::Result<()> {
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
