//! Edits on local files, with write failures that tests inject.

use std::path::Path;
use std::time::Duration;

use weir_runtime::shutdown::Drain;

use super::*;
use crate::bounds::Bounds;
use crate::config::{LimitsConfig, RepositoryConfig, RetentionConfig, ServiceConfig, StoreConfig, UpstreamsConfig};
use crate::data_dir::DataDir;
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::publish::{Options, PublishMetrics, Publisher, Started};
use crate::reconcile::Context;
use crate::store::{FaultyEngine, FaultyStore, Objects, Records, StoreMetrics, WriteFault};

/// Starts a catalog on an engine that may fail.
async fn start(
    dir: &Path,
    faults: impl IntoIterator<Item = WriteFault>,
    drain: &Drain,
) -> (Arc<Catalog>, Editor, Documents) {
    let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
    let objects = Objects::open(&StoreConfig::default(), dir, metrics, &Bounds::default()).await.unwrap();
    start_over(dir, objects, faults, drain).await
}

/// The same with these objects.
async fn start_over(
    dir: &Path,
    objects: Objects,
    faults: impl IntoIterator<Item = WriteFault>,
    drain: &Drain,
) -> (Arc<Catalog>, Editor, Documents) {
    let (data_dir, limits, registry) =
        (DataDir::open(dir).unwrap().0, LimitsConfig::default(), prometheus::Registry::new());
    let (metrics, store_metrics) = (Metrics::register(&registry).unwrap(), StoreMetrics::register(&registry).unwrap());
    let engine = FaultyEngine::local(&dir.join("records"));
    let log = Arc::new(EventLog::new(&limits, metrics.clone()));
    let options = Options {
        generation_floor: 0,
        retention: RetentionConfig::default(),
        signer: Arc::default(),
        events: log.clone(),
        metrics: PublishMetrics::register(&registry).unwrap(),
    };
    let records = Records::over(engine.clone(), store_metrics);
    let (publisher, stored) = Publisher::open(objects, records, data_dir.clone(), options).await.unwrap();
    engine.fail_writes(faults);
    let context = Context::new(publisher, data_dir, log, metrics, &limits, &UpstreamsConfig::default());
    let api = Documents::stored(&stored);
    let file = Documents::default();
    let dependencies = Dependencies { file, stored, secrets_dir: None, limits, context };
    let (catalog, editor) = begin(dependencies, Started::default(), drain).await;
    (catalog, editor, api)
}

/// The documents that a new process would load.
async fn stored(dir: &Path) -> Documents {
    let drain = Drain::new();
    let (_, editor, api) = start(dir, [], &drain).await;
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
    api
}

/// An edit of a repository that is not permitted, so that nothing is polled.
fn put_repository(name: &str) -> Edit {
    Edit::PutRepository(RepositoryConfig::new(name.parse().unwrap(), "file:///shop").into())
}

fn put_service(name: &str, repository: &str) -> Edit {
    Edit::PutService(ServiceConfig::new(name.parse().unwrap(), repository.parse().unwrap()).into())
}

async fn edit(editor: &Editor, edit: Edit) -> Result<Outcome, EditError> {
    editor.edit(edit, Precondition::default()).await.map(|made| made.outcome)
}

