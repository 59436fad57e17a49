//! Bytes that are not those of the digest, and generations that go back.

use http::Method;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::Fault;
use crate::tarball::with_content;

#[tokio::test]
async fn a_flipped_bit_is_counted_and_repaired_within_the_poll() {
    let (world, edge, _, mut agent) = World::following(with_content("one")).await;
    for (count, fault) in [Fault::FlipBit, Fault::Truncate, Fault::WrongDigest].into_iter().enumerate() {
        let content = format!("after {fault:?}");
        edge.answers.publish(&shop(), with_content(&content));
        edge.answers.fail([fault]);
        edge.answers.forget();
        let status = agent.poll().await;
        assert_eq!(status.last_error, None);
        assert_eq!(world.read("content"), Some(content));
        assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), (count + 1) as f64);
        // The second time past every cache.
        let gets: Vec<_> = edge.answers.seen().into_iter().filter(|seen| seen.method == Method::GET).collect();
        assert_eq!(gets.len(), 2);
        assert!(!gets[0].headers.contains_key("cache-control"));
        assert_eq!(gets[1].headers["cache-control"], "no-cache");
        assert!(!gets[1].headers.contains_key("if-none-match"));
    }
    world.assert_no_leftovers();
    agent.stop().await;
}

#[tokio::test]
async fn repeatedly_wrong_bytes_change_nothing() {
    let (world, edge, one, mut agent) = World::following(with_content("one")).await;
    edge.answers.publish(&shop(), with_content("two"));
    for fault in [Fault::FlipBit, Fault::Truncate, Fault::BreakOff, Fault::WrongDigest, Fault::NoDigest] {
        edge.answers.fail_always(fault.clone());
        let status = agent.poll().await;
        assert!(status.last_error.is_some(), "{fault:?}");
        assert_eq!(world.current(), Some(one.to_string()), "{fault:?}");
        world.assert_no_leftovers();
    }
    edge.answers.fail_always(None);
    agent.poll().await;
    assert_eq!(world.read("content").as_deref(), Some("two"));
    agent.stop().await;
}

#[tokio::test]
async fn an_older_generation_is_rejected_also_after_a_restart() {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish_at(&shop(), with_content("old"), 5);
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    edge.answers.publish_at(&shop(), with_content("new"), 7);
    agent.poll().await;
    edge.answers.publish_at(&shop(), with_content("old"), 5);
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("generation 5") && error.contains('7'), "{error}");
    assert_eq!(world.read("content").as_deref(), Some("new"));
    // The same content under an older generation is refused too.
    edge.answers.publish_at(&shop(), with_content("new"), 6);
    assert!(agent.poll().await.last_error.unwrap().contains("generation 6"));
    assert!(agent.metric("weir_agent_generation_regressions_total", &[]) >= 2.0);
    agent.stop().await;

    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert!(status.last_error.unwrap().contains("generation 6"));
    assert_eq!(status.release.unwrap().generation, 7);
    edge.answers.publish_at(&shop(), with_content("newest"), 7);
    agent.poll().await;
    assert_eq!(world.read("content").as_deref(), Some("newest"));
    agent.stop().await;
}

#[tokio::test]
async fn retry_after_of_an_edge_is_respected() {
    let (world, edge) = World::with_edge().await;
    edge.answers.fail_always(Fault::Status(503, Some(600)));
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert!(status.last_error.unwrap().contains("503") && status.last_error_retryable);
    assert_eq!(edge.answers.seen().len(), 1);
    assert_eq!(edge.answers.seen()[0].method, Method::GET, "nothing is held: no HEAD");
    // A command is executed before that.
    edge.answers.fail_always(None);
    edge.answers.publish(&shop(), with_content("one"));
    assert!(agent.poll().await.release.is_some());
    agent.stop().await;
}
