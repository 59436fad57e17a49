//! A page for people: one document with its style and its script, which requests nothing but what its own listener serves.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use weir_protocol::digest::Sha256;

use crate::serve::Body;

/// The most bytes of a page, so that it is read in one go over a slow tunnel too.
pub const MAX_PAGE_BYTES: usize = 80_000;

/// What pages share.
const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const LIMITS: &str = include_str!("page/limits.html");

/// A page, built once. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Page {
    document: Bytes,
    /// Its `Content-Security-Policy`: what has another hash than the style and the script of this document is not used.
    policy: HeaderValue,
}

impl Page {
    /// The page of `role` in the frame of all pages. `document` is its content, from within `<main>` to the footer, and has the
    /// section of limits at `<!--limits-->`. `script` follows what pages share.
    pub fn new(role: &str, document: &str, script: &str) -> Self {
        let script = format!("{SCRIPT}\n{script}");
        let hash = |text: &str| STANDARD.encode(Sha256::of(text.as_bytes()).as_bytes());
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
             trusted-types 'none'",
            hash(STYLE),
            hash(&script)
        );
        let document = document.replace("<!--limits-->", LIMITS.trim_end());
        let page = FRAME.replace("<!--role-->", role).replace("<!--document-->", &document);
        let document = page.replace("/*style*/", STYLE).replace("/*script*/", &script);
        let policy = HeaderValue::try_from(policy).expect("visible ASCII");
        Self { document: document.into(), policy }
    }

    /// The response with the page. It says nothing of this process: its script asks for that.
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.document.clone()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            // Of the next version.
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
        headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
        response
    }
}