/// Objects in a store that tests can make fail.
fn faulty(dir: &Path) -> (Arc<FaultyStore>, Objects) {
    let local = object_store::local::LocalFileSystem::new_with_prefix(dir.join("objects")).unwrap();
    let store = FaultyStore::over(Arc::new(local));
    let metrics = StoreMetrics::register(&prometheus::Registry::new()).unwrap();
    let objects = Objects::over(store.clone(), metrics);
    (store, objects)
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_unknown_outcome_is_carried_out_before_any_other() {
    for fault in [WriteFault::Lost, WriteFault::Unconfirmed] {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let (catalog, editor, _) = start(dir.path(), [fault], &drain).await;
        let made = edit(&editor, put_repository("shop")).await;
        // The outcome may be resolved at once by reading back. A successful edit is visible at once; a failed one
        // becomes visible later.
        let is_there = || catalog.snapshot().definitions.repositories.contains_key("shop");
        assert!(made.is_err() || is_there(), "{fault:?}");
        let again = edit(&editor, put_repository("shop")).await.unwrap();
        assert!(matches!(again, Outcome::Unchanged | Outcome::Created) && is_there(), "{fault:?}");
        drop(editor);
        assert!(drain.finish(Duration::from_secs(60)).await);
        drop(catalog);
        assert!(stored(dir.path()).await.repositories.contains_key("shop"), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_that_was_committed_is_carried_out_also_when_it_cannot_be_read_back_at_once() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (_, editor, _) = start(dir.path(), [], &drain).await;
    for change in [put_repository("shop"), put_service("one", "shop")] {
        edit(&editor, change).await.unwrap();
    }
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);

    let drain = Drain::new();
    let (store, objects) = faulty(dir.path());
    let (catalog, editor, _) = start_over(dir.path(), objects, [WriteFault::Lost], &drain).await;
    assert!(edit(&editor, put_service("two", "shop")).await.is_err());
    store.fail_gets(true);
    assert!(edit(&editor, put_service("three", "shop")).await.is_err());
    store.fail_gets(false);
    edit(&editor, put_service("three", "shop")).await.unwrap();
    assert!(catalog.snapshot().services.contains_key("two"), "it is stored");
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
}

#[tokio::test]
async fn a_moved_service_is_stored_in_its_new_repository_only() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (_, editor, _) = start(dir.path(), [], &drain).await;
    for change in [put_repository("shop"), put_repository("blog"), put_service("one", "shop")] {
        assert_eq!(edit(&editor, change).await.unwrap(), Outcome::Created);
    }
    assert_eq!(edit(&editor, put_service("one", "blog")).await.unwrap(), Outcome::Changed);
    // The repository can be deleted: the clean-up precedes this edit.
    let gone = Edit::DeleteRepository { name: "shop".parse().unwrap(), cascade: false };
    assert_eq!(edit(&editor, gone).await.unwrap(), Outcome::Deleted);
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
    let stored = stored(dir.path()).await;
    assert_eq!(stored.services.get("one").unwrap().repository().as_str(), "blog");
    assert_eq!(stored.repositories.size(), 1);
}

#[tokio::test]
async fn a_service_is_not_deleted_while_it_is_stored_where_it_was_before() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (catalog, editor, _) = start(dir.path(), [], &drain).await;
    for change in [put_repository("shop"), put_repository("blog"), put_service("one", "shop")] {
        edit(&editor, change).await.unwrap();
    }
    for object in std::fs::read_dir(dir.path().join("objects/shop/private")).unwrap() {
        std::fs::write(object.unwrap().path(), "damaged").unwrap();
    }
    edit(&editor, put_service("one", "blog")).await.unwrap();
    let deleted = edit(&editor, Edit::DeleteService("one".parse().unwrap())).await;
    assert!(matches!(deleted, Err(EditError::Failed(_))), "{deleted:?}");
    assert!(catalog.snapshot().services.contains_key("one"));
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
}

#[tokio::test]
async fn definitions_return_without_a_restart_when_their_record_is_readable_again() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (_, editor, _) = start(dir.path(), [], &drain).await;
    for change in [put_repository("shop"), put_service("one", "shop"), put_service("two", "shop")] {
        edit(&editor, change).await.unwrap();
    }
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);

    let drain = Drain::new();
    let (store, objects) = faulty(dir.path());
    store.fail_gets(true);
    let (catalog, editor, _) = start_over(dir.path(), objects, [], &drain).await;
    assert_eq!(catalog.snapshot().services.size(), 0);
    store.fail_gets(false);
    // An edit reloads the repository first, and takes effect.
    let mut changed = ServiceConfig::new("one".parse().unwrap(), "shop".parse().unwrap());
    changed.folder = "changed".parse().unwrap();
    edit(&editor, Edit::PutService(changed.into())).await.unwrap();
    let is_there = async {
        while !catalog.snapshot().services.contains_key("two") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_there).await.unwrap();
    let snapshot = catalog.snapshot();
    let one = snapshot.definitions.services.get("one").unwrap().document.valid().unwrap().clone();
    assert_eq!(one.folder.to_string(), "changed");
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
}

#[tokio::test]
async fn an_edit_leaves_everything_else_as_it_is() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (catalog, editor, _) = start(dir.path(), [], &drain).await;
    edit(&editor, put_repository("shop")).await.unwrap();
    for number in 0..20 {
        edit(&editor, put_service(&format!("service-{number}"), "shop")).await.unwrap();
    }
    let before = catalog.snapshot();
    edit(&editor, put_service("another", "shop")).await.unwrap();
    edit(&editor, Edit::DeleteService("service-7".parse().unwrap())).await.unwrap();
    let after = catalog.snapshot();
    assert_eq!(after.services.size(), 20);
    for (name, service) in before.services.iter().filter(|(name, _)| name.as_str() != "service-7") {
        assert!(Arc::ptr_eq(service, after.services.get(name).unwrap()), "{name}");
    }
    assert!(!after.services.contains_key("service-7") && before.services.contains_key("service-7"));
    drop(editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
}
