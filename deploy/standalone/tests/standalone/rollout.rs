//! A service that follows a plan, with a real agent.

use std::fs;

use crate::trial::Trial;

const PLAN: &str = r#"rollout = "careful"
[[rollout]]
name = "careful"
stages = [{ name = "canary", labels = { ring = "canary" } }, { name = "all", approve = true }]
"#;

#[test]
fn a_plan_brings_a_good_commit_to_all_and_stops_at_one_whose_hook_fails() -> anyhow::Result<()> {
    let trial = Trial::start(PLAN)?;
    let file = "[[agent]]\nname = \"cluster-1\"\nlabels = { ring = \"canary\" }\n\
                [[assignment]]\nname = \"to-canaries\"\nlabels = { ring = \"canary\" }\nservices = [\"shop\"]\n";
    fs::write(trial.dir.path().join("hub.toml"), file)?;
    trial.until("get services", "following")?;
    trial.succeeds("apply -f hub.toml")?;
    trial.succeeds(&format!("wait shop {} --timeout 120s", trial.first))?;
    assert_eq!(trial.succeeds("rollout status shop")?, "nothing is staged of shop\n");

    // What comes while it is frozen waits, and the freeze says so.
    let frozen = trial.succeeds("freeze sale --service shop* --until 2h --reason CHG-7")?;
    assert!(frozen.starts_with("Nothing new of shop* is published until 2"), "{frozen}");
    assert!(trial.succeeds("get freezes")?.contains("CHG-7"));
    trial.upstream.write("version", "2")?;
    let good = trial.upstream.commit_and_push("two")?;
    trial.succeeds("refresh shop")?;
    trial.until("explain cluster-1 shop", &format!("which is at {}", &good[..12]))?;
    for command in ["rollout status shop", "status", "explain cluster-1 shop"] {
        trial.until(command, "frozen by sale, it ends in ")?;
    }
    assert_eq!(trial.has().as_deref(), Some("1"));
    assert!(trial.succeeds("freeze sale --end")?.contains("sale has ended"));
    assert!(trial.fails("freeze sale --end", 1)?.contains("There is no freeze `sale`"));
    let asked = trial.until("rollout status shop", "approve|pause|promote|abort shop")?;
    for part in [&format!("{} of shop is staged", &good[..12]), "by the plan careful", "waiting at stage canary"] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert_eq!(trial.has().as_deref(), Some("2"));
    let story = trial.succeeds("explain cluster-1 shop")?;
    assert!(story.contains("it has what is staged for it") && story.contains("waiting at stage canary"), "{story}");
    assert!(trial.succeeds("describe service shop")?.contains("staged  "));
    assert!(trial.succeeds("rollout pause shop --reason INC-42")?.contains("paused at stage canary: paused by token"));
    assert!(trial.succeeds("rollout resume shop")?.contains("waiting at stage canary"));
    trial.succeeds("rollout approve shop --reason CHG-7")?;
    trial.until("get services", &good[..12])?;
    let history = trial.succeeds("history shop")?;
    for act in ["staged", "stage-begun", "paused", "INC-42", "resumed", "approved", "CHG-7", "promoted"] {
        assert!(history.contains(act), "{act}: {history}");
    }

    let fails = trial.dir.path().join("fails");
    fs::write(&fails, "")?;
    trial.upstream.write("version", "3")?;
    let bad = trial.upstream.commit_and_push("three")?;
    let stopped = trial.until("rollout status shop", "stopped at stage canary")?;
    for part in ["failed at 1 agent ", "cluster-1  hook-failed", "weir rollout resume|promote|abort shop"] {
        assert!(stopped.contains(part), "{part}: {stopped}");
    }
    assert_eq!(trial.succeeds("rollout status shop -o name")?, "cluster-1\n");
    assert!(trial.succeeds("get services")?.contains(&good[..12]), "everybody else has what is published");
    fs::remove_file(&fails)?;
    let aborted = trial.succeeds("rollout abort shop --reason broken")?;
    assert!(aborted.contains(&bad[..12]), "{aborted}");
    trial.until("explain cluster-1 shop", "it has what is published\n")?;
    assert_eq!(trial.has().as_deref(), Some("2"));
    assert!(trial.succeeds("rollout status shop")?.contains("was aborted by token"));
    Ok(())
}
