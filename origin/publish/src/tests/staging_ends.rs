//! Staged versions in rows that other versions of the program wrote, at their bounds, and in the history.

use weir_protocol::descriptor::{MAX_DESCRIPTOR_BYTES, Omission, OmissionReason};
use weir_protocol::token::SigningKey;

use super::staging::{CANARIES, audience, digest, publish_number, row, stage, stage_build, staged, write};
use super::*;

/// What was done with the publications of `shop-prod`, the newest first: the event, who did it and why.
async fn acts(publisher: &Publisher) -> Vec<(&'static str, Option<TarballDigest>, Option<String>, String)> {
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    let acts = history.publications.into_iter().flat_map(|listed| listed.entry.acts);
    acts.map(|act| (act.event, act.digest, act.author.by, act.author.reason.unwrap_or_default())).collect()
}

/// A build whose only frame is its number, and that omits a path of this length.
fn omitting(number: u64, bytes: usize) -> Built {
    let omitted = vec![Omission { path: "x".repeat(bytes), reason: OmissionReason::Symlink }];
    Built { omitted, ..built(&[&number.to_string()]) }
}

#[tokio::test(start_paused = true)]
async fn an_audience_that_a_later_version_wrote_ends_and_nothing_is_lost() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let mut later = serde_json::to_value(row(&publisher).await).unwrap();
    later["staged"]["for"][0]["later"] = 1.into();
    write(&publisher, serde_json::from_value(later).unwrap()).await;
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let in_force = &started.current[&name("shop-prod")];
    assert_eq!(in_force.publication().digest, digest(1));
    assert!(in_force.publication().generation > generation && staged(in_force).is_none());
    let row = row(&publisher).await;
    assert!(row.staged.is_none() && row.version(&digest(2)).is_some(), "it can be staged again");
    let (event, of, by, reason) = acts(&publisher).await.remove(0);
    assert_eq!((event, of, by), ("staging-ended", Some(digest(2)), None));
    assert!(reason.contains("a later version"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn what_only_the_descriptor_stages_is_dropped_with_its_next_write() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    stage(&publisher, &shop_prod, 2).await.unwrap();
    // An origin of 0.1 wrote the row.
    let mut former = row(&publisher).await;
    former.staged = None;
    write(&publisher, former.clone()).await;
    assert!(staged(&row(&publisher).await.current.unwrap().descriptor().unwrap()).is_some());
    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || attempt.put("other".into()).map(|_| attempt));
    let other = Built { zstd: built(&["other"]).zstd, ..built(&["1"]) };
    let version = current(&shop_prod);
    assert!(publisher.publish_rebuilt(&shop_prod, &version, other, put.await.unwrap().unwrap()).await.unwrap());
    assert!(staged(&current(&shop_prod)).is_none(), "a new revision");

    write(&publisher, former).await;
    publish_number(&publisher, &shop_prod, 3).await;
    let row = row(&publisher).await;
    assert!(row.versions().all(|version| staged(&version.descriptor().unwrap()).is_none()), "it was superseded");
}

#[tokio::test(start_paused = true)]
async fn signatures_that_make_both_descriptors_too_large_end_what_is_staged() {
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || attempt.put("1".into()).map(|_| attempt)).await.unwrap().unwrap();
    let share = MAX_DESCRIPTOR_BYTES / 10;
    publisher.publish_built(&candidate(&shop_prod, 1), omitting(1, 3 * share), put, at(1)).await.unwrap();
    let generation = stage_build(&publisher, &shop_prod, 2, omitting(2, 4 * share), CANARIES).await.unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let public = key.public().clone();
    store.signer = Arc::new(Signer::new(vec![key]));
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let in_force = &started.current[&name("shop-prod")];
    assert!(in_force.publication_signed_by(&public).is_some() && staged(in_force).is_none());
    assert!(in_force.publication().generation > generation);
    let (event, of, _, reason) = acts(&publisher).await.remove(0);
    assert!((event, of) == ("staging-ended", Some(digest(2))) && reason.contains("the limit of"), "{event}: {reason}");
    let before = store.record().await;
    store.start(&["shop-prod"]).await;
    assert_eq!(store.record().await, before, "the next start has nothing to sign");
}

