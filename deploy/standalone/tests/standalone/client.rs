//! The operators' commands, against a hub with one agent.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use weir_loadtest::processes::free_address;

use crate::trial::Trial;

/// A release is on disk, and its hook fails: it is not applied.
fn a_hook_fails(trial: &Trial, applied: &str) -> anyhow::Result<()> {
    let fails = trial.dir.path().join("fails");
    fs::write(&fails, "")?;
    trial.upstream.write("version", "3")?;
    let third = trial.upstream.commit_and_push("three")?;
    let mut waiting = trial.weir(&format!("wait shop {third} --timeout 10s"));
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    trial.succeeds(&format!("wait shop {third} --for current --timeout 120s"))?;
    let story = trial.until("explain cluster-1 shop", "no namespace")?;
    assert!(story.contains(&format!("applied    {}", &applied[..12])), "{story}");
    assert!(trial.fails(&format!("wait shop {third} --timeout 1s"), 2)?.contains("cluster-1"));
    let lacking = trial.succeeds(&format!("fleet --lacking {third}"))?;
    assert!(lacking.contains("cluster-1") && lacking.contains(&format!("{}, hook failed", &third[..12])), "{lacking}");
    assert!(trial.succeeds(&format!("fleet --lacking {third} --for current"))?.contains("no rows"));
    // Its table is of the end of the wait: what began meanwhile is not ahead of it.
    let waited = waiting.wait_with_output()?;
    let said = String::from_utf8(waited.stdout)?;
    ensure!(waited.status.code() == Some(2) && said.contains("cluster-1") && !said.contains("  in "), "{said}");
    fs::remove_file(&fails)?;
    trial.succeeds(&format!("wait shop {third} --timeout 120s"))?;
    assert!(trial.succeeds("fleet --by service,revision")?.contains(&third[..12]));
    assert!(trial.succeeds("fleet --by since:60")?.contains("APPLIED"));
    Ok(())
}

/// The service is rolled back from this commit.
fn what_is_pinned_is_told(trial: &Trial, second: &str) -> anyhow::Result<()> {
    let pinned = format!("pinned at {} for ", &trial.first[..12]);
    for revision in [second, "feedfacefeedface"] {
        let said = trial.fails(&format!("wait shop {revision} --timeout 120s"), 1)?;
        assert!(
            said.contains(&pinned) && said.contains("by token: INC-42") && said.contains("weir unpin shop"),
            "{said}"
        );
    }
    trial.succeeds(&format!("wait shop {} --timeout 120s", trial.first))?;
    let lacking = trial.succeeds(&format!("fleet --lacking {second}"))?;
    assert!(lacking.contains("cluster-1") && lacking.contains(&format!("  shop is {pinned}")), "{lacking}");
    assert!(!trial.succeeds(&format!("fleet --lacking {}", trial.first))?.contains("pinned"));
    let story = trial.succeeds("explain cluster-1 shop")?;
    assert!(story.lines().nth(1).is_some_and(|line| line.contains(&pinned)), "{story}");
    let status = trial.until("status", "all is well")?;
    assert!(status.contains(&format!("- service shop is {pinned}")), "{status}");
    Ok(())
}

