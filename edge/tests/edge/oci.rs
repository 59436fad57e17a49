//! Clients of registries: manifests, blobs, tags, and who may pull.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use weir_edge::config::AuthMode;
use weir_protocol::descriptor::{Descriptor, DescriptorFields};
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{EMPTY_CONFIG, MANIFEST_TYPE, OciForm};
use weir_protocol::token::unix_seconds;

use crate::access::{Guarded, claims, raw};
use crate::client::{Client, Reply};
use crate::site::{Site, TARBALL, a_moment, always_revalidating};
use crate::test_origin::{FRAME, Tarball};
use crate::tiers::{another, as_shield, shielding};

const LATEST: &str = "/v2/weir/shop/manifests/latest";
const TAGS: &str = "/v2/weir/shop/tags/list";

/// A service with an OCI form whose layer has several frames.
async fn serving() -> (Site, Tarball, OciForm) {
    let (site, tarball) = (Site::start().await, Tarball::random(1, 2 * FRAME + 1000).and_oci());
    site.origin.publish("shop", 7, 1, &tarball);
    let form = tarball.form().unwrap();
    (site, tarball, form)
}

fn blob(digest: &Sha256) -> String {
    format!("/v2/weir/shop/blobs/sha256:{digest}")
}

fn manifest(digest: &Sha256) -> String {
    format!("/v2/weir/shop/manifests/sha256:{digest}")
}

/// The code of an error, whose form is that of the specification.
pub(crate) fn code(reply: &Reply) -> String {
    assert_eq!((reply.header("content-type"), reply.header("cache-control")), ("application/json", "no-store"));
    let document: serde_json::Value = serde_json::from_slice(reply.bytes()).unwrap();
    assert!(!document["errors"][0]["message"].as_str().unwrap().is_empty());
    document["errors"][0]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn manifests_are_found_by_tag_and_by_digest() {
    let (site, _, form) = serving().await;
    let digest = format!("sha256:{}", form.sha256);
    let tag = format!("\"{digest}\"");
    assert_eq!(
        site.client("h2").await.get(LATEST, &[]).await.header("cache-status"),
        "edge-1; fwd=miss; fwd-status=200; stored"
    );
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let base = client.get("/v2/", &[]).await;
        assert_eq!(
            (base.status, &base.bytes()[..], base.header("content-type")),
            (200, &b"{}"[..], "application/json")
        );
        // The commit of generation 7 begins with zeros.
        for path in [LATEST, "/v2/weir/shop/manifests/c00000000000", &manifest(&form.sha256)] {
            let reply = client.get(path, &[]).await;
            assert_eq!((reply.status, &reply.bytes()[..]), (200, form.manifest.as_bytes()), "{version} {path}");
            let head = client.head(path, &[]).await;
            for reply in [&reply, &head] {
                assert_eq!(reply.header("docker-content-digest"), digest);
                assert_eq!((reply.header("content-type"), reply.header("etag")), (MANIFEST_TYPE, tag.as_str()));
                assert_eq!(reply.header("content-length"), form.manifest.len().to_string());
                assert_eq!(reply.header("cache-status"), "edge-1; hit", "{version} {path}");
                let is_immutable = reply.header("cache-control").contains("immutable");
                assert_eq!(is_immutable, path.contains("sha256"), "{path}");
            }
            assert!(head.bytes().is_empty());
            let same = client.get(path, &[("if-none-match", &tag)]).await;
            assert_eq!((same.status, same.header("docker-content-digest")), (304, digest.as_str()), "{path}");
        }
        for (path, expected) in [
            ("/v2/weir/shop/manifests/1.0.0", "MANIFEST_UNKNOWN"),
            (&manifest(&Sha256::of(b"other")), "MANIFEST_UNKNOWN"),
            ("/v2/weir/shop/manifests/sha256:0", "DIGEST_INVALID"),
            (&blob(&Sha256::of(b"other")), "BLOB_UNKNOWN"),
            ("/v2/weir/other/manifests/latest", "NAME_UNKNOWN"),
            ("/v2/weir/other/tags/list", "NAME_UNKNOWN"),
            ("/v2/library/shop/manifests/latest", "NAME_UNKNOWN"),
            ("/v2/_catalog", "NAME_UNKNOWN"),
        ] {
            let reply = client.get(path, &[]).await;
            let status = if expected == "DIGEST_INVALID" { 400 } else { 404 };
            assert_eq!((reply.status, code(&reply).as_str()), (status, expected), "{version} {path}");
        }
        for (method, path) in [
            ("POST", "/v2/weir/shop/blobs/uploads/"),
            ("POST", "/v2/weir/shop/blobs/uploads/?mount=sha256:0&from=weir/other"),
            ("PUT", LATEST),
            ("DELETE", LATEST),
            ("DELETE", &blob(&form.blobs[0].sha256)),
            ("POST", "/v2/token"),
        ] {
            let reply = client.send(method, path, &[]).await;
            assert_eq!((reply.status, code(&reply).as_str()), (405, "UNSUPPORTED"), "{version} {method} {path}");
        }
    }
    let polls = [("route", "oci_manifest"), ("method", "HEAD"), ("cache", "hit"), ("status", "200")];
    assert_eq!(site.metric("weir_edge_requests_total", &polls), 9.0);
}

