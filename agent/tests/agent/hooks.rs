//! The check before a switch, and the hooks that are no shell command.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use prometheus::Registry;
use tokio::net::TcpListener;
use weir_agent::config::{HookCommand, ServiceConfig, SignalConfig, SignalName, WebhookConfig};
use weir_agent::once;
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::observed::HookState;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{ClientAuth, server_config};

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::until;
use crate::edge::{Fault, commit};
use crate::tarball::{Tarball, with_content};

fn lines(path: &std::path::Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_check_vetoes_a_switch_and_is_retried_without_a_download() {
    let (world, edge) = World::with_edge().await;
    let (log, gate) = (world.path().join("log"), world.path().join("gate"));
    let (one, _) = edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[edge.url()]);
    // Runs in the new release while the old one is current.
    let check = format!(
        "echo \"$(cat content) $(cat ../../current/content 2>/dev/null) $WEIR_PREVIOUS_REVISION\" >> {}; \
         test \"$(cat content)\" != two -o -e {}",
        log.display(),
        gate.display()
    );
    config.services[0].check = Some(check.into());
    let mut agent = Agent::with_release(config).await;
    let (two, _) = edge.answers.publish(&shop(), with_content("two"));
    edge.answers.forget();
    let status = agent.poll().await;
    let error = status.last_error.unwrap();
    assert!(error.contains("check exited with exit status: 1") && error.contains(&two.to_string()), "{error}");
    assert!(!status.last_error_retryable);
    assert_eq!(world.current(), Some(one.to_string()));
    let runs = |result: &str| ("weir_agent_check_runs_total", [("result", result.to_owned())]);
    let count = |agent: &Agent, result: &str| {
        let (name, [(key, value)]) = runs(result);
        agent.metric(name, &[(key, &value)])
    };
    assert_eq!((count(&agent, "success"), count(&agent, "failure")), (1.0, 1.0));
    // Neither a poll nor a refresh runs it again before its back-off, nor fetches a poll the tarball again.
    assert_eq!(agent.poll().await.last_error.as_deref(), Some(error.as_str()));
    assert_eq!(agent.refresh().await.last_error.as_deref(), Some(error.as_str()));
    let gets = edge.answers.seen().iter().filter(|seen| seen.method == http::Method::GET).count();
    assert_eq!(gets, 2, "one for the new content, one for the refresh");

    std::fs::write(&gate, "").unwrap();
    // The agent polls again by itself. The back-off of the check decides when it passes.
    agent.until("it has switched", |status| status.switches == 2).await;
    let gets = edge.answers.seen().iter().filter(|seen| seen.method == http::Method::GET).count();
    assert_eq!(gets, 2, "the release was on disk");
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert_eq!(agent.status.borrow().last_error, None);
    assert_eq!(lines(&log)[..2], ["one  ".to_owned(), format!("two one sha1:{}", commit(1))]);
    agent.stop().await;
}

