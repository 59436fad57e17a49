//! For the fuzzers in `loadtest/fuzz`: what registries write besides archives.

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderValue, LINK, WWW_AUTHENTICATE};

use super::challenge::{self, Challenge};
use super::manifest::{self, Document};
use super::{OciName, WholeManifest, link, registry::is_tag};

/// Challenges, links, manifests and names.
pub fn fuzz_registry_words(bytes: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, value.clone()), (LINK, value)]);
        if let Some(Challenge::Bearer(service)) = challenge::read(&headers) {
            assert!(!service.realm.is_empty() && service.realm.len() <= bytes.len());
        }
        let page = Url::parse("https://registry.example/v2/acme/shop/tags/list?n=1000").expect("a valid URL");
        if let Ok(Some(next)) = link::next_page(&page, &headers) {
            assert!(next.path() == page.path() && next.origin() == page.origin(), "{next}");
        }
    }
    match manifest::parse(bytes) {
        Ok(Document::Manifest(manifest)) => {
            for archive in manifest.layers.iter().filter_map(|layer| layer.sha256().ok()) {
                let Some(whole) = WholeManifest::of(bytes.to_vec(), &archive, true) else { continue };
                let types = whole.others.iter().map(|(_, media_type)| media_type).chain([&whole.media_type]);
                types.for_each(|text| assert!(HeaderValue::from_str(text).is_ok(), "{text}"));
            }
        }
        Ok(Document::Index(_)) | Err(_) => {}
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(name) = text.parse::<OciName>() {
        assert!(name.to_string() == text && !text.contains("..") && !text.contains("//"), "{name}");
    }
    assert!(!is_tag(text) || !text.contains(['/', ':', '@', '?']), "{text}");
}
