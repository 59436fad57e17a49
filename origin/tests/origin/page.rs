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

#[tokio::test]
async fn the_fleet_s_page_is_for_all_and_has_no_data() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let browser = Operator::without_token(&home, &node, None);
    let response = browser.page(&[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")]).await;
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!((response.status(), header("content-type")), (StatusCode::OK, "text/html; charset=utf-8".to_owned()));
    let policy = header("content-security-policy");
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.split("; ").any(|each| each == part), "{part}: {policy}");
    }
    assert!(!response.headers().contains_key("set-cookie") && !policy.contains("unsafe"), "{policy}");
    let page = response.text().await.unwrap();
    assert!(page.contains("<title>Weir fleet</title>") && page.len() <= MAX_PAGE_BYTES, "{}", page.len());
    for unwanted in
        ["shop-prod", " src=", "@import", "url(", "innerHTML", "insertAdjacentHTML", "document.write", "eval("]
    {
        assert!(!page.contains(unwanted), "{unwanted}");
    }
    assert_eq!(page.matches("https://").count(), page.matches("<a href=\"https://").count());
    // A page of another site may lead to it, and may not load it.
    let foreign = browser.page(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]).await;
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    assert_eq!(browser.get("/v1/whoami").await.status, StatusCode::UNAUTHORIZED);
    assert!(node.metric("weir_origin_operator_requests_total{route=\"page\",status=\"200\"}").await >= 1.0);
    node.stop().await;
}