#[tokio::test]
async fn an_edge_that_lags_clears_no_veto() {
    let world = World::new();
    let (edge, lagging) = (world.edge().await, world.edge().await);
    edge.answers.assign(&[]);
    for edge in [&edge, &lagging] {
        edge.answers.publish(&shop(), with_content("one"));
    }
    let old = edge.answers.row(&shop());
    let mut config = world.config(&[edge.url(), lagging.url()]);
    config.spread = Duration::ZERO;
    config.services[0].check = Some("test $(cat content) != two".into());
    let mut agent = Agent::with_release(config).await;
    edge.answers.publish(&shop(), with_content("two"));
    agent.running.poll_now(&shop());
    let status = agent.until("it is refused", |status| status.last_error.is_some()).await;
    let (refused, unchanged) = (status.last_error, status.unchanged);
    assert!(refused.as_ref().unwrap().contains("check exited"), "{refused:?}");
    for edge in [&edge, &lagging] {
        edge.answers.forget();
    }
    // The row of an edge that has not seen the new release.
    let events = || agent.metric_if_any("weir_agent_events_total", &[("event", "changed")]).unwrap_or_default();
    let before = events();
    until("the stream is open", || edge.answers.streams() == 1).await;
    edge.answers.send(AgentEventKind::Changed(old));
    until("the event has come", || events() > before).await;
    let after = agent.poll().await;
    assert_eq!((after.last_error, after.unchanged), (refused.clone(), unchanged), "the row confirms nothing");
    // Its answer to a poll.
    edge.answers.fail_always(Fault::Status(503, None));
    agent.running.poll_now(&shop());
    agent.until("the other edge has answered", |status| status.last_error.is_none()).await;
    edge.answers.fail_always(None);
    lagging.answers.publish(&shop(), with_content("two"));
    agent.running.poll_now(&shop());
    let again = agent.until("it is refused again", |status| status.last_error.is_some()).await.last_error;
    assert_eq!(again, refused);
    let seen = [&edge, &lagging].map(|edge| edge.answers.seen()).concat();
    assert!(seen.iter().all(|seen| seen.method == http::Method::HEAD), "the refused release is on disk: {seen:?}");
    agent.stop().await;
}

#[tokio::test]
async fn a_refused_release_gives_way_to_the_next_one() {
    let (world, edge) = World::offering("bad").await;
    let mut config = world.config(&[edge.url()]);
    config.services[0].check = Some("! grep -q bad content".into());
    let mut agent = Agent::start(config.clone()).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert!(status.release.is_none() && world.current().is_none(), "nothing is in force: {status:?}");
    // It is not what a pipeline waits for.
    agent.stop().await;
    let error = once(config.clone(), Duration::from_secs(60)).await.unwrap_err().to_string();
    assert!(error.contains("check exited with"), "{error}");

    edge.answers.publish(&shop(), with_content("good"));
    let mut agent = Agent::start(config).await;
    agent.until("it has switched", |status| status.switches == 1).await;
    edge.answers.publish(&shop(), with_content("bad again"));
    assert!(agent.poll().await.last_error.is_some());
    edge.answers.publish(&shop(), with_content("good again"));
    let status = agent.poll().await;
    assert_eq!((status.last_error, world.read("content").as_deref()), (None, Some("good again")));
    agent.stop().await;
}

#[tokio::test]
async fn a_drain_ends_a_check_and_nothing_is_switched() {
    let (world, edge) = World::with_edge().await;
    let begun = world.path().join("begun");
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[edge.url()]);
    config.services[0].check = Some(format!("touch {}; sleep 1000", begun.display()).into());
    let agent = Agent::start(config.clone()).await;
    let running = async {
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::edge::PATIENCE, running).await.unwrap();
    agent.stop().await;
    assert_eq!(world.current(), None);
    // The next agent finds the release on disk, and checks it anew.
    config.services[0].check = Some(HookCommand::Program(vec!["/bin/true".to_owned()]));
    Agent::with_release(config).await.stop().await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
}

