//! `weir-edge doctor`, before an origin that is well and others that are not.

use weir_edge::Config;
use weir_edge::doctor::doctor;
use weir_runtime::certificates;
use weir_runtime::doctor::Verdict;

use crate::site::Site;

async fn findings(config: &Config) -> Vec<(&'static str, Verdict, String)> {
    let report = doctor(config).await;
    let text = |message: String, advice: Option<String>| format!("{message} → {}", advice.unwrap_or_default());
    let of_origins = report.findings.into_iter().filter(|finding| finding.subject != "this machine");
    of_origins.map(|finding| (finding.check, finding.verdict, text(finding.message, finding.advice))).collect()
}

#[tokio::test]
async fn each_obstacle_before_an_origin_is_named_with_what_to_do() {
    let site = Site::prepare().await;
    let (config, found) = (&site.config, findings(&site.config).await);
    let checks: Vec<_> = found.iter().map(|(check, ..)| *check).collect();
    assert_eq!(checks, ["dns", "tcp", "tls", "identity", "clock"]);
    assert!(found.iter().all(|(_, verdict, _)| *verdict == Verdict::Ok), "{found:?}");
    let whole = doctor(config).await;
    assert!(!whole.has_failed() && whole.to_string().contains("  ok    certificate"), "{whole}");

    let last = async |change: &dyn Fn(&mut Config)| {
        let mut config = site.config.clone();
        change(&mut config);
        findings(&config).await.pop().unwrap()
    };
    // It takes nobody for an edge.
    site.origin.refuse(true);
    let (check, ..) = last(&|_| {}).await;
    assert_eq!(check, "clock", "what an answer says counts, whatever its status");
    let refused = findings(config).await;
    let (_, verdict, text) = refused.iter().find(|(check, ..)| *check == "identity").unwrap();
    assert!(*verdict == Verdict::Fail && text.contains("401") && text.contains("client_ca"), "{text}");
    site.origin.refuse(false);

    let (check, verdict, text) = last(&|config| config.origins[0].url = "https://127.0.0.1:1".to_owned()).await;
    assert!((check, verdict) == ("tcp", Verdict::Fail) && text.contains("TCP port 1"), "{text}");
    let unknown = "https://no-such-host.invalid:7400".to_owned();
    let (check, verdict, text) = last(&|config| config.origins[0].url = unknown.clone()).await;
    assert!((check, verdict) == ("dns", Verdict::Fail) && text.contains("`url`"), "{text}");
    let other = tempfile::tempdir().unwrap();
    certificates::write(other.path(), &[]).unwrap();
    let (check, verdict, text) = last(&|config| config.origins[0].ca = other.path().join("ca.pem")).await;
    assert!((check, verdict) == ("tls", Verdict::Fail) && text.contains("Let `ca`"), "{text}");
    // A certificate of another authority is refused only after the handshake.
    let (check, verdict, text) = last(&|config| {
        let origin = &mut config.origins[0];
        let file = |name: &str| other.path().join(name);
        (origin.client_certificate, origin.client_key) = (file("edge-client.pem"), file("edge-client.key"));
    })
    .await;
    assert!((check, verdict) == ("identity", Verdict::Fail) && text.contains("client_ca"), "{text}");
}
