//! `exec`: what it sees, at least once per switch, retried, killed with its group.

use std::path::Path;
use std::time::Duration;

use weir_agent::Config;
use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{PATIENCE, TestEdge, commit};
use crate::tarball::with_content;
use crate::trust::{key, trusting};

fn with_exec(world: &World, edge: &TestEdge, exec: &str) -> Config {
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some(exec.into());
    config
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn exec_runs_in_the_new_release_with_the_previous_digest() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    let exec = format!(
        "echo \"$WEIR_SERVICE $WEIR_DIGEST $WEIR_COMMIT $WEIR_REVISION [$WEIR_PREVIOUS_DIGEST] $(cat content) $PWD \
         $WEIR_RELEASE $(readlink ../../current)\" >> {}",
        log.display()
    );
    let (one, first) = edge.answers.publish(&shop(), with_content("1"));
    let mut agent = Agent::start(with_exec(&world, &edge, &exec)).await;
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    let (two, second) = edge.answers.publish(&shop(), with_content("2"));
    agent.poll().await;
    agent.until("exec has run again", |status| status.hook_runs == 2 && status.hook == HookState::Succeeded).await;
    let releases = world.service_dir().join("releases");
    let line = |digest: &str, generation, previous: &str, content| {
        let at = releases.join(digest);
        let (at, commit) = (at.display(), commit(generation));
        format!("shop {digest} {commit} sha1:{commit} [{previous}] {content} {at} {at} releases/{digest}")
    };
    let (one, two) = (one.to_string(), two.to_string());
    assert_eq!(lines(&log), [line(&one, first, "", 1), line(&two, second, &one, 2)]);
    // A poll without a change runs nothing.
    agent.poll().await;
    agent.stop().await;
    assert_eq!(lines(&log).len(), 2);

    // Nor does a restart.
    let agent = Agent::start(with_exec(&world, &edge, &exec)).await;
    assert_eq!(agent.status.borrow().hook, HookState::Succeeded);
    // An alert on its age goes on where it was.
    assert!(agent.metric("weir_agent_hook_last_success_timestamp_seconds", &[]) > 0.0);
    agent.stop().await;
    assert_eq!(lines(&log).len(), 2);
}

