//! Events say over what agents spread what follows.

use std::time::Duration;

use weir_protocol::agent_event::AgentEventKind;

use crate::agent_self::{EVENTS, assigned, next};
use crate::test_origin::Tarball;

#[tokio::test]
async fn an_event_has_the_spread_for_what_is_followed_now() {
    let site = assigned(|config| config.agents.updates_per_second = 1).await;
    let mut clients = [site.client_as("agent", "h2").await, site.client_as("agent", "h2").await];
    let [one, both] = &mut clients;
    let mut of_one = one.begin("GET", &format!("{EVENTS}?services=shop-a"), &[]).await;
    assert_eq!(next(&mut of_one).await.kind, AgentEventKind::Resync);
    let mut of_both = both.begin("GET", EVENTS, &[]).await;
    let first = next(&mut of_both).await;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!((first.kind, first.spread), (AgentEventKind::Resync, seconds(2)), "one service and two are followed");
    site.origin.push("shop-a", 8, 1, &Tarball::random(3, 1000));
    assert_eq!(next(&mut of_both).await.spread, seconds(2));
    assert_eq!(next(&mut of_one).await.spread, seconds(2));
    drop(of_one);
    let mut generation = 9;
    let alone = async {
        loop {
            site.origin.push("shop-a", generation, 1, &Tarball::random(generation, 1000));
            generation += 1;
            if next(&mut of_both).await.spread == seconds(1) {
                return;
            }
        }
    };
    tokio::time::timeout(crate::site::PATIENCE, alone).await.expect("one that has gone does not count");
}
