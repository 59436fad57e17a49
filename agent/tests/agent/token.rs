//! The agent's bearer token.

use http::Version;
use weir_agent::config::HttpMode;

use crate::agent_under_test::{Agent, World};
use crate::edge::Fault;

#[tokio::test]
async fn each_request_has_the_current_token_of_the_file() {
    let (world, edge) = World::offering("one").await;
    let file = world.path().join("token");
    std::fs::write(&file, "first.token.x\n").unwrap();
    let mut config = world.config(&[edge.url()]);
    config.token_file = Some(file.clone());
    for (http, version) in [(HttpMode::H3, Version::HTTP_3), (HttpMode::H2, Version::HTTP_2)] {
        config.http = http;
        std::fs::write(&file, "first.token.x\n").unwrap();
        let mut agent = Agent::with_release(config.clone()).await;
        agent.poll().await;
        let shown = |wanted: &str| {
            let seen = edge.answers.seen();
            assert!(!seen.is_empty() && seen.iter().all(|seen| seen.version == version), "{seen:?}");
            assert!(seen.iter().all(|seen| seen.headers["authorization"] == *wanted), "{seen:?}");
            edge.answers.forget();
        };
        shown("Bearer first.token.x");
        std::fs::write(&file, "second.token.x\n").unwrap();
        agent.poll().await;
        agent.refresh().await;
        shown("Bearer second.token.x");
        agent.stop().await;
        std::fs::remove_dir_all(world.path().join("root")).unwrap();
    }
}

#[tokio::test]
async fn a_401_is_reported_with_its_detail_and_advice() {
    let (world, edge) = World::offering("one").await;
    let file = world.path().join("token");
    std::fs::write(&file, "secret.token.x\n").unwrap();
    let mut config = world.config(&[edge.url()]);
    config.token_file = Some(file.clone());
    let mut agent = Agent::with_release(config.clone()).await;
    edge.answers.fail_always(Fault::Problem(401, "The token has expired: a new one is needed.".to_owned()));
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("401 Unauthorized: The token has expired: a new one is needed. Put a token"), "{error}");
    assert!(error.contains(file.to_str().unwrap()) && !error.contains("secret"), "{error}");
    assert!(agent.metric("weir_agent_errors_total", &[("kind", "unauthorized")]) >= 1.0);

    // Without the file no request is sent, and the release stays.
    edge.answers.fail_always(None);
    edge.answers.forget();
    std::fs::remove_file(&file).unwrap();
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("the token file") && error.contains("No such file"), "{error}");
    assert!(edge.answers.seen().is_empty());
    assert_eq!(world.read("content").as_deref(), Some("one"));
    std::fs::write(&file, "new.token.x").unwrap();
    assert_eq!(agent.poll().await.last_error, None);
    agent.stop().await;

    config.token_file = None;
    let mut agent = Agent::with_release(config).await;
    edge.answers.fail_always(Fault::Status(401, None));
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("Give this agent a token (`token_file`)"), "{error}");
    agent.stop().await;
}
