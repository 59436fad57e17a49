//! Maintenance of mirrors while their services are published.

use crate::prelude::*;
use crate::prepared::{MOST_PACKS, Prepared};

/// Forced pushes, each after the publication of the former, while readers read the current version.
#[tokio::test]
async fn every_response_is_intact_during_forced_pushes() {
    let pushes = long_or(60, 20);
    let prepared = Prepared::new(pushes + 1, false);
    let home = Home::new();
    let mut config = home.config(&prepared.url());
    config.repositories[0].min_poll_interval = Duration::ZERO;
    // The last push is the first one again.
    config.repositories[0].step_back_after = Duration::ZERO;
    let node = home.start(config).await;
    node.published(|_| true).await;
    let (done, read) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    let reader = async || {
        let mut published = node.running.service(&service()).unwrap();
        while !done.load(Ordering::Relaxed) {
            // While the next push is fetched and published. Verified against the descriptor, as by an agent.
            for _ in 0..4 {
                let descriptor = node.descriptor().await;
                assert_eq!(names(&node.tarball(&descriptor).await), ["number"]);
                read.fetch_add(1, Ordering::Relaxed);
            }
            published.changed().await.unwrap();
        }
    };
    let pusher = async {
        for number in 1..=pushes {
            prepared.push(number);
            node.running.trigger_poll(&repository());
            node.published(|descriptor| commit_of(descriptor) == prepared.commits[number]).await;
        }
        done.store(true, Ordering::Relaxed);
        // Wakes the readers.
        prepared.push(0);
        node.running.trigger_poll(&repository());
    };
    tokio::join!(pusher, reader(), reader());
    assert!(read.load(Ordering::Relaxed) > pushes, "{read:?} reads");
    let packs = node.metric("weir_origin_mirror_packs{repository=\"shop\"}").await;
    assert!(packs <= MOST_PACKS as f64, "{packs} packs");
    assert!(node.metric("weir_origin_repacks_total{repository=\"shop\",result=\"joined\"}").await >= 1.0);
    assert_eq!(node.metric("weir_origin_repacks_total{repository=\"shop\",result=\"failed\"}").await, 0.0);
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 0.0);
    node.stop().await;
}