#[tokio::test]
async fn a_revision_that_is_no_commit_is_unpacked_and_its_version_is_passed_on() {
    for trusts in [false, true] {
        let world = World::new();
        let edge = world.edge().await;
        let log = world.path().join("log");
        let exec = format!(
            "echo \"[$WEIR_COMMIT] $WEIR_REVISION $WEIR_VERSION [$WEIR_PREVIOUS_VERSION] $(cat content)\" >> {}",
            log.display()
        );
        let keys = [key()];
        let publish = |content, version| {
            edge.answers.publish(&shop(), with_content(content));
            edge.answers.name_version(&shop(), version);
            edge.answers.sign(&shop(), &keys);
        };
        let mut config =
            if trusts { trusting(&world, &[edge.url()], &[&keys[0]]) } else { world.config(&[edge.url()]) };
        config.services[0].exec = Some(exec.as_str().into());
        publish("1", "1.0.0");
        let mut agent = Agent::start(config.clone()).await;
        agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
        publish("2", "1.1.0+a");
        agent.poll().await;
        agent.until("exec has run again", |status| status.hook_runs == 2 && status.hook == HookState::Succeeded).await;
        agent.stop().await;
        let hex = "d".repeat(64);
        assert_eq!(
            lines(&log),
            [
                format!("[] helm:1.0.0+sha256:{hex} 1.0.0 [] 1"),
                format!("[] helm:1.1.0+a+sha256:{hex} 1.1.0+a [1.0.0] 2")
            ],
            "{trusts}"
        );
        let agent = Agent::start(config).await;
        let release = agent.status.borrow().release.clone().unwrap();
        assert_eq!((release.commit, release.version.unwrap().as_str()), (None, "1.1.0+a"), "it is in the state");
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_failed_exec_is_retried_for_the_newest_release() {
    let (world, edge) = World::with_edge().await;
    let (log, gate) = (world.path().join("log"), world.path().join("gate"));
    let exec = format!(
        "cat content >> {}; echo >> {}; echo no gate >&2; test -e {}",
        log.display(),
        log.display(),
        gate.display()
    );
    edge.answers.publish(&shop(), with_content("1"));
    let mut config = with_exec(&world, &edge, &exec);
    config.services[0].report_output = true;
    let mut agent = Agent::start(config).await;
    let status = agent
        .until("exec has failed twice", |status| status.hook_failures >= 2 && status.hook == HookState::Failed)
        .await;
    let problem = status.current_problem(std::time::SystemTime::now()).unwrap();
    assert_eq!(problem.output.as_deref(), Some("no gate"));
    // What it wrote may be secret: it is in /status, and not in the error, which edges are told in any case.
    assert!(status.hook_error.unwrap().ends_with("exit status: 1"));
    assert_eq!(status.hook_stderr.unwrap(), "no gate");
    assert!(agent.metric("weir_agent_hook_runs_total", &[("result", "failure")]) >= 2.0);
    edge.answers.publish(&shop(), with_content("2"));
    std::fs::write(&gate, "").unwrap();
    agent.poll().await;
    agent.until("exec has succeeded", |status| status.hook == HookState::Succeeded).await;
    assert_eq!(lines(&log).last().map(String::as_str), Some("2"));
    agent.stop().await;
}

#[tokio::test]
async fn a_late_notification_does_not_end_the_back_off() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    // Seconds of the monotonic clock, to a hundredth.
    let exec = format!("cut -d' ' -f1 /proc/uptime >> {}; exit 1", log.display());
    edge.answers.publish(&shop(), with_content("1"));
    let mut agent = Agent::start(with_exec(&world, &edge, &exec)).await;
    agent.until("exec has failed twice", |status| status.hook_failures >= 2).await;
    agent.stop().await;
    let runs: Vec<f64> = lines(&log).iter().map(|line| line.parse().unwrap()).collect();
    // The first pause is 1 s, less up to a fifth.
    assert!(runs[1] - runs[0] > 0.75, "{runs:?}");
}

#[tokio::test]
async fn a_failed_exec_is_retried_after_a_restart() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    edge.answers.publish(&shop(), with_content("1"));
    let mut agent = Agent::start(with_exec(&world, &edge, "exit 3")).await;
    agent.until("exec has failed", |status| status.hook_failures > 0).await;
    agent.stop().await;
    // The edge is away, which is no reason not to run what is pending.
    edge.cut().await;
    let mut config = world.config(&["https://127.0.0.1:1".to_owned()]);
    config.services[0].exec = Some(format!("cat content >> {}", log.display()).into());
    let mut agent = Agent::start(config).await;
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    assert_eq!(lines(&log), ["1"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_hook_that_waits_for_the_first_poll_is_pending() {
    let (world, edge) = World::offering("1").await;
    let mut agent = Agent::start(with_exec(&world, &edge, "exit 3")).await;
    agent.until("exec has failed", |status| status.hook_failures > 0).await;
    agent.stop().await;
    // It accepts connections, and answers nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = with_exec(&world, &edge, "true");
    config.edges = vec![format!("https://{}", silent.local_addr().unwrap()).parse().unwrap()];
    let agent = Agent::start(config).await;
    assert_eq!(agent.status.borrow().hook, HookState::Pending);
    assert_eq!(agent.metric("weir_agent_hook_pending", &[]), 1.0);
    agent.stop().await;
}

#[tokio::test]
async fn a_timeout_kills_the_whole_process_group() {
    let (world, edge) = World::with_edge().await;
    let pids = world.path().join("pids");
    // A child that holds the output open and would go on for long after its parent.
    let exec = format!("sleep 1000 & echo $! >> {}; echo $$ >> {}; wait", pids.display(), pids.display());
    edge.answers.publish(&shop(), with_content("1"));
    let mut config = with_exec(&world, &edge, &exec);
    config.exec_timeout = Duration::from_secs(1);
    let mut agent = Agent::start(config).await;
    let status = agent.until("exec was killed", |status| status.hook_failures > 0).await;
    assert!(status.hook_error.unwrap().contains("longer than 1s"));
    assert_eq!(agent.metric("weir_agent_hook_runs_total", &[("result", "timeout")]), 1.0);
    for pid in lines(&pids).into_iter().take(2) {
        let gone = async {
            while is_alive(&pid) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{pid} lives"));
    }
    agent.running.cut().await;
}

/// A zombie that nobody has reaped yet is not alive.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

#[tokio::test]
async fn a_drain_waits_for_exec() {
    let (world, edge) = World::with_edge().await;
    let (begun, go, done) = (world.path().join("begun"), world.path().join("go"), world.path().join("done"));
    let exec = format!(
        "touch {}; while ! test -e {}; do sleep 0.05; done; touch {}",
        begun.display(),
        go.display(),
        done.display()
    );
    edge.answers.publish(&shop(), with_content("1"));
    let agent = Agent::with_release(with_exec(&world, &edge, &exec)).await;
    let mut status = agent.status.clone();
    let running = status.wait_for(|status| status.hook == HookState::Running);
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let drained = tokio::spawn(agent.stop());
    std::fs::write(&go, "").unwrap();
    drained.await.unwrap();
    assert!(done.exists());
    // And it is remembered that it did.
    let agent = Agent::start(with_exec(&world, &edge, "exit 1")).await;
    assert_eq!(agent.status.borrow().hook, HookState::Succeeded);
    agent.stop().await;
}

#[tokio::test]
async fn exec_runs_again_if_its_result_was_not_recorded() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    // While it runs for the first time the state becomes one that cannot be written.
    let exec = format!("echo >> {0}; test $(wc -l < {0}) -gt 1 || mkdir ../../.state.new", log.display());
    edge.answers.publish(&shop(), with_content("1"));
    let mut agent = Agent::start(with_exec(&world, &edge, &exec)).await;
    agent.until("exec has run", |status| status.hook_runs > 0).await;
    assert_eq!(agent.metric("weir_agent_hook_pending", &[]), 1.0);
    assert_eq!(agent.status.borrow().hook, HookState::Pending, "it succeeded, and has to run again");
    std::fs::remove_dir(world.service_dir().join(".state.new")).unwrap();
    agent.until("exec has run again", |status| status.hook_runs > 1 && status.hook == HookState::Succeeded).await;
    assert_eq!(agent.metric("weir_agent_hook_pending", &[]), 0.0);
    agent.stop().await;
    let agent = Agent::start(with_exec(&world, &edge, &exec)).await;
    assert_eq!(agent.status.borrow().hook, HookState::Succeeded);
    agent.stop().await;
}

#[tokio::test]
async fn a_hook_that_fails_has_one_problem_until_it_succeeds() {
    let (world, edge) = World::with_edge().await;
    let gate = world.path().join("gate");
    edge.answers.publish(&shop(), with_content("1"));
    let mut config = with_exec(&world, &edge, &format!("test -e {}", gate.display()));
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let mut agent = Agent::start(config).await;
    let failures = async |agent: &mut Agent, above| {
        agent.until("it has failed", |status| status.hook_failures > above && status.hook == HookState::Failed).await;
        let problem = agent.shown().await["services"]["shop"]["problem"].clone();
        let since = humantime::parse_rfc3339(problem["since"].as_str().unwrap()).unwrap();
        (since, problem["tries"].as_u64().unwrap())
    };
    let (first, tries) = failures(&mut agent, 0).await;
    for release in ["2", "3"] {
        // Whole seconds are shown.
        while std::time::SystemTime::now() < first + Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let before = agent.status.borrow().hook_failures;
        edge.answers.publish(&shop(), with_content(release));
        agent.poll().await;
        let (since, more) = failures(&mut agent, before).await;
        assert_eq!(since, first, "the release is another one, the problem is not");
        assert!(more > tries && more > before, "{more} after {before}");
    }
    std::fs::write(gate, "").unwrap();
    agent.until("it succeeds", |status| status.hook == HookState::Succeeded).await;
    assert_eq!(agent.shown().await["services"]["shop"]["problem"], serde_json::Value::Null);
    agent.stop().await;
}
