//! When upstreams are polled, and which polls wait for others.

use std::io::Write;
use std::sync::mpsc;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::damage::{lose_packs, mirror};
use crate::prelude::*;

/// The phase in which a server becomes slow: it sends a few bytes now and then, never ends, and never stalls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SlowPhase {
    InTheListing,
    InThePack,
}

/// A slow server, and a permit for each response that has started.
fn slow_server(host: &str, slow: SlowPhase) -> (ScriptedServer, Arc<Semaphore>) {
    let begun = Arc::new(Semaphore::new(0));
    let sender = begun.clone();
    let refs = listing([("1234567812345678123456781234567812345678", "refs/heads/main")]);
    let server = ScriptedServer::start_at(host, move |request, body, socket| {
        if request.starts_with("GET") {
            return say(socket, ADVERTISEMENT, &advertisement());
        }
        let lists = body.windows(7).any(|word| word == b"ls-refs");
        if lists && slow == SlowPhase::InThePack {
            return say(socket, RESULT, &refs);
        }
        begin(socket, RESULT, 1 << 30)?;
        if !lists {
            socket.write_all(&line("packfile\n"))?;
        }
        sender.add_permits(1);
        loop {
            // Progress messages, or single refs.
            let drop = if lists { &refs[..refs.len() - 4] } else { &line(b"\x02Counting\r")[..] };
            socket.write_all(drop)?;
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    (server, begun)
}

/// Repositories of a server whose names sort first.
fn repositories_at<'a>(server: &'a ScriptedServer, name: &'a str) -> impl Iterator<Item = RepositoryConfig> + 'a {
    (0..8).map(move |number| RepositoryConfig::new(format!("{name}-{number}").parse().unwrap(), server.url()))
}

async fn waits_for(node: &Node, name: &str, what: WaitsFor) {
    let mut state = node.running.repository(&name.parse().unwrap()).unwrap();
    in_time(state.wait_for(|state| state.waits_for == Some(what))).await.unwrap();
}

#[tokio::test]
async fn slow_hosts_delay_no_other_host_and_a_slow_listing_is_stopped() {
    for slow in [SlowPhase::InTheListing, SlowPhase::InThePack] {
        let (home, upstream) = (Home::new(), Upstream::small());
        let servers = [slow_server("127.0.0.2", slow), slow_server("127.0.0.3", slow)];
        let mut config = home.config(&upstream.url());
        for ((server, _), name) in servers.iter().zip(["one", "two"]) {
            config.repositories.splice(0..0, repositories_at(server, name));
        }
        // Longer than a slow thread may wait.
        config.repositories[0].stall_timeout = Duration::from_secs(2);
        let first = config.repositories[0].name.clone();
        let each = config.limits.concurrent_fetches_per_host / if slow == SlowPhase::InTheListing { 1 } else { 2 };
        let node = home.start(config).await;
        for (_, begun) in &servers {
            begun.acquire_many(u32::try_from(each).unwrap()).await.unwrap().forget();
        }
        let waits = if slow == SlowPhase::InTheListing { WaitsFor::HostPermit } else { WaitsFor::LargePermit };
        waits_for(&node, "one-7", waits).await;
        let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
        node.poll().await;
        assert_eq!(commit_of(&node.descriptor().await), commit);
        if slow == SlowPhase::InTheListing {
            let mut state = node.running.repository(&first).unwrap();
            let state =
                in_time(state.wait_for(|state| matches!(state.health, Health::Unhealthy { .. }))).await.unwrap();
            let Health::Unhealthy { failure, .. } = &state.health else { unreachable!() };
            assert!(failure.timeout && failure.reason.contains("not listed within 8 s"), "{failure:?}");
        }
        node.running.cut().await;
    }
}

#[tokio::test]
async fn first_clones_of_a_host_delay_no_fetch_of_a_mirrored_repository() {
    for (fetches, of_a_host, clones) in [(8, 4, 2), (1, 1, 1)] {
        let (home, upstream) = (Home::new(), Upstream::small());
        let server = SmartHttp::start(upstream.bare().parent().unwrap(), None);
        let node = home.start(home.config(&server.url("bare.git"))).await;
        node.published(|_| true).await;
        node.stop().await;

        let (slow, begun) = slow_server("127.0.0.1", SlowPhase::InThePack);
        let mut config = home.config(&server.url("bare.git"));
        (config.limits.concurrent_fetches, config.limits.concurrent_fetches_per_host) = (fetches, of_a_host);
        config.repositories.splice(0..0, repositories_at(&slow, "large"));
        let node = home.start(config).await;
        begun.acquire_many(clones).await.unwrap().forget();
        for name in (0..8).map(|number| format!("large-{number}")) {
            let mut state = node.running.repository(&name.parse().unwrap()).unwrap();
            let begun = |state: &RepositoryState| match &state.phase {
                Phase::Fetching { progress } => progress.phase == "preparing",
                _ => state.waits_for == Some(WaitsFor::LargePermit),
            };
            in_time(state.wait_for(begun)).await.unwrap();
        }
        let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
        node.poll().await;
        assert_eq!(commit_of(&node.descriptor().await), commit);
        assert_eq!(node.metric("weir_bound_in_use{bound=\"large_fetches\"}").await, f64::from(clones));
        node.running.cut().await;
    }
}

/// A server that serves a repository once, and sends later changes slowly: progress before the pack, or its bytes.
fn slow_later(upstream: &Upstream, bytes: bool) -> ScriptedServer {
    let refs = |id: &str| listing([(id, "HEAD"), (id, "refs/heads/main")]);
    let head = upstream.git(&["rev-parse", "HEAD"]);
    let first = refs(&head);
    let later = refs("1234567812345678123456781234567812345678");
    let work = Git::at(upstream.work());
    let pack = packfile(&work.feed(["pack-objects", "--quiet", "--stdout", "--revs"], b"HEAD\n"));
    let served = Arc::new(AtomicBool::new(false));
    let has_served = served.clone();
    let refs = move || if has_served.load(Ordering::Relaxed) { later.clone() } else { first.clone() };
    ScriptedServer::of_refs("127.0.0.2", refs, move |socket| {
        if !served.swap(true, Ordering::Relaxed) {
            return say(socket, RESULT, &pack);
        }
        begin(socket, RESULT, 1 << 30)?;
        socket.write_all(&line("packfile\n"))?;
        if bytes {
            // A blob of 128 MiB, which begins with a stored block of 32767 bytes.
            let blob = [&[0xb0, 0x80, 0x80, 0x80, 0x04, 0x78, 0x01][..], &[0, 0xff, 0x7f, 0, 0x80]].concat();
            socket.write_all(&line([&b"\x01PACK\0\0\0\x02\0\0\0\x01"[..], &blob].concat()))?;
        }
        for count in 0.. {
            let word = format!("\u{2}Counting objects: {count}\r");
            socket.write_all(&line(if bytes { "\u{1}x" } else { &word }))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })
}

/// A node whose only permit to fetch is held by a repository of that server, and the state of that repository.
async fn during_a_slow_fetch(
    home: &Home,
    mut config: Config,
    server: &ScriptedServer,
) -> (Node, watch::Receiver<RepositoryState>) {
    config.limits.concurrent_fetches = 1;
    let slow: RepositoryName = "slow".parse().unwrap();
    let mut slow_repository = RepositoryConfig::new(slow.clone(), server.url());
    (slow_repository.stall_timeout, slow_repository.poll_interval) =
        (Duration::from_secs(2), Duration::from_secs(3600));
    slow_repository.min_poll_interval = Duration::from_millis(100);
    config.repositories.push(slow_repository);
    let services: Vec<_> = config.services.iter().map(|service| service.name.to_string()).collect();
    let node = Box::pin(home.start(config)).await;
    for service in services {
        node.published_of(&service, |_| true).await;
    }
    let mut state = node.running.repository(&slow).unwrap();
    in_time(state.wait_for(|state| state.mirrored && state.applied_polls > 0)).await.unwrap();
    assert!(node.running.trigger_poll(&slow));
    let fetches = |state: &RepositoryState| matches!(&state.phase, Phase::Polling { progress } if ["preparing", "receiving"].contains(&progress.phase));
    in_time(state.wait_for(fetches)).await.unwrap();
    (node, state)
}

#[tokio::test]
async fn a_deleted_branch_waits_for_no_fetch() {
    let (home, upstream, other) = (Home::new(), Upstream::small(), Upstream::small());
    let first = upstream.git(&["rev-parse", "HEAD"]);
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/heads/old"]);
    let mut config = home.config(&upstream.url());
    also(&mut config, "old").followed_ref = "old".parse().unwrap();
    config.services[1].folder = "deploy".parse().unwrap();
    let (node, _) = during_a_slow_fetch(&home, config, &slow_later(&other, true)).await;
    upstream.push("deploy/app.yaml", b"replicas: 2\n");
    upstream.git(&["push", "--quiet", "origin", ":refs/heads/old"]);
    node.running.trigger_poll(&repository());
    node.repository(|state| state.waits_for == Some(WaitsFor::Permit)).await;
    let branches = Git::at(mirror(&home)).line(["for-each-ref", "--format=%(refname)", "refs/heads"]);
    assert_eq!(branches, "refs/heads/main");

    // Even if no other ref is left, the service shows the failure.
    upstream.git(&["push", "--quiet", "--force", "origin", &format!("{first}:refs/heads/main")]);
    let mut condition = node.running.condition(&"old".parse().unwrap()).unwrap();
    in_time(condition.wait_for(|condition| matches!(condition, Condition::Unhealthy { .. }))).await.unwrap();
    node.running.cut().await;
}

#[tokio::test]
async fn a_slow_fetch_of_a_mirrored_repository_loses_its_permit() {
    for (bytes, words) in [(true, "`[upstreams] min_rate` = 1024"), (false, "did not start to send")] {
        let (home, upstream, other) = (Home::new(), Upstream::small(), Upstream::small());
        let server = slow_later(&other, bytes);
        let (node, mut state) = during_a_slow_fetch(&home, home.config(&upstream.url()), &server).await;
        let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
        node.running.trigger_poll(&repository());
        node.repository(|state| state.waits_for == Some(WaitsFor::Permit)).await;
        node.published(|descriptor| commit_of(descriptor) == commit).await;
        let state = in_time(state.wait_for(|state| matches!(state.health, Health::Unhealthy { .. }))).await.unwrap();
        let Health::Unhealthy { failure, .. } = &state.health else { unreachable!() };
        assert!(failure.timeout && failure.step == "fetch" && failure.reason.contains(words), "{failure:?}");
        drop(state);
        node.running.cut().await;
    }
}

#[tokio::test]
async fn a_mirror_that_is_cloned_again_needs_a_permit_of_first_clones() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = slow_later(&upstream, false);
    let node = home.start(home.config(&server.url())).await;
    node.published(|_| true).await;
    node.stop().await;
    lose_packs(&home);
    let node = home.start(home.config(&server.url())).await;
    let clones =
        |state: &RepositoryState| matches!(&state.phase, Phase::Fetching { progress } if progress.phase == "preparing");
    node.repository(clones).await;
    for (bound, in_use) in [("large_fetches", 1.0), ("fetches", 0.0)] {
        assert_eq!(node.metric(&format!("weir_bound_in_use{{bound=\"{bound}\"}}")).await, in_use, "{bound}");
    }
    node.running.cut().await;
}

#[tokio::test]
async fn a_fetch_without_a_permit_starts_when_one_is_free() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let (slow, begun) = slow_server("127.0.0.1", SlowPhase::InThePack);
    let mut config = empty_config(&home);
    config.limits.concurrent_fetches = 1;
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let large = json!({ "url": slow.url(), "poll_interval": "1h", "poll_timeout": "10s" });
    operator.put("/v1/repositories/large", large).await;
    begun.acquire().await.unwrap().forget();
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    operator.put("/v1/services/shop-prod", json!({ "repository": "shop", "folder": "deploy" })).await;
    node.repository(|state| state.waits_for == Some(WaitsFor::LargePermit)).await;
    assert_eq!(operator.get("/v1/repositories/shop").await.body["status"]["waits_for"], "large_permit");
    // The deadline of the first clone ends the wait.
    node.published(|_| true).await;
    assert!(node.metric("weir_origin_poll_wait_seconds_total{reason=\"large_permit\"}").await > 0.0);
    node.running.cut().await;
}

#[tokio::test]
async fn a_ref_that_is_added_while_a_poll_waits_for_its_permit_is_fetched_by_that_poll() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/pull/7/head"]);
    let server = serve(&upstream);
    let (silent, requests, release) = silent();
    let mut config = config(&home, &upstream);
    config.repositories[0].url = server.url("bare.git").into();
    config.limits.concurrent_fetches_per_host = 1;
    let node = home.start(config).await;
    node.published(|_| true).await;
    let operator = Operator::of(&home, &node);
    operator.put("/v1/repositories/silent", json!({ "url": silent.url() })).await;
    requests.acquire().await.unwrap().forget();
    node.running.trigger_poll(&repository());
    node.repository(|state| state.waits_for == Some(WaitsFor::HostPermit)).await;
    let pull = json!({ "repository": "shop", "ref": "refs/pull/7/head" });
    assert_eq!(operator.put("/v1/services/pull", pull).await.status, 201);
    drop(release);
    let mut published = node.running.service(&"pull".parse().unwrap()).unwrap();
    in_time(published.wait_for(Option::is_some)).await.unwrap();
    node.running.cut().await;
}

/// A server that sends no response until it is released, and a permit for each request.
pub(crate) fn silent() -> (ScriptedServer, Arc<Semaphore>, mpsc::Sender<()>) {
    let (release, held) = mpsc::channel::<()>();
    let (requests, held) = (Arc::new(Semaphore::new(0)), Mutex::new(held));
    let counter = requests.clone();
    let server = ScriptedServer::start(move |_, _, _| {
        counter.add_permits(1);
        let _ = held.lock().unwrap().recv();
        Ok(())
    });
    (server, requests, release)
}

#[tokio::test]
async fn a_host_that_hangs_with_eight_repositories_delays_no_other() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = home.config(&upstream.url());
    assert_eq!(config.limits.concurrent_fetches, 8);
    let hanging: Vec<_> = (0..8)
        .map(|n| {
            let url = format!("http://{}/{n}.git", silent.local_addr().unwrap());
            RepositoryConfig::new(format!("hanging-{n}").parse().unwrap(), url)
        })
        .collect();
    let names: Vec<_> = hanging.iter().map(|each| each.name.clone()).collect();
    // Their names sort first.
    config.repositories.splice(0..0, hanging);
    let limit = config.limits.concurrent_fetches_per_host;
    let node = home.start(config).await;
    let mut held = Vec::new();
    for _ in 0..limit {
        held.push(silent.accept().await.unwrap());
    }
    // The others wait, and show what they wait for.
    let mut waiting = 0;
    for name in &names {
        let mut state = node.running.repository(name).unwrap();
        let is_waiting =
            |state: &RepositoryState| state.waits_for.is_some() || matches!(state.phase, Phase::Fetching { .. });
        let state = state.wait_for(is_waiting).await.unwrap().clone();
        waiting += usize::from(state.waits_for == Some(WaitsFor::HostPermit));
    }
    assert_eq!(waiting, names.len() - limit);
    node.published(|_| true).await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), commit);
    drop((held, silent));
    node.running.cut().await;
}

#[tokio::test]
async fn an_unchanged_poll_is_one_listing_and_a_small_budget_makes_polls_wait() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), None);
    let mut config = home.config(&server.url("bare.git"));
    // The burst is enough for one poll; the next one waits.
    config.limits.requests_per_minute_per_host = 10;
    let node = home.start(config).await;
    node.published(|_| true).await;
    server.take_requests();
    node.running.trigger_poll(&repository());
    node.repository(|state| state.waits_for == Some(WaitsFor::HostBudget)).await;
    let shown = node.status().await;
    assert_eq!(shown["repositories"][0]["waits_for"], "host_budget");
    assert_eq!(server.take_requests().len(), 0);
    node.running.cut().await;

    let mut config = home.config(&server.url("bare.git"));
    config.limits.requests_per_minute_per_host = 6000;
    let node = home.start(config).await;
    node.poll().await;
    server.take_requests();
    node.poll().await;
    let requests = server.take_requests();
    let lines: Vec<&str> = requests.iter().map(|head| head.lines().next().unwrap()).collect();
    assert_eq!(
        lines,
        ["GET /bare.git/info/refs?service=git-upload-pack HTTP/1.1", "POST /bare.git/git-upload-pack HTTP/1.1"]
    );
    node.stop().await;
}