#[tokio::test(start_paused = true)]
async fn a_staged_version_that_was_in_force_keeps_its_tags_and_stays_the_previous_one() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    publish_number(&publisher, &shop_prod, 2).await;
    publisher.stage(&shop_prod, &digest(1), audience(CANARIES), change("ann", 3)).await.unwrap();
    let queries = &publisher.queries;
    let listed = queries.versions(&shop(), &name("shop-prod")).await.unwrap().versions;
    assert_eq!(listed.iter().map(|listed| listed.followed).collect::<Vec<_>>(), [true, true]);
    let previous = queries.called(&shop(), &name("shop-prod"), PREVIOUS).await.unwrap();
    assert_eq!(previous[0].digest, digest(1));
}

#[tokio::test(start_paused = true)]
async fn a_staged_version_that_is_lost_is_staged_no_longer_also_if_another_repository_has_published() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let mut elsewhere = row(&publisher).await;
    elsewhere.generation = generation + 1;
    write(&publisher, elsewhere).await;
    publisher.drop_version(&shop_prod, &digest(2)).await.unwrap();
    let row = row(&publisher).await;
    assert!(row.staged.is_none() && row.version(&digest(2)).is_none());
    assert_eq!(row.generation, generation + 1, "nothing was published here");
    assert_eq!(acts(&publisher).await.remove(0).0, "staging-ended");
}

#[tokio::test(start_paused = true)]
async fn the_history_says_who_staged_what_and_who_ended_it_and_why() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    stage(&publisher, &shop_prod, 2).await.unwrap();
    stage(&publisher, &shop_prod, 3).await.unwrap();
    let author = Author { by: Some("bob".to_owned()), reason: Some("it breaks".to_owned()) };
    publisher.abort(&shop_prod, VersionChange { expected: None, author, now: at(5) }).await.unwrap();
    stage(&publisher, &shop_prod, 2).await.unwrap();
    publisher.promote(&shop_prod, change("ann", 6)).await.unwrap();
    let (ann, bob) = (Some("ann".to_owned()), Some("bob".to_owned()));
    // What was aborted, and is the tip by then.
    publisher.unpin(&shop_prod, change("ann", 7)).await.unwrap();
    stage(&publisher, &shop_prod, 3).await.unwrap();
    publisher.abort(&shop_prod, change("ann", 8)).await.unwrap();
    publisher.publish_cached(&shop(), &[candidate(&shop_prod, 3)], at(9)).await.unwrap();
    candidate(&shop_prod, 3).followed();
    let expected = Some(current(&shop_prod).publication().generation);
    publisher.promote(&shop_prod, VersionChange { expected, ..change("bob", 9) }).await.unwrap();
    assert!(!shop_prod.is_pinned());
    let line =
        |event, number, by: &Option<String>, reason: &str| (event, Some(digest(number)), by.clone(), reason.to_owned());
    let expected = [
        line("promoted", 3, &bob, ""),
        line("aborted", 3, &ann, ""),
        line("staged", 3, &ann, ""),
        ("unpinned", None, ann.clone(), String::new()),
        ("pinned", None, ann.clone(), String::new()),
        line("promoted", 2, &ann, ""),
        line("staged", 2, &ann, ""),
        line("aborted", 3, &bob, "it breaks"),
        line("staged", 3, &ann, ""),
        line("staging-ended", 2, &ann, ""),
        line("staged", 2, &ann, ""),
    ];
    assert_eq!(acts(&publisher).await, expected);
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    assert!(history.publications.iter().all(|listed| listed.entry.by.is_none()), "nobody rolled back");
}
