//! Lists of what refers to a manifest.

use super::super::registry::Referrers;
use super::*;

#[test]
fn referrers_are_listed_by_the_registry_or_by_a_tag() {
    let (digest, hex) = (Sha256::of(b"image"), "ab".repeat(32));
    let index = format!(r#"{{"manifests":[{{"mediaType":"m","digest":"sha256:{hex}","size":1,"artifactType":"a"}}]}}"#);
    let missing = || response("404 x", "", "");
    let script = vec![ok(&index), missing(), ok(&index), missing(), missing(), ok(MANIFEST), ok(MANIFEST)];
    with_registry(10, script, |registry, name, requests| {
        for _ in 0..2 {
            let found = registry.referrers(name, &digest).unwrap().found;
            assert_eq!((found.len(), found[0].artifact_type.as_deref()), (1, Some("a")));
        }
        let paths: Vec<_> = requests.try_iter().map(|it| it.split(' ').nth(1).unwrap().to_owned()).collect();
        let api = format!("/v2/acme/shop/referrers/sha256:{digest}");
        assert_eq!(paths, [api.clone(), api, format!("/v2/acme/shop/manifests/sha256-{digest}")]);
        assert!(registry.referrers(name, &digest).unwrap().found.is_empty());
        assert!(message(registry.referrers(name, &digest)).contains("a list of referrers that is no index"));
    });
}

#[test]
fn the_first_pages_of_referrers_are_read() {
    let (digest, hex) = (Sha256::of(b"image"), "ab".repeat(32));
    let page = |next: &str| {
        let link = if next.is_empty() { String::new() } else { format!("link: </x?{next}>; rel=\"next\"\r\n") };
        let index = format!(r#"{{"manifests":[{{"mediaType":"m","digest":"sha256:{hex}","size":1}}]}}"#);
        response("200 OK", &link, &index)
    };
    with_registry(10, vec![page("last=a"), page("last=b"), page("")], |registry, name, requests| {
        assert_eq!(registry.referrers(name, &digest).unwrap().found.len(), 3);
        let last = requests.try_iter().last().unwrap();
        assert!(last.starts_with(&format!("get /v2/acme/shop/referrers/sha256:{digest}?last=b http")), "{last}");
    });
    with_registry(10, vec![page("last=a"); 11], |registry, name, requests| {
        assert_eq!(registry.referrers(name, &digest).unwrap().found.len(), 10);
        assert_eq!(requests.try_iter().count(), 10);
    });
    // What follows a page that was read is missing, and known to be.
    for status in ["404 x", "403 x", "500 x"] {
        let script = vec![page("last=a"), response(status, "", "")];
        with_registry(10, script, |registry, name, requests| {
            let Referrers { found, failed } = registry.referrers(name, &digest).unwrap();
            assert!(found.len() == 1 && failed.is_some(), "{status}");
            assert_eq!(requests.try_iter().count(), 2);
        });
    }
}
