//! The page at `/` and what it asks for. `loadtest/pages` looks at it in a browser.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_protocol::digest::Sha256;
use weir_runtime::page::MAX_PAGE_BYTES;

use crate::agent_self::assigned;
use crate::observed::{OBSERVED, message};
use crate::site::{Site, TARBALL, ZSTD, answer_of, ask_with};

const TOKEN: &str = "an-operators-token";

async fn summary(site: &Site) -> Value {
    let (status, body) = site.admin("/v1/summary").await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn the_page_is_one_document_and_its_policy_allows_nothing_else() {
    let site = Site::start().await;
    let admin = site.edge().admin_address().unwrap();
    let host = format!("host: {admin}\r\n");
    let (head, page) = answer_of(admin, "GET", "/", &host, "").await;
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{name}: {head}")).to_owned()
    };
    assert!(head.starts_with("HTTP/1.1 200") && header("content-type") == "text/html; charset=utf-8", "{head}");
    assert!(page.len() <= MAX_PAGE_BYTES, "{}", page.len());
    let policy = header("content-security-policy");
    for part in
        ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
    {
        assert!(policy.split("; ").any(|each| each == part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (kind, tag) in [("style-src", "style"), ("script-src", "script")] {
        let (_, rest) = page.split_once(&format!("<{tag}>")).unwrap();
        let (text, rest) = rest.split_once(&format!("</{tag}>")).unwrap();
        assert!(!rest.contains(&format!("<{tag}")), "one {tag}");
        let hash = STANDARD.encode(Sha256::of(text.as_bytes()).as_bytes());
        assert!(policy.split("; ").any(|each| each == format!("{kind} 'sha256-{hash}'")), "{hash}: {policy}");
    }
    for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")] {
        assert_eq!(header(name), value);
    }
    assert!(!head.contains("set-cookie"), "{head}");
    // Only links lead to other hosts, and data becomes text.
    for unwanted in [" src=", "@import", "url(", "innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!page.contains(unwanted), "{unwanted}");
    }
    assert_eq!(page.matches("https://").count(), page.matches("<a href=\"https://").count());

    let (head, nothing) = answer_of(admin, "HEAD", "/", &host, "").await;
    assert!(head.starts_with("HTTP/1.1 200") && nothing.is_empty(), "{head}");
    assert_eq!(ask_with(admin, "POST", "/", &host, "").await.0, 405);
    // A name of another site that was bound to this address.
    for path in ["/", "/v1/summary"] {
        assert_eq!(ask_with(admin, "GET", path, "host: evil.example\r\n", "").await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn the_summary_says_what_a_person_asks_first() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let text = "exit status 1 <script>";
    assert_eq!(client.post(OBSERVED, &[], message("a1", 1, true, &["shop-a", "shop-b"], text)).await.status, 204);
    let tarball = client.get(&TARBALL.replace("shop", "shop-a"), &[ZSTD]).await;
    assert_eq!(tarball.status, 200);
    let now = summary(&site).await;
    assert_eq!((&now["role"], &now["ready"]), (&json!("edge"), &json!(true)), "{now}");
    let agent = &now["agents"]["listed"][0];
    assert_eq!((&agent["agent"], &agent["problems"]), (&json!("cluster-1"), &json!(2)), "{now}");
    assert_eq!((&agent["problem"]["service"], &agent["problem"]["text"]), (&json!("shop-a"), &json!(text)));
    let services = &now["services"];
    assert!(services["total"].as_u64().unwrap() >= 1 && services["oldest"][0]["why"].is_string(), "{services}");
    let bounds: Vec<_> =
        now["bounds"].as_array().unwrap().iter().map(|bound| bound["bound"].as_str().unwrap()).collect();
    assert!(
        ["disk_bytes", "connections_agents_tcp", "connections_agents_quic"].iter().all(|name| bounds.contains(name))
    );
    // What was counted since the last sample is there too.
    let hour = &now["last_hour"];
    let total = |group: &str, name: &str| -> u64 {
        let counts = hour[group][name].as_array().unwrap();
        assert_eq!(counts.len(), hour["seconds_ago"].as_array().unwrap().len());
        counts.iter().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(total("downloads", "origin"), 1, "{hour}");
    assert_eq!(total("sent_bytes", "origin"), tarball.bytes().len() as u64);
    let fetched = ["service", "version", "versions", "object", "shield"];
    let fetches: f64 =
        fetched.map(|kind| site.metric("weir_edge_origin_requests_total", &[("kind", kind)])).iter().sum();
    assert_eq!((total("origins", "requests") as f64, total("origins", "not_sent")), (fetches, 0));
    assert_eq!(total("objects", "origins"), total("fills", "ok"));
    // The report of the agent is a request, but no work of the cache.
    let cached = ["hit", "stale", "miss", "collapsed", "revalidated", "forced"].map(|did| total("requests", did));
    assert!(cached.iter().sum::<u64>() == 1 && total("agents", "requests") >= 2, "{hour}");
    assert!(now["now"].is_string() && hour["gaps"] == json!([]));
    // `/status` has the same, and each service.
    let status: Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
    assert_eq!(
        (&status["origins"][0]["name"], &status["cache"]["limit_bytes"]),
        (&now["origins"][0]["name"], &now["cache"]["limit_bytes"])
    );
    assert_eq!(site.admin_request("POST", "/v1/summary", None, "").await.0, 405);
}

#[tokio::test]
async fn beyond_loopback_the_page_is_for_all_and_its_data_for_those_with_the_token() {
    let mut site = Site::prepare().await;
    let file = site.pki().join("operator-token");
    fs::write(&file, TOKEN).unwrap();
    site.config.admin_listen = Some("0.0.0.0:0".parse().unwrap());
    site.config.admin.operator_token_file = Some(file);
    site.config.admin.allow_plain = true;
    site.start_edge().await;
    assert_eq!(site.admin("/").await.0, 200);
    assert_eq!(site.admin("/v1/summary").await.0, 401);
    assert_eq!(site.admin_request("GET", "/v1/summary", Some("another-operators-token"), "").await.0, 401);
    assert_eq!(site.admin_request("GET", "/v1/summary", Some(TOKEN), "").await.0, 200);
}
