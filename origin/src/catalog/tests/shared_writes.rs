//! Contents that are ready while a record is written are published by its next write, however long each build took.

use std::fs;

use super::*;
use crate::reconcile::git;
use crate::status::service_entry;

/// Fewer than may be built and wait for a write.
const SERVICES: usize = 60;

/// How many files are below a folder.
fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// The sum of a family of counters, of the label `result` alone if it has one.
fn counted(registry: &prometheus::Registry, family: &str, result: &str) -> f64 {
    let families = registry.gather();
    let all = families.iter().filter(|one| one.name() == family).flat_map(|one| one.get_metric());
    let is_of = |label: &prometheus::proto::LabelPair| label.name() != "result" || label.value() == result;
    all.filter(|one| one.get_label().iter().all(is_of)).map(|one| one.get_counter().get_value()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_commit_share_record_writes() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let (upstream, objects) = (dir.path().join("upstream"), dir.path().join("objects"));
    fs::create_dir(&objects).unwrap();
    git(dir.path(), &["init", "--quiet", "--initial-branch", "main", "upstream"]);
    let shop: RepositoryName = "shop".parse().unwrap();
    let mut services = Vec::new();
    for number in 0..SERVICES {
        let name = format!("s{number}");
        fs::create_dir(upstream.join(&name)).unwrap();
        fs::write(upstream.join(&name).join("app.yaml"), format!("number: {number}\n")).unwrap();
        let mut service = ServiceConfig::new(name.parse().unwrap(), shop.clone());
        service.folder = name.parse().unwrap();
        services.push(service);
    }
    git(&upstream, &["add", "."]);
    git(&upstream, &["commit", "--quiet", "--message", "one"]);
    let repository = RepositoryConfig::new(shop.clone(), format!("file://{}", upstream.display()));
    let file = Documents::new(&[repository], &services);
    let store = faulty(dir.path()).1;
    let started = start_as((dir.path(), dir.path()), store, file, [], &drain, None).await;

    // Each has a frame and a recipe, which are there when it waits for the record.
    started.engine.stall(Some(RecordKey::repository(&shop)));
    let all_are_built = async {
        while files(&objects) < 2 * SERVICES {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all_are_built).await.expect("builds wait for no publication");
    started.engine.stall(None);
    let mut state = started.catalog.repository(&shop).unwrap().follow();
    state.wait_for(|state| state.applied_polls > 0).await.unwrap();
    let snapshot = started.catalog.snapshot();
    let services = snapshot.definitions.services.iter().map(|one| service_entry(&snapshot, one));
    let follows = |service: &serde_json::Value| service["condition"] == "following" && !service["seen"].is_null();
    assert_eq!(services.filter(follows).count(), SERVICES);
    assert_eq!(counted(&started.registry, "weir_origin_publications_total", ""), SERVICES as f64);
    let writes = counted(&started.registry, "weir_origin_record_writes_total", "done");
    assert!(writes > 0.0 && writes < SERVICES as f64 / 2.0, "{writes} writes of the record");
    drop(started.editor);
    assert!(drain.finish(Duration::from_secs(60)).await);
}
