//! Events say over what agents spread what follows.

use std::time::Duration;

use weir_protocol::agent_event::AgentEventKind;

use crate::agent_self::{EVENTS, assigned, next};
use crate::test_origin::Tarball;

#[tokio::test]
async fn an_event_has_the_spread_for_those_who_follow_the_service_now() {
    let site = assigned(|config| config.agents.updates_per_second = 1).await;
    let mut clients = [site.client_as("agent", "h2").await, site.client_as("agent", "h2").await];
    let [one, both] = &mut clients;
    let mut of_one = one.begin("GET", &format!("{EVENTS}?services=shop-a"), &[]).await;
    assert_eq!(next(&mut of_one).await.kind, AgentEventKind::Resync);
    let mut of_both = both.begin("GET", EVENTS, &[]).await;
    let first = next(&mut of_both).await;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!((first.kind, first.spread), (AgentEventKind::Resync, seconds(1)), "two streams are open");
    site.origin.push("shop-b", 8, 1, &Tarball::random(2, 1000));
    assert_eq!(next(&mut of_both).await.spread, seconds(0), "it is alone");
    site.origin.push("shop-a", 8, 1, &Tarball::random(3, 1000));
    assert_eq!(next(&mut of_both).await.spread, seconds(1));
    assert_eq!(next(&mut of_one).await.spread, seconds(1));
    drop(of_one);
    let mut generation = 9;
    let alone = async {
        loop {
            site.origin.push("shop-a", generation, 1, &Tarball::random(generation, 1000));
            generation += 1;
            if next(&mut of_both).await.spread == seconds(0) {
                return;
            }
        }
    };
    tokio::time::timeout(crate::site::PATIENCE, alone).await.expect("one that has gone does not count");
}