#[tokio::test]
async fn blobs_are_sent_as_they_are_stored_whole_and_in_ranges() {
    let (site, tarball, form) = serving().await;
    let (layer, path) = (tarball.layer(), blob(&form.blobs[0].sha256));
    assert_eq!((form.blobs[0].frames, &layer), (3, &tarball.gzip()));
    let (length, empty) = (layer.len(), blob(&Sha256::of(EMPTY_CONFIG)));
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let whole = client.get(&path, &[("accept-encoding", "gzip")]).await;
        assert!(whole.status == 200 && *whole.bytes() == layer, "{version}");
        let head = client.head(&path, &[]).await;
        for reply in [&whole, &head] {
            assert_eq!(
                (reply.header("content-type"), reply.header("content-encoding")),
                ("application/octet-stream", "")
            );
            assert_eq!(reply.header("docker-content-digest"), format!("sha256:{}", form.blobs[0].sha256));
            assert_eq!(
                (reply.header("content-length"), reply.header("accept-ranges")),
                (&*length.to_string(), "bytes")
            );
        }
        for (range, part) in [
            ("bytes=0-99".to_owned(), 0..100),
            (format!("bytes={}-{}", FRAME, FRAME + 9), FRAME..FRAME + 10),
            ("bytes=1000-".to_owned(), 1000..length),
            ("bytes=-7".to_owned(), length - 7..length),
        ] {
            let reply = client.get(&path, &[("range", &range)]).await;
            let content_range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            assert_eq!((reply.status, reply.header("content-range")), (206, content_range.as_str()), "{range}");
            assert!(*reply.bytes() == layer.slice(part), "{version} {range}");
        }
        let beyond = client.get(&path, &[("range", &format!("bytes={length}-"))]).await;
        assert_eq!((beyond.status, beyond.header("content-range")), (416, &*format!("bytes */{length}")));
        assert_eq!(code(&beyond), "RANGE_INVALID");
        let several = client.get(&path, &[("range", "bytes=0-1,3-4")]).await;
        assert!(several.status == 200 && several.bytes().len() == length, "as the RFC allows");
        let other = [("range", "bytes=0-1"), ("if-range", "\"sha256:0\"")];
        assert_eq!(client.get(&path, &other).await.status, 200);
        let same = client.get(&path, &[("if-none-match", whole.header("etag"))]).await;
        assert_eq!(same.status, 304);
        let config = client.get(&empty, &[]).await;
        assert_eq!((config.status, &config.bytes()[..]), (200, EMPTY_CONFIG));
        assert_eq!(client.get(&empty, &[("range", "bytes=1-1")]).await.bytes(), &Bytes::from_static(b"}"));
    }
    let sent = |kind| site.metric("weir_edge_sent_bytes_total", &[("encoding", "oci"), ("kind", kind)]);
    assert!(sent("full") >= 9.0 * length as f64 && sent("frames") > 0.0);
}

#[tokio::test]
async fn an_archive_of_the_upstream_is_sent_byte_for_byte() {
    let site = Site::start().await;
    // The tar that agents get is another one.
    let archive = Tarball::random(2, FRAME + 500).tar;
    let tarball = Tarball::random(1, 1000).and_archive(&archive);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    let path = blob(&Sha256::of(&archive));
    assert!(*client.get(&path, &[]).await.bytes() == archive);
    let part = client.get(&path, &[("range", "bytes=1048570-1048590")]).await;
    assert!(*part.bytes() == archive.slice(1_048_570..1_048_591));
    assert_eq!(client.get(TARBALL, &[]).await.bytes(), &tarball.tar);
}

