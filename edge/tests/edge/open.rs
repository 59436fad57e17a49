//! An edge that everybody may read: a credential is checked where one is presented, and opens what an agent may ask about
//! itself.

use weir_edge::config::AuthMode;
use weir_protocol::access_list::AccessList;
use weir_protocol::batch_poll::BatchPoll;
use weir_protocol::event::EventKind;

use crate::site::Site;
use crate::test_origin::Tarball;

const SERVICES: &str = "/v1/agents/self/services?services=*";
const TARBALL: &str = "/v1/services/shop/tarball";

#[tokio::test]
async fn an_open_edge_checks_the_credentials_that_it_is_shown() {
    let site = Site::following(
        |site| {
            site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
        },
        |config| {
            assert_eq!(config.auth.mode, AuthMode::Open);
            config.auth.client_ca = Some(config.origins[0].ca.clone());
        },
    )
    .await;
    let mut list = AccessList::default();
    site.origin.send_event(EventKind::Access(list.json().get().as_bytes().to_vec().into()));
    for version in ["h1", "h2", "h3"] {
        let (mut agent, mut anybody) = (site.client_as("agent", version).await, site.client(version).await);
        site.until("the agent is known by its certificate", async || agent.get(SERVICES, &[]).await.status == 200)
            .await;
        let rows = BatchPoll::parse(agent.get(SERVICES, &[]).await.bytes()).unwrap();
        assert_eq!(rows.services().len(), 1, "it may read what everybody may");
        assert_eq!(anybody.get(SERVICES, &[]).await.status, 404, "nobody has no self");
        let forged = [("authorization", "Bearer a.b.c")];
        for (client, path) in [(&mut anybody, TARBALL), (&mut agent, SERVICES)] {
            assert_eq!(client.get(path, &[]).await.status, 200);
            assert_eq!(client.get(path, &forged).await.status, 401);
        }
    }
    let mut agent = site.client_as("agent", "h2").await;
    list.deny_agent("cluster-1".parse().unwrap()).unwrap();
    site.origin.send_event(EventKind::Access(list.json().get().as_bytes().to_vec().into()));
    site.until("a denied agent gets nothing", async || agent.get(TARBALL, &[]).await.status == 401).await;
    assert_eq!(site.client("h2").await.get(TARBALL, &[]).await.status, 200);

    // Without anything to check them with, credentials say nothing.
    let (plain, _) = Site::serving(1000).await;
    let forged = plain.client("h2").await.get(TARBALL, &[("authorization", "Bearer a.b.c")]).await;
    assert_eq!(forged.status, 200);
}
