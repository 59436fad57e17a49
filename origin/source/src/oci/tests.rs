//! Against a scripted registry. What needs `https://` is in `origin/tests/origin/artifacts.rs`.

use std::sync::mpsc::Receiver;

use prometheus::IntCounter;
use serde_json::json;
use weir_protocol::digest::Sha256;
use weir_upstream::http::test_server::{response, server, with_client};
use weir_upstream::{Hosts, Redirects, Upstream, UpstreamError};

use super::*;

mod referrers;
mod tags;
mod tokens;

const TOKEN: &str = r#"{"token":"t1","expires_in":300}"#;
const MANIFEST: &str = r#"{"schemaVersion":2,"config":null,"layers":[]}"#;

/// Runs with a registry that sends these responses, one a connection.
fn with_registry<T>(
    max_tags: usize,
    responses: Vec<String>,
    work: impl FnOnce(&Registry<'_>, &OciName, &Receiver<String>) -> T,
) -> T {
    let mut upstream = Upstream::new("");
    upstream.limits.max_tags = max_tags;
    with_registry_of(upstream, responses, work)
}

/// The same, with this configuration but for its URL.
fn with_registry_of<T>(
    mut upstream: Upstream,
    responses: Vec<String>,
    work: impl FnOnce(&Registry<'_>, &OciName, &Receiver<String>) -> T,
) -> T {
    let (url, requests) = server(responses);
    let tokens = Tokens::new(IntCounter::new("tokens", "tokens").unwrap());
    upstream.config.url = url.to_string().into();
    with_client(&upstream, |client| {
        let registry = Registry::new(client, &tokens, url.join("/").unwrap());
        work(&registry, &"acme/shop".parse().unwrap(), &requests)
    })
}

fn demands(realm: &str) -> String {
    let scope = "repository:acme/shop:pull";
    response("401 x", &format!("www-authenticate: Bearer realm=\"{realm}\",service=\"r\",scope=\"{scope}\"\r\n"), "")
}

fn ok(body: &str) -> String {
    response("200 OK", "", body)
}

fn digest_header(digest: &Sha256) -> String {
    format!("docker-content-digest: sha256:{digest}\r\n")
}

fn message<T: std::fmt::Debug>(result: Result<T, RegistryError>) -> String {
    match result.unwrap_err().of_one("`v1`") {
        Ok(reason) => reason,
        Err(error) => format!("[{}] {error}", error.step()),
    }
}

#[test]
fn a_registry_whose_head_says_nothing_is_asked_for_the_manifest() {
    let sha512 = response("200 OK", "docker-content-digest: sha512:ab\r\n", "");
    let refused = ["400", "401", "403", "404", "405", "406", "415", "501"].map(|status| response(status, "", ""));
    for head in [ok(""), sha512].into_iter().chain(refused) {
        with_registry(10, vec![head, ok(MANIFEST)], |registry, name, requests| {
            let (digest, document) = registry.resolve(name, "v1").unwrap();
            assert_eq!(digest, Sha256::of(MANIFEST.as_bytes()));
            assert!(matches!(document, Some(Ok(Document::Manifest(_)))), "it is not requested again: {document:?}");
            assert!(requests.iter().nth(1).unwrap().starts_with("get /v2/acme/shop/manifests/v1 http"));
        });
    }
    with_registry(10, vec![response("404 x", "", ""); 2], |registry, name, _| {
        assert!(matches!(registry.resolve(name, "v1"), Err(RegistryError::NotFound(_))));
    });
    for status in ["407 x", "408 x", "429 x", "500 x", "503 x"] {
        with_registry(10, vec![response(status, "", ""), ok(MANIFEST)], |registry, name, requests| {
            registry.resolve(name, "v1").unwrap_err();
            assert_eq!(requests.try_iter().count(), 1, "{status}");
        });
    }
}

#[test]
fn a_manifest_is_the_one_with_its_digest_and_bounded() {
    let digest = Sha256::of(MANIFEST.as_bytes());
    let long = format!("{MANIFEST}{}", " ".repeat(4 << 20));
    let script = vec![ok(MANIFEST), ok("<html>"), ok(&long), response("404 x", "", ""), ok("<html>")];
    with_registry(10, script, |registry, name, requests| {
        let Document::Manifest(manifest) = registry.manifest(name, &digest).unwrap().unwrap() else { panic!() };
        assert!(manifest.layers.is_empty());
        let request = requests.recv().unwrap();
        assert!(request.starts_with(&format!("get /v2/acme/shop/manifests/sha256:{digest} http")), "{request}");
        for reason in [
            "but the registry sends one with the digest `sha256:",
            "`v1` has more than 4194304 bytes",
            "`v1` is not in the registry, or is hidden",
        ] {
            let shown = message(registry.manifest(name, &digest));
            assert!(shown.contains(reason), "{shown}");
        }
        let invalid = registry.manifest(name, &Sha256::of(b"<html>")).unwrap().unwrap_err();
        assert!(invalid.starts_with("has a manifest that cannot be used: it is invalid"), "{invalid}");
    });
}

#[test]
fn storage_receives_no_credentials() {
    let digest = Sha256::of(b"layer");
    let moved = response("307 x", "location: /storage/layer?signature=x\r\n", "");
    let script = vec![demands("/token"), ok(TOKEN), moved.clone(), ok("layer"), moved, ok("other"), ok("much more")];
    with_registry(10, script, |registry, name, requests| {
        assert_eq!(registry.small_blob(name, &digest, 5).unwrap(), b"layer");
        let requests: Vec<_> = requests.try_iter().collect();
        assert!(requests[2].starts_with(&format!("get /v2/acme/shop/blobs/sha256:{digest} http")));
        assert!(requests[2].contains("\r\nauthorization: bearer t1\r\n"));
        assert!(
            requests[3].starts_with("get /storage/layer?signature=x http") && !requests[3].contains("authorization")
        );
        let shown = message(registry.small_blob(name, &digest, 5));
        assert!(shown.contains("but the registry sends one with the digest `sha256:"), "{shown}");
        assert!(message(registry.small_blob(name, &digest, 5)).contains("`v1` has more than 5 bytes"));
    });
    let inside = response("307 x", "location: http://169.254.169.254/layer\r\n", "");
    with_registry(10, vec![inside], |registry, name, _| {
        assert!(message(registry.small_blob(name, &digest, 5)).contains("has no public address"));
    });
    let (storage, _requests) = server(vec![response("403 x", "", ""), response("503 x", "retry-after: 7\r\n", "")]);
    let moved = response("307 x", &format!("location: {storage}?signature=s3cret\r\n"), "");
    let mut upstream = Upstream::new("");
    upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    with_registry_of(upstream, vec![moved; 2], |registry, name, _| {
        let shown = message(registry.small_blob(name, &digest, 5));
        assert!(shown.contains("is stored at the host `127.0.0.1`, which answered 403"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
        let Err(RegistryError::Upstream(error)) = registry.small_blob(name, &digest, 5) else { panic!() };
        assert!(error.to_string().starts_with("the host `127.0.0.1` answered 503"), "{error}");
        assert!(error.is_of_other_host() && error.retry_after().is_some());
    });
    let circle = response("307 x", "location: /storage/layer\r\n", "");
    with_registry(10, vec![circle; 7], |registry, name, requests| {
        assert!(message(registry.small_blob(name, &digest, 5)).contains("too many consecutive redirects"));
        assert_eq!(requests.try_iter().count(), 6);
    });
}

#[test]
fn a_manifest_that_moved_within_the_registry_is_requested_with_credentials() {
    let moved = response("307 x", "location: /v2/moved\r\n", "");
    with_registry(10, vec![demands("/token"), ok(TOKEN), moved, ok(MANIFEST)], |registry, name, requests| {
        registry.manifest_by_tag(name, "v1").unwrap();
        let last = requests.try_iter().last().unwrap();
        assert!(last.starts_with("get /v2/moved http") && last.contains("\r\nauthorization: bearer t1\r\n"), "{last}");
    });
}

#[test]
fn a_registry_that_demands_a_pause_gets_one() {
    for status in ["429 x", "503 x", "403 x"] {
        with_registry(10, vec![response(status, "retry-after: 7\r\n", "")], |registry, name, _| {
            let Err(RegistryError::Upstream(error)) = registry.resolve(name, "v1") else { panic!("{status}") };
            assert_eq!(error.retry_after().map(|pause| pause.as_secs()), Some(7), "{error}");
        });
    }
    with_registry(10, vec![response("403 x", "", ""); 2], |registry, name, _| {
        assert!(matches!(registry.resolve(name, "v1"), Err(RegistryError::Denied { .. })));
    });
    with_registry(10, vec![response("302 x", "location: http://other.example/\r\n", "")], |registry, name, _| {
        let error = registry.resolve(name, "v1").unwrap_err();
        assert!(matches!(error, RegistryError::Upstream(UpstreamError::Redirected { .. })), "{error:?}");
    });
}

/// Lists what the refs stand for: the layer of each, or its step and reason.
fn list(
    artifacts: &Artifacts,
    registry: &Registry<'_>,
    name: &OciName,
    refs: &[&str],
) -> Result<Vec<Result<Sha256, String>>, UpstreamError> {
    let refs: Vec<ArtifactRef> = refs.iter().map(|each| ArtifactRef::parse(each).unwrap()).collect();
    let found = artifacts.list(registry, name, &refs.iter().collect::<Vec<_>>(), &Selector::default())?;
    let shown = |artifact: Result<Artifact, (&str, String)>| {
        artifact.map(|artifact| artifact.layer).map_err(|(step, reason)| format!("[{step}] {reason}"))
    };
    Ok(found.into_iter().map(shown).collect())
}

/// A manifest with one layer: its bytes and the answer to a request without a body.
fn one_layer(layer: &Sha256) -> (String, String) {
    let layer = format!(r#"{{"mediaType":"a/b","digest":"sha256:{layer}","size":3}}"#);
    let manifest = format!(r#"{{"schemaVersion":2,"layers":[{layer}]}}"#);
    let head = response("200 OK", &digest_header(&Sha256::of(manifest.as_bytes())), "");
    (manifest, head)
}

#[test]
fn a_refused_tag_stops_no_other_one() {
    let layer = Sha256::of(b"layer");
    let (manifest, head) = one_layer(&layer);
    for (status, step) in [("400", "resolve"), ("403", "authenticate"), ("412", "resolve"), ("451", "resolve")] {
        let refused = response(&format!("{status} x"), "", "");
        with_registry(10, vec![refused.clone(), refused, head.clone(), ok(&manifest)], |registry, name, _| {
            let found = list(&Artifacts::default(), registry, name, &["v1", "v2"]).unwrap();
            let reason = found[0].as_ref().unwrap_err();
            let expected = format!("[{step}] artifact `v1` is refused by the registry: it answered {status}");
            assert!(reason.starts_with(&expected), "{reason}");
            assert_eq!(found[1], Ok(layer));
        });
    }
    for script in
        [vec![response("403 x", "", ""); 4], vec![demands("/token"), ok(TOKEN), demands("/token"), demands("/token")]]
    {
        with_registry(10, script, |registry, name, _| {
            let error = list(&Artifacts::default(), registry, name, &["v1", "v2"]).unwrap_err();
            assert_eq!(error.step(), "authenticate", "{error}");
        });
    }
    with_registry(10, vec![response("407 x", "", "")], |registry, name, _| {
        list(&Artifacts::default(), registry, name, &["v1", "v2"]).unwrap_err();
    });
}

#[test]
fn a_manifest_that_cannot_be_used_is_requested_once() {
    let text = format!(r#"{{"mediaType":"\u001b[31m{}"}}"#, "x".repeat(1000));
    let head = response("200 OK", &digest_header(&Sha256::of(text.as_bytes())), "");
    with_registry(10, vec![head.clone(), ok(&text), head], |registry, name, requests| {
        let artifacts = Artifacts::default();
        for _ in 0..2 {
            let found = list(&artifacts, registry, name, &["v1"]).unwrap();
            let reason = found[0].as_ref().unwrap_err();
            let expected = "[select] artifact `v1` has a manifest that cannot be used: it is `[31mxxx";
            assert!(reason.starts_with(expected) && reason.len() < 400, "{reason}");
        }
        assert_eq!(requests.try_iter().count(), 3);
    });
}

#[test]
fn a_digest_that_a_registry_names_and_does_not_have_is_that_of_its_tag() {
    let layer = Sha256::of(b"layer");
    let (manifest, _) = one_layer(&layer);
    let head = response("200 OK", &digest_header(&Sha256::of(b"another")), "");
    for answer in [response("404 x", "", ""), ok(MANIFEST)] {
        with_registry(10, vec![head.clone(), answer, ok(&manifest)], |registry, name, requests| {
            let refs = [&ArtifactRef::Tag("v1".into())];
            let found = Artifacts::default().list(registry, name, &refs, &Selector::default()).unwrap();
            let artifact = found[0].as_ref().unwrap();
            assert_eq!((artifact.layer, artifact.named), (layer, Sha256::of(manifest.as_bytes())));
            assert!(requests.try_iter().last().unwrap().starts_with("get /v2/acme/shop/manifests/v1 http"));
        });
    }
    // A digest that a service follows is that manifest or none.
    let digest = format!("sha256:{}", Sha256::of(b"another"));
    with_registry(10, vec![response("404 x", "", "")], |registry, name, _| {
        let found = list(&Artifacts::default(), registry, name, &[&digest]).unwrap();
        assert!(found[0].as_ref().unwrap_err().contains("is not in the registry"), "{found:?}");
    });
}

#[test]
fn a_manifest_that_was_sent_for_a_tag_is_not_requested_again() {
    let layer = Sha256::of(b"layer");
    let (manifest, _) = one_layer(&layer);
    with_registry(10, vec![ok(""), ok(&manifest)], |registry, name, requests| {
        assert_eq!(list(&Artifacts::default(), registry, name, &["v1"]).unwrap(), [Ok(layer)]);
        assert_eq!(requests.try_iter().count(), 2);
    });
}

#[test]
fn what_a_registry_writes_is_cut_in_messages() {
    let (hostile, digest) = (format!("\u{1b}[31m{}", "x".repeat(1000)), format!("sha256:{}", "ab".repeat(32)));
    let layer = |media_type: &str, digest: &str| json!({ "mediaType": media_type, "digest": digest, "size": 1 });
    let is_cut = |reason: &str| reason.contains("[31mxxx") && reason.len() < 600 && !reason.contains('\u{1b}');
    let mut image = layer("m", &digest);
    image["platform"] = json!({ "os": hostile, "architecture": "x" });
    for document in [
        json!({ "layers": hostile }),
        json!({ "layers": [layer("m", &hostile)] }),
        json!({ "layers": [layer(&hostile, &digest), layer("m", &digest)] }),
        json!({ "manifests": [image] }),
        json!({ "mediaType": hostile }),
    ] {
        with_registry(10, vec![ok(""), ok(&document.to_string())], |registry, name, _| {
            let found = list(&Artifacts::default(), registry, name, &["v1"]).unwrap();
            assert!(is_cut(found[0].as_ref().unwrap_err()), "{found:?}");
        });
    }
    with_registry(10, vec![ok(&json!({ "tags": hostile }).to_string())], |registry, name, _| {
        let shown = message(registry.tags(name));
        assert!(is_cut(&shown), "{shown}");
    });
}

#[test]
fn what_a_registry_reports_is_shown() {
    let digest = Sha256::of(b"layer");
    let errors = r#"{"errors":[{"code":"DENIED","message":"SAML is \u001b[31menforced"}]}"#;
    let reports = "; the server reports: SAML is [31menforced";
    let refused = |status: &str| response(status, "", errors);
    for (status, expected) in [
        ("400 x", "is refused by the registry: it answered 400"),
        ("403 x", "is refused by the registry: it answered 403: check its rules"),
        ("404 x", "is not in the registry, or is hidden"),
        ("429 x", "the upstream answered 429: "),
        ("500 x", "the upstream answered 500: "),
    ] {
        let of_tags = vec![refused(status); if status == "400 x" { 2 } else { 1 }];
        let tags = with_registry(10, of_tags, |registry, name, _| message(registry.tags(name)));
        let blob = with_registry(10, vec![refused(status)], |registry, name, _| message(registry.blob(name, &digest)));
        for shown in [tags, blob] {
            assert!(shown.contains(expected) && shown.ends_with(reports), "{shown}");
        }
    }
    // A HEAD has no body.
    with_registry(10, vec![response("403 x", "", ""), refused("403 x")], |registry, name, requests| {
        let shown = message(registry.resolve(name, "v1"));
        assert!(shown.ends_with(reports), "{shown}");
        assert!(requests.iter().nth(1).unwrap().starts_with("get /v2/acme/shop/manifests/v1 http"));
    });
    for status in ["401 x", "403 x", "429 x", "500 x"] {
        let script = vec![demands("/token"), refused(status)];
        let shown = with_registry(10, script, |registry, name, _| message(registry.resolve(name, "v1")));
        assert!(shown.contains("the token service `127.0.0.1` ") && shown.ends_with(reports), "{shown}");
    }
    let (storage, _requests) = server(vec![response("403 x", "", "<Error><Message>expired</Message></Error>")]);
    let moved = response("307 x", &format!("location: {storage}\r\n"), "");
    let mut upstream = Upstream::new("");
    upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    with_registry_of(upstream, vec![moved], |registry, name, _| {
        let shown = message(registry.small_blob(name, &digest, 5));
        assert!(shown.ends_with("receives no credentials; the server reports: expired"), "{shown}");
    });
}

#[test]
fn an_encoding_that_was_not_requested_is_named_where_it_harms() {
    let encoded = |body: &str| response("200 OK", "content-encoding: br\r\n", body);
    let named =
        "; the server, or a proxy before it, sent `Content-Encoding: br`, which was not requested: turn that off";
    with_registry(10, vec![encoded("?"), encoded(r#"{"tags":["a"]}"#)], |registry, name, _| {
        assert!(message(registry.tags(name)).ends_with(named));
        assert_eq!(registry.tags(name).unwrap(), ["a"], "a label alone");
    });
    let digest = Sha256::of(MANIFEST.as_bytes());
    with_registry(10, vec![encoded("?"), encoded(MANIFEST)], |registry, name, _| {
        assert!(message(registry.manifest(name, &digest)).ends_with(named));
        registry.manifest(name, &digest).unwrap().unwrap();
    });
    with_registry(10, vec![demands("/token"), encoded("?")], |registry, name, _| {
        assert!(message(registry.resolve(name, "v1")).ends_with(named));
    });
}

#[test]
fn a_page_instead_of_a_list_or_a_manifest_is_called_one() {
    let page = response("200 OK", "content-type: text/html; charset=utf-8\r\n", "<html>Sign in</html>");
    let named = "; the server sent a page (`text/html`)";
    with_registry(10, vec![page.clone(); 2], |registry, name, _| {
        let shown = [message(registry.tags(name)), message(registry.manifest(name, &Sha256::of(b"x")))];
        assert!(shown.iter().all(|shown| shown.ends_with(named)), "{shown:?}");
    });
    with_registry(10, vec![demands("/token"), page], |registry, name, _| {
        let shown = message(registry.resolve(name, "v1"));
        assert!(shown.ends_with(named), "{shown}");
    });
}