#[tokio::test]
async fn a_service_without_a_form_says_what_to_do() {
    let (site, _) = Site::serving(1000).await;
    let mut client = site.client("h2").await;
    for path in [LATEST, TAGS] {
        let reply = client.get(path, &[]).await;
        assert_eq!((reply.status, code(&reply).as_str()), (404, "MANIFEST_UNKNOWN"), "{path}");
        assert!(String::from_utf8_lossy(reply.bytes()).contains("set `oci = true`"));
    }
    assert_eq!(code(&client.get(&blob(&Sha256::of(EMPTY_CONFIG)), &[]).await), "BLOB_UNKNOWN");
}

/// The same descriptor with the version of a chart.
fn versioned(descriptor: &Descriptor, version: &str) -> Descriptor {
    let mut fields: DescriptorFields = descriptor.fields().clone();
    fields.publication.version = Some(version.parse().unwrap());
    Descriptor::new(fields)
}

#[tokio::test]
async fn tags_are_listed_in_pages() {
    let (site, tarball) = (Site::start().await, Tarball::random(1, 1000).and_oci());
    let descriptor = versioned(&tarball.descriptor("shop", 7, 1), "1.2.3+up.4");
    site.origin.put("shop", &tarball, descriptor);
    let mut client = site.client("h2").await;
    let reply = client.get(TAGS, &[]).await;
    assert_eq!(reply.bytes(), r#"{"name":"weir/shop","tags":["1.2.3_up.4","c00000000000","latest"]}"#);
    assert_eq!(client.get("/v2/weir/shop/manifests/1.2.3_up.4", &[]).await.status, 200);
    let (mut path, mut seen) = (format!("{TAGS}?n=2"), Vec::new());
    loop {
        let reply = client.get(&path, &[]).await;
        let document: serde_json::Value = serde_json::from_slice(reply.bytes()).unwrap();
        seen.push(document["tags"].as_array().unwrap().len());
        let Some((next, _)) = reply.header("link").strip_prefix('<').and_then(|link| link.split_once('>')) else {
            break;
        };
        assert_eq!(next, "/v2/weir/shop/tags/list?n=2&last=c00000000000");
        path = next.to_owned();
    }
    assert_eq!(seen, [2, 1]);
    let referrers = format!("/v2/weir/shop/referrers/sha256:{}?artifactType=x", Sha256::of(b"any"));
    let reply = client.get(&referrers, &[]).await;
    assert_eq!(reply.header("content-type"), "application/vnd.oci.image.index.v1+json");
    assert_eq!(reply.header("oci-filters-applied"), "artifactType");
    assert!(String::from_utf8_lossy(reply.bytes()).contains("\"manifests\":[]"));
}

#[tokio::test]
async fn what_another_edge_named_is_looked_up_and_an_outage_changes_nothing() {
    let (mut site, _, form) = serving().await;
    let mut client = site.client("h2").await;
    let layer = blob(&form.blobs[0].sha256);
    assert_eq!(client.get(&layer, &[]).await.status, 200);
    let newer = Tarball::random(2, 5000).and_oci();
    site.origin.publish("shop", 8, 1, &newer);
    let newer = newer.form().unwrap();
    // The entry is fresh, so the edge has not noticed.
    assert_eq!(client.get(LATEST, &[]).await.bytes(), form.manifest.as_bytes());
    assert_eq!(client.get(&manifest(&newer.sha256), &[]).await.bytes(), newer.manifest.as_bytes());
    let newer_layer = blob(&newer.blobs[0].sha256);
    assert_eq!(client.get(&newer_layer, &[]).await.status, 200);
    assert_eq!(site.origin.requests("versions").len(), 1);

    site.settled().await;
    site.stop_edge().await;
    always_revalidating(&mut site.config);
    site.start_edge().await;
    site.origin.go_down().await;
    let mut client = site.client("h2").await;
    a_moment().await;
    for path in [LATEST, &manifest(&form.sha256), &layer, &manifest(&newer.sha256), &newer_layer, TAGS] {
        assert_eq!(client.get(path, &[]).await.status, 200, "{path}");
    }
    // Whether there is one by now is not known.
    for path in [&manifest(&Sha256::of(b"other")), "/v2/weir/other/manifests/latest"] {
        let reply = client.get(path, &[]).await;
        assert_eq!(code(&reply), "UNAVAILABLE", "{path}");
        assert!(reply.status >= 500 && !reply.header("retry-after").is_empty());
    }
}

#[tokio::test]
async fn retained_versions_are_pulled_by_digest_and_those_that_were_followed_by_tag() {
    let site = Site::start().await;
    let versions = ["1.0.0", "2.0.0", "1.1.0"];
    let tarballs = [1, 2, 3].map(|seed| Tarball::random(seed, 5000).and_oci());
    for (number, (version, tarball)) in versions.into_iter().zip(&tarballs).enumerate() {
        let descriptor = tarball.descriptor("shop", 7 + number as u64, 1);
        site.origin.put("shop", tarball, versioned(&descriptor, version));
    }
    site.origin.step_back_from("shop", &tarballs[1]);
    let mut client = site.client("h2").await;
    for tarball in &tarballs {
        let form = tarball.form().unwrap();
        let pulled = client.get(&manifest(&form.sha256), &[]).await;
        assert_eq!((pulled.status, pulled.bytes()), (200, &Bytes::from(form.manifest)));
        assert_eq!(client.get(&blob(&form.blobs[0].sha256), &[]).await.bytes(), &tarball.layer());
    }
    for (tag, status) in [("1.0.0", 200), ("2.0.0", 404), ("1.1.0", 200), ("latest", 200), ("3.0.0", 404)] {
        assert_eq!(client.get(&format!("/v2/weir/shop/manifests/{tag}"), &[]).await.status, status, "{tag}");
    }
    let tags = client.get(TAGS, &[]).await;
    assert_eq!(tags.bytes(), r#"{"name":"weir/shop","tags":["1.0.0","1.1.0","c00000000000","latest"]}"#);
    // Of two versions with one tag the newer has it.
    let commit = client.get("/v2/weir/shop/manifests/c00000000000", &[]).await;
    assert_eq!(commit.bytes(), tarballs[2].form().unwrap().manifest.as_bytes());
}

/// The challenges of a `401`.
fn challenges(reply: &Reply) -> Vec<String> {
    assert_eq!((reply.status, code(reply).as_str()), (401, "UNAUTHORIZED"));
    let values = reply.headers.get_all("www-authenticate").iter();
    values.map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn clients_get_a_token_for_their_password() {
    let guarded = Guarded::start().await;
    let site = &guarded.site;
    let tarball = Tarball::random(3, 1000).and_oci();
    site.origin.publish("shop", 8, 1, &tarball);
    let layer = blob(&tarball.form().unwrap().blobs[0].sha256);
    let bearer = guarded.bearer(&claims("one", &["shop*"]));
    let token = bearer.strip_prefix("Bearer ").unwrap();
    let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("anyone:{password}")));
    let (good, bad) = (basic(token), basic("secret"));
    let realm = format!("Bearer realm=\"https://{}/v2/token\",service=\"weir\"", site.edge().address());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for (path, scope) in [("/v2/", ""), ("/v2/token", ""), (LATEST, ",scope=\"repository:weir/shop:pull\"")] {
            let bare = client.get(path, &[]).await;
            assert_eq!(challenges(&bare), ["Basic realm=\"weir\"".to_owned(), format!("{realm}{scope}")], "{version}");
            let wrong = challenges(&client.get(path, &[("authorization", &bad)]).await);
            assert!(wrong[1].contains("error=\"invalid_token\",error_description=\"The token cannot be read.\""));
        }
        let answer =
            client.get("/v2/token?service=weir&scope=repository:weir/shop:pull", &[("authorization", &good)]).await;
        assert_eq!((answer.status, answer.header("cache-control")), (200, "no-store"));
        let document: serde_json::Value = serde_json::from_slice(answer.bytes()).unwrap();
        assert_eq!((document["token"].as_str(), document["access_token"].as_str()), (Some(token), Some(token)));
        let ends = document["expires_in"].as_u64().unwrap() + unix_seconds(SystemTime::now());
        assert!((3500..3700).contains(&document["expires_in"].as_u64().unwrap()), "{ends}");
        for authorization in [&bearer, &good] {
            for path in ["/v2/", LATEST, layer.as_str(), TAGS] {
                assert_eq!(client.get(path, &[("authorization", authorization)]).await.status, 200, "{version} {path}");
            }
            assert!(
                client
                    .get(LATEST, &[("authorization", authorization)])
                    .await
                    .header("cache-control")
                    .contains("private")
            );
        }
        // Elsewhere a password is none.
        assert_eq!(client.get(TARBALL, &[("authorization", &good)]).await.status, 401);
    }
}

