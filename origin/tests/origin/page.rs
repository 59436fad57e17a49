//! The page at `/` and what it asks for. `loadtest/pages` looks at it in a browser.

use crate::prelude::*;
use weir_runtime::page::MAX_PAGE_BYTES;

#[tokio::test]
async fn the_summary_has_first_what_somebody_should_look_at() {
    let (_home, upstream, node, _) = started().await;
    let (status, page) = node.admin("/").await;
    assert!(status == 200 && page.contains("<title>Weir origin</title>"), "{page}");
    assert!(page.len() <= MAX_PAGE_BYTES, "{}", page.len());
    let summary = async || -> Value { serde_json::from_str(&node.admin("/v1/summary").await.1).unwrap() };
    let well = summary().await;
    assert_eq!((&well["role"], &well["ready"]), (&json!("origin"), &json!(true)), "{well}");
    assert_eq!(well["repositories"]["counts"], json!({"healthy": 1}));
    let all = node.status().await;
    for kind in ["repositories", "services"] {
        assert_eq!(well[kind]["total"], all[kind].as_array().unwrap().len(), "{kind}");
        assert_eq!(well[kind]["listed"][0]["name"], all[kind][0]["name"], "{kind}");
    }
    assert!(well["store"]["disk_free_bytes"].as_f64().unwrap() > 0.0, "{well}");
    assert!(well["bounds"].as_array().unwrap().iter().any(|bound| bound["bound"] == "builds"), "{well}");

    upstream.take_away();
    node.poll().await;
    let failing = summary().await;
    assert_eq!(failing["repositories"]["counts"], json!({"unhealthy": 1}));
    let failure = &failing["repositories"]["listed"][0]["failure"];
    assert!(failure["reason"].is_string(), "{failing}");
    node.stop().await;
}
