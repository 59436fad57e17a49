//! `weir-origin doctor`, with a store and upstreams that are well and others that are not.

use weir_origin::doctor;
use weir_runtime::doctor::Verdict;

use crate::prelude::*;

#[tokio::test]
async fn each_obstacle_of_an_origin_is_named_with_what_to_do() {
    let (home, upstream, node, _) = started().await;
    // Beside the running origin.
    let mut config = home.config(&upstream.url());
    let found = doctor(&config).await;
    assert!(!found.has_failed(), "{found}");
    let checks: Vec<_> = found.findings.iter().map(|finding| finding.check).collect();
    for check in ["configuration", "certificate", "disk", "store"] {
        assert!(checks.contains(&check), "{check}: {found}");
    }

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap();
    let of = |name: &str, url: &str| RepositoryConfig::new(name.parse().unwrap(), url);
    let mut proxied = of("proxied", "https://no-such-host.invalid/shop.git");
    proxied.proxy = Some(format!("http://{open}").as_str().into());
    config.repositories = vec![
        of("open", &format!("https://{open}/shop.git")),
        of("closed", "ssh://git@127.0.0.1:1/shop.git"),
        of("unknown", "https://no-such-host.invalid/shop.git"),
        proxied,
    ];
    let found = doctor(&config).await.findings;
    let of = |repository: &str| {
        let about = found.iter().filter(|finding| finding.subject.ends_with(&format!("repository {repository}")));
        about.map(|finding| (finding.check, finding.verdict)).collect::<Vec<_>>()
    };
    let (ok, fail) = (Verdict::Ok, Verdict::Fail);
    assert_eq!(of("open"), [("dns", ok), ("tcp", ok)], "{found:?}");
    assert!(of("proxied").is_empty(), "its proxy is the host of another one, which is checked once");
    assert_eq!(of("closed"), [("dns", ok), ("tcp", fail)]);
    assert_eq!(of("unknown"), [("dns", fail)]);
    node.stop().await;

    fs::remove_dir_all(home.data_dir().join("records")).unwrap();
    fs::write(home.data_dir().join("records"), "no folder").unwrap();
    let found = doctor(&config).await.findings;
    let store = found.iter().find(|finding| finding.check == "store").unwrap();
    assert!(store.verdict == Verdict::Fail && store.advice.is_some(), "{store:?}");
}
