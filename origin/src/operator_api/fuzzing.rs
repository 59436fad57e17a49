//! Entry points of fuzzers.

use weir_protocol::name::ServiceName;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

use super::dry_run::Part;
use super::page::Page;
use super::route::Route;
use super::validation::{Object, read};

/// A document is valid and round-trips, or has validation errors.
pub fn document(bytes: &[u8]) {
    again::<ServiceConfig>(bytes);
    again::<RepositoryConfig>(bytes);
}

fn again<T: Object + std::fmt::Debug>(bytes: &[u8]) {
    match read::<T>("x", bytes, |_| Vec::new()) {
        Ok(sent) => {
            let written = serde_json::to_vec(&sent.document).expect("it was read");
            assert_eq!(read::<T>("x", &written, |_| Vec::new()).expect("it was taken before").document, sent.document);
        }
        Err(errors) => assert!(!errors.is_empty()),
    }
}

/// Queries of listings and dry runs parse or fail cleanly.
pub fn page(bytes: &[u8]) {
    let Ok(query) = std::str::from_utf8(bytes) else { return };
    let _ = Page::<ServiceName>::parse(Some(query), "`limit` and `page`", |_, _| Ok(false));
    let _ = Part::parse(Some(query));
}

/// Paths round-trip.
pub fn route(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else { return };
    if let Ok(route) = Route::parse(path) {
        assert_eq!(route.to_string(), path);
    }
}
