//! Entry points of fuzzers.

use http::{HeaderMap, HeaderValue};

use super::{Delivery, DeliveryResult, Notification, Provider, Secret};

const PROVIDERS: [Provider; 5] =
    [Provider::Github, Provider::Gitlab, Provider::Gitea, Provider::Bitbucket, Provider::Generic];

/// The headers that carry signatures and events.
const HEADERS: [&str; 13] = [
    "x-hub-signature-256",
    "x-hub-signature",
    "x-gitlab-token",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-gitea-signature",
    "x-forgejo-signature",
    "x-signature",
    "x-webhook-token",
    "x-github-event",
    "x-gitea-event",
    "x-event-key",
];

/// Puts the first line into all headers; the rest is the body.
pub fn delivery(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(line) {
        headers.extend(HEADERS.map(|name| (http::HeaderName::from_static(name), value.clone())));
    }
    let secret = Secret::from_file(&[7; 32]).expect("it is not empty");
    let event = String::from_utf8_lossy(line);
    for provider in PROVIDERS {
        // A valid signature does not imply a valid payload.
        if let Notification::RefsMoved(refs) = provider.parse(&event, body) {
            assert!(refs.len() <= body.len(), "no ref is made up");
        }
        let mut delivery = Delivery::begin(provider, &headers, std::slice::from_ref(&secret));
        body.chunks(100).for_each(|part| delivery.push(part));
        if line.trim_ascii() != [7; 32] {
            assert_eq!(delivery.finish(|_| true), DeliveryResult::Refused, "nobody finds a signature");
        }
    }
}