#[tokio::test]
async fn a_program_without_a_shell_gets_the_changed_paths() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    let script = world.path().join("program");
    std::fs::write(&script, "#!/bin/sh\ntest \"$2\" = 'a b' || exit 9\nsort \"$WEIR_CHANGES\" > \"$1\"\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut config = world.config(&[edge.url()]);
    let words = [script.to_str().unwrap(), log.to_str().unwrap(), "a b"].map(str::to_owned);
    config.services[0].exec = Some(HookCommand::Program(words.into()));
    edge.answers.publish(&shop(), Tarball::new().file("kept", "1").file("gone", "1").file("text", "1").finish());
    let mut agent = Agent::start(config).await;
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    let all = ["gone", "kept", "text"].map(|path| format!(r#"{{"change":"added","path":"{path}"}}"#));
    assert_eq!(lines(&log), all);
    edge.answers.publish(&shop(), Tarball::new().file("kept", "1").file("new/file", "1").file("text", "2").finish());
    agent.poll().await;
    agent.until("exec has run again", |status| status.hook_runs == 2 && status.hook == HookState::Succeeded).await;
    let changed = [("added", "new/file"), ("changed", "text"), ("removed", "gone")];
    let changed = changed.map(|(change, path)| format!(r#"{{"change":"{change}","path":"{path}"}}"#));
    assert_eq!(lines(&log), changed);
    agent.stop().await;
    world.assert_no_leftovers();
}

#[tokio::test]
async fn changes_are_those_since_the_last_success() {
    let (world, edge) = World::with_edge().await;
    let log = world.path().join("log");
    let mut config = world.config(&[edge.url()]);
    config.keep_releases = 1;
    let exec = format!(
        "test \"$(cat a)\" = 1 -o \"$(cat b)\" = 3 || exit 1; echo $WEIR_PREVIOUS_DIGEST > {0}; cat $WEIR_CHANGES >> {0}",
        log.display()
    );
    config.services[0].exec = Some(exec.into());
    let (one, _) = edge.answers.publish(&shop(), Tarball::new().file("a", "1").file("b", "1").finish());
    let mut agent = Agent::start(config).await;
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    edge.answers.publish(&shop(), Tarball::new().file("a", "2").file("b", "1").finish());
    agent.poll().await;
    agent.until("exec has failed", |status| status.hook_failures > 0).await;
    edge.answers.publish(&shop(), Tarball::new().file("a", "2").file("b", "3").finish());
    agent.poll().await;
    agent.until("exec has succeeded", |status| status.hook == HookState::Succeeded).await;
    let changed = ["a", "b"].map(|path| format!(r#"{{"change":"changed","path":"{path}"}}"#));
    let written = lines(&log);
    assert!(written[0] == one.to_string() && changed.iter().all(|line| written.contains(line)), "{written:?}");
    agent.stop().await;
}

#[tokio::test]
async fn a_file_is_touched_and_a_process_gets_a_signal() {
    let (world, edge) = World::with_edge().await;
    let (touched, pid_file) = (world.path().join("touched"), world.path().join("pid"));
    edge.answers.publish(&shop(), with_content("one"));
    let mut config = world.config(&[edge.url()]);
    config.services[0].touch = Some(touched.clone());
    config.services[0].signal = Some(SignalConfig { pid_file: pid_file.clone(), signal: SignalName::Usr1 });
    let mut agent = Agent::start(config).await;
    let status = agent.until("the signal has failed", |status| status.hook_failures > 0).await;
    assert!(status.hook_error.unwrap().contains(pid_file.to_str().unwrap()));
    assert!(agent.metric("weir_agent_hook_runs_total", &[("result", "error")]) >= 1.0);
    // Hooks that succeeded run again with the one that failed.
    File::set_modified(&File::options().write(true).open(&touched).unwrap(), SystemTime::UNIX_EPOCH).unwrap();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(&pid_file, format!("{}\n", child.id())).unwrap();
    agent.until("the hooks have succeeded", |status| status.hook == HookState::Succeeded).await;
    assert!(std::fs::metadata(&touched).unwrap().modified().unwrap() > SystemTime::UNIX_EPOCH);
    use std::os::unix::process::ExitStatusExt;
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(ended.signal(), Some(rustix::process::Signal::USR1.as_raw()));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_that_hang_end_and_stop_nothing_else() {
    let (world, edge) = World::offering("one").await;
    let pipe = world.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    // It accepts connections, and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let webhook = |ca| Some(WebhookConfig { url: url.clone(), ca, timeout: Duration::from_secs(3600) });
    let hooks = [
        ("touch", ServiceConfig { touch: Some(pipe.clone()), ..ServiceConfig::new(&shop()) }),
        ("signal", {
            let signal = Some(SignalConfig { pid_file: pipe.clone(), signal: SignalName::Hup });
            ServiceConfig { signal, ..ServiceConfig::new(&shop()) }
        }),
        ("longer than 1s", ServiceConfig { webhook: webhook(None), ..ServiceConfig::new(&shop()) }),
        ("longer than 1s", ServiceConfig { webhook: webhook(Some(pipe.clone())), ..ServiceConfig::new(&shop()) }),
    ];
    for (expected, service) in hooks {
        let mut config = world.config(&[edge.url()]);
        config.exec_timeout = Duration::from_secs(1);
        config.services = vec![service];
        let mut agent = Agent::with_release(config).await;
        edge.answers.publish(&shop(), with_content(fastrand::u64(..).to_string()));
        assert_eq!(agent.poll().await.last_error, None, "{expected}");
        let status = agent.until("the hook has failed", |status| status.hook_error.is_some()).await;
        let error = status.hook_error.unwrap();
        assert!(error.contains(expected), "{error}");
        // Somebody who opens the pipe lets go what hangs, at the next agent too.
        drop(File::options().read(true).write(true).open(&pipe).unwrap());
        agent.running.cut().await;
    }
}

/// What a webhook received, and what it answers next.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<(Vec<serde_json::Value>, Vec<StatusCode>)>>);

impl Handler for Receiver {
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        assert_eq!(request.headers()["content-type"], "application/json");
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let mut state = self.0.lock().expect("no test panics with it");
        state.0.push(serde_json::from_slice(&body).expect("JSON"));
        let status = state.1.pop().unwrap_or(StatusCode::NO_CONTENT);
        Response::builder().status(status).body(Body::Empty).expect("a response")
    }
}

#[tokio::test]
async fn a_webhook_gets_the_facts_with_and_without_tls() {
    for scheme in ["http", "https"] {
        let world = World::new();
        let edge = world.edge().await;
        let file = |name: &str| world.path().join(name);
        let tls = server_config(&file("edge.pem"), &file("edge.key"), ClientAuth::None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://{}/switched", listener.local_addr().unwrap());
        let (receiver, drain) = (Receiver::default(), Drain::new());
        // The first request is refused.
        receiver.0.lock().unwrap().1.push(StatusCode::SERVICE_UNAVAILABLE);
        let metrics = HttpMetrics::register(&Registry::new()).unwrap();
        let tls = (scheme == "https").then_some(tls);
        serve::tcp(listener, tls, receiver.clone(), metrics.listener("tcp"), &drain);

        let (one, generation) = edge.answers.publish(&shop(), with_content("one"));
        let mut config = world.config(&[edge.url()]);
        config.services[0].webhook = Some(WebhookConfig { url, ca: None, timeout: Duration::from_secs(10) });
        let mut agent = Agent::start(config).await;
        let status = agent.until("the webhook was refused", |status| status.hook_failures > 0).await;
        assert_eq!(status.hook_error.unwrap(), "webhook failed: the server answers 503 Service Unavailable");
        agent.until("the webhook has succeeded", |status| status.hook == HookState::Succeeded).await;
        edge.answers.publish(&shop(), with_content("two"));
        agent.poll().await;
        agent.until("it was sent again", |status| status.hook_runs == 3 && status.hook == HookState::Succeeded).await;
        let received = receiver.0.lock().unwrap().0.clone();
        assert_eq!(received.len(), 3);
        assert_eq!(received[0], received[1]);
        assert_eq!((&received[0]["service"], &received[0]["previous"]), (&"shop".into(), &serde_json::Value::Null));
        let two = &received[2];
        let revision = format!("sha1:{}", commit(generation));
        assert_eq!(
            (&two["previous"]["digest"], &two["previous"]["revision_id"]),
            (&one.to_string().into(), &revision.into())
        );
        assert_eq!(two["changes"], serde_json::json!([{ "change": "changed", "path": "content" }]));
        assert_eq!(two["changes_total"], 1);
        agent.stop().await;
        drain.cut().await;
    }
}