/// Who may deliver one service sees its agents, and is told what her role is short of.
fn an_operator_of_one_service_sees_its_agents(trial: &Trial) -> anyhow::Result<()> {
    let as_ana = |command: &str| format!("{command} --token-file ana-token");
    let status = trial.until(&as_ana("status"), "all is well")?;
    for part in ["all is well (the services shop and their agents alone)", "agents        1, 1 live"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert!(trial.succeeds(&as_ana("get agents"))?.contains("cluster-1"));
    assert!(trial.succeeds(&as_ana("describe agent cluster-1"))?.contains("shop"));
    let refused = trial.fails(&as_ana("cluster add cluster-8 cluster-9"), 1)?;
    let role = "The role of this operator is `deliver`, and this request needs `admin`";
    assert!(refused.contains(role) && !refused.contains("cluster-8"), "{refused}");
    Ok(())
}

/// A commit of another branch is staged for the only agent, aborted, and then published for all.
fn a_commit_is_tried_first(trial: &Trial, published: &str) -> anyhow::Result<()> {
    trial.upstream.git(["checkout", "--quiet", "-b", "next"])?;
    trial.upstream.write("version", "next")?;
    let next = trial.upstream.commit_and_push("next")?;
    trial.upstream.git(["checkout", "--quiet", "main"])?;
    trial.succeeds("refresh shop")?;
    assert!(trial.fails("stage shop none-such -l ring=canary", 1)?.contains("step resolve"));
    assert!(trial.fails("stage shop next", 2)?.contains("--label"));
    assert!(trial.fails("stage shop next -l ring=canary -l ring=stable", 1)?.contains("--label ring=stable"));
    assert_eq!(trial.succeeds("rollout status shop")?, "nothing is staged of shop\n");
    // The origin fetches the branch with its next poll, and the edge reports within seconds.
    trial.until("stage shop next -l ring=canary --reason CHG-7", &next[..12])?;
    trial.until("rollout status shop", "1 agent, 1 done")?;
    assert_eq!(trial.has().as_deref(), Some("next"));
    assert!(trial.succeeds("get services")?.contains(&published[..12]), "everybody else has what is published");
    assert!(trial.succeeds("explain cluster-1 shop")?.contains("it has what is staged for it"));
    trial.succeeds("rollout abort shop --reason slow")?;
    trial.until("fleet -s shop", &published[..12])?;
    assert_eq!(trial.has().as_deref(), Some("2"));
    assert!(trial.succeeds("rollout status shop")?.contains("aborted by token"));
    assert!(trial.succeeds("explain cluster-1 shop")?.contains("was aborted by token"));

    // Not for agents with another label.
    trial.succeeds("stage shop next -l ring=stable")?;
    trial.until("rollout status shop", "0 agents")?;
    trial.succeeds("rollout promote shop")?;
    trial.succeeds(&format!("wait shop {next} --timeout 120s"))?;
    assert_eq!(trial.has().as_deref(), Some("next"));
    assert!(trial.succeeds("get services")?.contains("pinned"));
    assert!(trial.succeeds("history shop")?.contains("promoted"));
    trial.succeeds("unpin shop")?;
    // What was promoted contains this commit: waiting for it alone would end before the agent has returned to it.
    trial.until("fleet -s shop", &published[..12])?;
    trial.succeeds(&format!("wait shop {published} --timeout 120s")).map(drop)
}

fn all_take_part(trial: &Trial) -> anyhow::Result<()> {
    let members = trial.succeeds("get members -o wide")?;
    assert!(members.contains("active") && members.contains("shop"), "{members}");
    assert!(trial.succeeds("get edges")?.contains("live"));
    let edge = trial.succeeds("describe edge edge-1")?;
    assert!(edge.contains("live") && edge.contains("PROBLEM"), "{edge}");
    assert!(trial.fails("describe edge paris", 1)?.contains("there is no edge `paris`"));
    let member = trial.succeeds("describe member origin-1")?;
    assert!(member.contains("active") && member.contains("1 repository") && member.contains("healthy"), "{member}");
    let (version, mine) = (trial.succeeds("version")?, env!("CARGO_PKG_VERSION"));
    assert_eq!(version, format!("Client Version: {mine}\nServer Version: {mine} (127.0.0.1)\n"));
    let checked = trial.succeeds("doctor")?;
    for part in ["admin of all services, by a token", "of the origin: it ends in", "of the origin's", "1 live"] {
        assert!(checked.contains(part), "{part}: {checked}");
    }
    Ok(())
}

fn clusters_are_added(trial: &Trial) -> anyhow::Result<()> {
    trial.succeeds("delete agent cluster-1")?;
    assert!(trial.succeeds("get agents --by edge")?.contains("edge-1"));
    let added = trial.succeeds("cluster add cluster-2 -l ring=stable --assign shop --key fleet.key")?;
    assert!(
        added.contains("assignment cluster-2 created") && added.contains("--token-file cluster-2.token"),
        "{added}"
    );
    assert!(trial.dir.path().join("cluster-2.token").is_file());
    assert!(trial.succeeds("describe agent cluster-2")?.contains("stable"));
    assert!(trial.succeeds("get agents")?.contains("1 agent has an entry, and no edge has reported it: cluster-2"));
    assert!(trial.succeeds("get agents cluster-2")?.contains("no edge has reported it"));
    let status = trial.fails("status", 1)?;
    assert!(status.contains("1 never heard") && status.contains("! never heard: 1 agent"), "{status}");
    assert!(trial.fails("cluster add cluster-3 --key fleet.key", 1)?.contains("--opens"));
    assert!(trial.fails("describe agent cluster-3", 1)?.contains("no agent"));
    // Another token for it changes nothing else.
    let again = trial.succeeds("cluster add cluster-2 --key fleet.key --opens shop --out again.token")?;
    assert!(again.contains("agent cluster-2 is there"), "{again}");
    assert!(trial.succeeds("describe agent cluster-2")?.contains("stable"));
    assert!(trial.fails("cluster add cluster-2 -l ring=canary", 1)?.contains("weir apply"));
    // It signs tokens itself.
    let jwks = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one","x":"AAAA"}]}"#;
    fs::write(trial.dir.path().join("cluster-3.json"), jwks)?;
    let signs = "--issuer https://kubernetes.default.svc --jwks cluster-3.json";
    assert!(trial.fails(&format!("cluster add cluster-3 {signs}"), 1)?.contains("--opens"));
    let added = trial.succeeds(&format!("cluster add cluster-3 --opens shop {signs}"))?;
    assert!(added.contains("issuer cluster-3 created") && added.contains("keys_from_origins"), "{added}");
    assert!(trial.succeeds("get issuers -o wide")?.contains("https://kubernetes.default.svc"));
    // Several at once, by the chart: one that is refused keeps no other from its place.
    let several = format!("cluster add cluster-6 cluster-7 --helm --opens shop {signs}");
    assert!(trial.fails(&several, 1)?.contains("its own --jwks"));
    let several = several.replace("cluster-3.json", "{name}.json");
    fs::write(trial.dir.path().join("cluster-7.json"), jwks.replace("one", "seven"))?;
    let said = trial.fails(&several, 1)?;
    assert!(
        said.contains("1 of 2 clusters are not added: cluster-6") && said.contains("issuer cluster-7 created"),
        "{said}"
    );
    let again = trial.succeeds("cluster add cluster-7 --helm")?;
    assert!(
        again.starts_with("# cluster-7\nhelm install weir-agent deploy/helm/weir-agent --namespace weir"),
        "{again}"
    );
    Ok(())
}

fn what_is_refused_is_refused_by_a_dry_run_too(trial: &Trial) -> anyhow::Result<()> {
    fs::write(trial.dir.path().join("other-token"), "a-token-of-another-hub\n")?;
    let wrong = trial.fails("get services --token-file other-token", 1)?;
    assert!(wrong.contains("another hub") && !wrong.contains("missing"), "{wrong}");
    fs::write(trial.dir.path().join("wrong.toml"), "[[agent]]\nname = \"cluster-9\"\nlabel = {}\n")?;
    assert!(trial.fails("apply -f wrong.toml --dry-run", 1)?.contains("labels"), "a misspelt key");
    fs::write(trial.dir.path().join("local.toml"), "[[repository]]\nname = \"local\"\nurl = \"/srv/git/local\"\n")?;
    for command in ["apply -f local.toml --dry-run", "apply -f local.toml"] {
        assert!(trial.fails(command, 1)?.contains("only from other machines"), "{command}");
    }
    fs::write(trial.dir.path().join("of-file.toml"), "[[service]]\nname = \"shop\"\nrepository = \"shop\"\n")?;
    for command in ["apply -f of-file.toml --dry-run", "apply -f of-file.toml"] {
        assert!(trial.fails(command, 1)?.contains("configuration file"), "{command}");
    }
    Ok(())
}

/// A file with a plan and a service that names it, which a dry run finds before any of it is stored.
fn plans_are_applied_listed_and_deleted(trial: &Trial) -> anyhow::Result<()> {
    let file = "[[rollout]]\nname = \"gentle\"\nstages = [{ name = \"some\", percent = 10 }, { name = \"all\" }]\ndeadline = \"24h\"\n\
                [[service]]\nname = \"shop-gentle\"\nrepository = \"shop\"\nrollout = \"gentle\"\n";
    fs::write(trial.dir.path().join("plan.toml"), file)?;
    let tried = trial.succeeds("apply -f plan.toml --dry-run")?;
    assert!(tried.contains("rollout gentle would be created") && tried.contains("its tarball: "), "{tried}");
    assert!(trial.succeeds("apply -f plan.toml")?.starts_with("rollout gentle created\nservice shop-gentle created"));
    assert!(trial.succeeds("apply -f plan.toml --dry-run")?.contains("rollout gentle is as the file has it"));
    assert!(
        trial.succeeds("get rollouts")?.contains("gentle  some all  1         -"),
        "{}",
        trial.succeeds("get rollouts")?
    );
    assert!(trial.fails("delete rollout gentle", 1)?.contains("`shop-gentle`"));
    for command in ["delete service shop-gentle", "delete rollout gentle"] {
        trial.succeeds(command)?;
    }
    assert!(trial.succeeds("get rollouts")?.contains("there are no rollouts"));
    Ok(())
}

#[test]
fn an_operator_looks_assigns_waits_compares_and_rolls_back() -> anyhow::Result<()> {
    let trial = Trial::start("")?;
    trial.until("get services", "following")?;
    assert_eq!(trial.succeeds("get services -o name")?, "shop\n");
    assert!(trial.succeeds("get repositories")?.contains("healthy"));
    assert!(trial.fails("get services nothing", 1)?.contains("there is no service `nothing`"));

    // Nobody follows it yet.
    let file = "[[agent]]\nname = \"cluster-1\"\nlabels = { ring = \"canary\" }\n\
                [[assignment]]\nname = \"to-canaries\"\nlabels = { ring = \"canary\" }\nservices = [\"shop\"]\n";
    fs::write(trial.dir.path().join("hub.toml"), file)?;
    assert!(trial.succeeds("apply -f hub.toml --dry-run")?.contains("assignment to-canaries would be created"));
    let applied = trial.succeeds("apply -f hub.toml")?;
    assert!(
        applied.contains("agent cluster-1 created") && applied.contains("assignment to-canaries created"),
        "{applied}"
    );
    assert!(trial.succeeds("apply -f hub.toml")?.contains("assignment to-canaries unchanged"));
    let first = &trial.first;
    trial.succeeds(&format!("wait shop {first} --timeout 120s"))?;
    assert_eq!(trial.has().as_deref(), Some("1"));
    let status = trial.until("status", "all is well")?;
    assert!(status.contains("services      1, 1 following") && status.contains("agents        1, 1 live"), "{status}");

    trial.upstream.write("version", "2")?;
    let second = trial.upstream.commit_and_push("two")?;
    trial.succeeds(&format!("wait shop {second} --timeout 120s"))?;
    assert_eq!(trial.has().as_deref(), Some("2"));
    assert!(trial.succeeds("fleet")?.contains(&second[..12]));
    assert!(trial.succeeds(&format!("fleet --lacking {}", &second[..8]))?.contains("no rows"));
    let history = trial.succeeds("history shop")?;
    assert!(history.contains(&first[..12]) && history.contains("current"), "{history}");
    let diff = trial.succeeds("diff shop")?;
    assert!(diff.contains("~ version") && diff.contains("1 changed"), "{diff}");
    let patch = trial.succeeds("diff shop --patch")?;
    assert!(patch.contains("+++ b/version\n@@ -1 +1 @@\n-1\n") && patch.contains("+2\n"), "{patch}");
    let story = trial.succeeds("explain cluster-1 shop")?;
    assert!(story.contains("it has what is published") && story.contains("by to-canaries"), "{story}");
    let story = trial.succeeds(&format!("explain cluster-1 shop --edge http://{}", trial.edge))?;
    assert!(story.contains(&format!("has {}, fresh", &second[..12])) && story.contains("heard the agent"), "{story}");
    let described = trial.succeeds("describe agent cluster-1")?;
    assert!(described.contains("canary") && described.contains(&second[..12]), "{described}");

    trial.succeeds("rollback shop previous --reason INC-42")?;
    assert!(trial.succeeds("history shop")?.contains("INC-42"));
    // The retry of a script whose first answer was lost.
    let again = trial.fails("rollback shop previous", 1)?;
    assert!(again.contains("rolled back already") && again.contains(first), "{again}");
    trial.until("fleet -s shop", &first[..12])?;
    assert_eq!(trial.has().as_deref(), Some("1"));
    assert!(trial.succeeds("get services")?.contains("pinned"));
    what_is_pinned_is_told(&trial, &second)?;
    trial.succeeds("unpin shop --reason mended")?;
    trial.succeeds(&format!("wait shop {second} --timeout 120s"))?;
    for command in ["history shop", "describe service shop"] {
        let said = trial.succeeds(command)?;
        assert!(said.contains("INC-42") && said.contains("mended"), "{command}: {said}");
    }
    trial.succeeds("refresh shop")?;

    a_commit_is_tried_first(&trial, &second)?;
    a_hook_fails(&trial, &second)?;
    an_operator_of_one_service_sees_its_agents(&trial)?;

    fs::write(trial.dir.path().join("none.toml"), "")?;
    assert!(trial.fails("apply -f none.toml --prune --prefix to-", 1)?.contains("--yes"));
    assert!(trial.succeeds("apply -f none.toml --prune --prefix to- --yes")?.contains("to-canaries deleted"));
    clusters_are_added(&trial)?;
    what_is_refused_is_refused_by_a_dry_run_too(&trial)?;
    plans_are_applied_listed_and_deleted(&trial)?;
    assert!(trial.fails("forget edge paris", 1)?.contains("paris"));
    a_cluster_brings_its_own_tokens(&trial)?;
    all_take_part(&trial)?;
    assert!(trial.fails("delete assignment to-canaries", 1)?.contains("to-canaries"));
    Ok(())
}

fn a_cluster_brings_its_own_tokens(trial: &Trial) -> anyhow::Result<()> {
    let add = "cluster add cluster-4 --assign shop --issuer https://k8s.example --jwks https://api.example/jwks";
    assert!(trial.fails(add, 1)?.contains("--jwks-ca"));
    assert!(trial.fails(&format!("{add} --jwks-ca origin.toml"), 1)?.contains("`jwks.ca` must be"));
    let add = format!("{add} --jwks-ca ca.pem");
    let added = trial.succeeds(&add)?;
    assert!(added.contains("issuer cluster-4 created") && added.contains("/var/run/weir/token"), "{added}");
    assert!(trial.succeeds(&add)?.contains("issuer cluster-4 is there"));
    assert!(trial.succeeds("get issuers")?.contains("https://api.example/jwks"));
    fs::write(trial.dir.path().join("jwks.json"), "{\"keys\": [{\"kid\": \"k\"}]}")?;
    trial.succeeds("cluster add cluster-5 --opens shop --issuer https://k8s.example --jwks jwks.json")?;
    assert!(
        trial
            .fails("cluster add cluster-4 --opens shop --issuer https://k8s.example --jwks jwks.json", 1)?
            .contains("weir apply")
    );
    Ok(())
}

#[test]
fn a_command_says_how_to_reach_a_hub_and_why_it_is_refused() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let run = |command: &str| -> anyhow::Result<String> {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(command.split(' ')).env("WEIR_CONTEXTS", dir.path().join("contexts.toml"));
        let output = weir.output().context("weir")?;
        ensure!(output.status.code() == Some(1), "{command}: {}", output.status);
        Ok(String::from_utf8(output.stderr)?)
    };
    assert!(run("get services")?.contains("weir context add"));
    assert!(run("context use prod")?.contains("weir context list"));
    assert!(run("context add prod --server origin.example:7401")?.contains("https://"));
    let unreachable = run(&format!("get services --server https://{}", free_address()?))?;
    assert!(unreachable.contains("cannot reach https://127.0.0.1"), "{unreachable}");
    // Without a hub it has a version all the same.
    let weir = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("version")
        .env("WEIR_CONTEXTS", dir.path().join("none"))
        .output()?;
    assert!(weir.status.success() && String::from_utf8(weir.stdout)?.starts_with("Client Version: "));
    Ok(())
}
