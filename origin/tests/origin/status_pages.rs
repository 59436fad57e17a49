//! Pages of `/status`, and `weir-origin status`, which follows them.

use weir_runtime::admin::{STATUS_SOCKET, status_at};

use crate::prelude::*;

#[tokio::test]
async fn pages_have_each_repository_and_service_once() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    for name in ["docs", "web"] {
        let mut more = config.repositories[0].clone();
        more.name = name.parse().unwrap();
        config.repositories.push(more);
    }
    for n in 0..6 {
        also(&mut config, &format!("s{n}"));
    }
    let node = home.start(config).await;
    let page = async |query: &str| -> Value {
        let (status, page) = node.admin(&format!("/status?{query}")).await;
        assert_eq!(status, 200, "{query}: {page}");
        serde_json::from_str(&page).unwrap()
    };
    let names = |page: &Value, kind: &str| -> Vec<String> {
        page[kind].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect()
    };
    let whole = page("").await;
    assert_eq!((&whole["repositories_total"], &whole["services_total"]), (&json!(3), &json!(7)));
    assert_eq!((&whole["role"], &whole["next_after"]), (&json!("origin"), &json!(null)));

    let (mut repositories, mut services, mut sizes, mut next) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    loop {
        let one = page(&format!("limit=2{next}")).await;
        let (listed, of) = (names(&one, "repositories"), names(&one, "services"));
        assert_eq!((&one["services_total"], &one["role"]), (&json!(7), &json!("origin")));
        sizes.push((listed.len(), of.len()));
        repositories.extend(listed);
        services.extend(of);
        let Some(cursor) = one["next_after"].as_str() else { break };
        next = format!("&after={cursor}");
    }
    assert_eq!(sizes, [(2, 2), (1, 2), (0, 2), (0, 1)]);
    assert_eq!((repositories, services), (names(&whole, "repositories"), names(&whole, "services")));

    let one = page("service=s3").await;
    assert_eq!((names(&one, "services"), names(&one, "repositories")), (vec!["s3".into()], vec!["shop".into()]));
    assert_eq!(names(&page("service=unknown").await, "services").len(), 0);
    for (wrong, word) in [("limit=0", "limit"), ("after=s3", "after"), ("after=A~", "after"), ("page=s3", "page")] {
        let (status, problem) = node.admin(&format!("/status?{wrong}")).await;
        assert!(status == 400 && problem.contains(&format!("`{word}`")), "{wrong}: {status} {problem}");
    }
    let printed = status_at(&home.data_dir().join(STATUS_SOCKET)).await.unwrap();
    assert_eq!(names(&printed, "services"), names(&whole, "services"));
    node.stop().await;
}