#[tokio::test]
async fn a_repository_out_of_scope_looks_absent() {
    let guarded = Guarded::start().await;
    let site = &guarded.site;
    let tarball = Tarball::random(3, 1000).and_oci();
    site.origin.publish("bank", 7, 1, &tarball);
    let form = tarball.form().unwrap();
    let bearer = guarded.bearer(&claims("one", &["shop*", "nope"]));
    let all = guarded.bearer(&claims("all", &["*"]));
    let known = site.client("h2").await.get("/v2/weir/bank/manifests/latest", &[("authorization", &all)]).await;
    assert_eq!(known.status, 200);
    let (layer, digest) = (form.blobs[0].sha256, form.sha256);
    for path in [
        "/v2/weir/{}/manifests/latest".to_owned(),
        format!("/v2/weir/{{}}/manifests/sha256:{digest}"),
        format!("/v2/weir/{{}}/blobs/sha256:{layer}"),
        "/v2/weir/{}/tags/list".to_owned(),
        format!("/v2/weir/{{}}/referrers/sha256:{digest}"),
    ] {
        for method in ["GET", "HEAD", "DELETE"] {
            let unseen = raw(site, method, &path.replace("{}", "bank"), &bearer).await;
            assert!(unseen.starts_with(if method == "DELETE" { "HTTP/1.1 405" } else { "HTTP/1.1 404" }), "{unseen}");
            let unknown = raw(site, method, &path.replace("{}", "nope"), &bearer).await;
            assert_eq!(unseen, unknown.replace("nope", "bank"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn certificates_and_open_edges_are_never_challenged() {
    let mut site = Site::prepare().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000).and_oci());
    site.config.auth.mode = AuthMode::Required;
    site.config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    site.config.auth.certificates = vec![weir_edge::config::CertificateRule {
        agents: "*".parse().unwrap(),
        services: vec!["shop".parse().unwrap()],
    }];
    site.start_edge().await;
    let pull = async |client: &mut Client| {
        let mut statuses = Vec::new();
        for path in ["/v2/", LATEST, "/v2/weir/other/manifests/latest"] {
            statuses.push(client.get(path, &[]).await.status);
        }
        statuses
    };
    assert_eq!(pull(&mut site.client_as("agent", "h2").await).await, [200, 200, 404]);
    assert_eq!(pull(&mut site.client("h2").await).await, [401, 401, 401]);
    assert_eq!(pull(&mut site.client_as("edge-client", "h2").await).await, [401, 401, 401], "it is no agent");
    let (open, _, _) = serving().await;
    assert_eq!(pull(&mut open.client("h2").await).await, [200, 200, 404]);
}

#[tokio::test]
async fn tags_that_are_not_known_are_an_error_in_an_outage() {
    let (site, ..) = serving().await;
    let mut client = site.client("h2").await;
    assert_eq!(client.get(LATEST, &[]).await.status, 200);
    site.origin.go_down().await;
    let reply = client.get(TAGS, &[]).await;
    assert_eq!(code(&reply), "UNAVAILABLE");
    assert!(reply.status >= 500 && !reply.header("retry-after").is_empty(), "{}", reply.status);
    assert_eq!(client.get(LATEST, &[]).await.status, 200);
}

#[tokio::test]
async fn a_list_of_versions_that_a_shield_cannot_renew_is_passed_on_with_its_age() {
    let tarball = Tarball::random(1, 1000).and_oci();
    let mut site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &tarball)), shielding).await;
    let list = "/v1/services/shop/versions";
    assert_eq!(site.client_as("edge-client", "h2").await.get(list, &[]).await.header("age"), "0");
    site.settled().await;
    site.stop_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let reply = site.client_as("edge-client", "h2").await.get(list, &[]).await;
    let age: u64 = reply.header("age").parse().unwrap();
    assert!(reply.status == 200 && age >= 120, "a list of an earlier process is old: {age}");

    // So an edge behind it requests the list again, though it has it.
    let mut config = another(&site, "edge-2", &[]);
    config.origins = vec![as_shield(&site, site.edge().address())];
    let edge = weir_edge::start(config).await.unwrap();
    let mut client = Client::connect("h2", edge.address(), site.pki()).await;
    let requests = || site.metric("weir_edge_peer_requests_total", &[("route", "versions")]);
    let before = requests();
    for _ in 0..2 {
        assert_eq!(client.get(TAGS, &[]).await.status, 200);
    }
    assert_eq!(requests() - before, 2.0);
    // What is missing in the old list may be there by now.
    let unknown = client.get(&manifest(&Sha256::of(b"other")), &[]).await;
    assert_eq!((code(&unknown).as_str(), unknown.header("retry-after").is_empty()), ("UNAVAILABLE", false));
}
