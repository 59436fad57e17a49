//! The messages of the LFS batch API, which locates objects. They are sent by `mirror/lfs.rs`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use weir_upstream::shown;

use super::{LfsOid, Pointer};

/// The media type of requests and responses.
pub const MEDIA_TYPE: &str = "application/vnd.git-lfs+json";

/// The most objects of a request, as in other clients.
pub const OBJECTS_PER_REQUEST: usize = 100;

/// The largest response to a request.
pub const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// The most headers that a server may set for a download.
const MAX_HEADERS: usize = 32;

/// The most characters of a server's text in a message.
const MAX_SHOWN: usize = 200;

#[derive(Serialize)]
struct Request {
    operation: &'static str,
    transfers: [&'static str; 1],
    objects: Vec<RequestedObject>,
    hash_algo: &'static str,
}

#[derive(Serialize)]
struct RequestedObject {
    oid: String,
    size: u64,
}

/// The body of a request for objects.
pub fn request(objects: &[Pointer]) -> Vec<u8> {
    let objects = objects.iter().map(|object| RequestedObject { oid: object.oid.to_string(), size: object.size });
    let request =
        Request { operation: "download", transfers: ["basic"], objects: objects.collect(), hash_algo: "sha256" };
    serde_json::to_vec(&request).expect("a request can be serialized")
}

#[derive(Deserialize)]
struct BatchResponse {
    #[serde(default)]
    transfer: Option<String>,
    #[serde(default)]
    hash_algo: Option<String>,
    objects: Vec<ResponseObject>,
}

#[derive(Deserialize)]
struct ResponseObject {
    oid: String,
    #[serde(default)]
    actions: Option<Actions>,
    #[serde(default)]
    error: Option<ObjectError>,
}

#[derive(Deserialize)]
struct Actions {
    #[serde(default)]
    download: Option<Download>,
}

/// The location of an object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Download {
    /// Its URL, absolute or relative.
    pub href: String,
    /// Headers for the request, which may be secret.
    #[serde(default, deserialize_with = "map_or_null")]
    pub header: HashMap<String, String>,
    /// The lifetime of the URL in seconds. Servers without one send 0, or omit it.
    #[serde(default)]
    expires_in: Option<i64>,
    /// The expiry of the URL in RFC 3339. Optional as well.
    #[serde(default)]
    expires_at: Option<String>,
}

impl Download {
    /// Whether the URL has expired, `since` after the request. `expires_in` takes precedence over `expires_at`, because
    /// clocks may differ.
    pub fn has_expired(&self, since: Duration, now: SystemTime) -> bool {
        match (self.expires_in.and_then(|seconds| u64::try_from(seconds).ok()), &self.expires_at) {
            (Some(seconds @ 1..), _) => since.as_secs() >= seconds,
            // Some servers send year 1 for no expiry, which humantime cannot parse.
            (_, Some(at)) => humantime::parse_rfc3339_weak(at).is_ok_and(|at| at <= now),
            _ => false,
        }
    }
}

/// Some servers send `null` for no headers.
fn map_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<HashMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The reason why a server does not provide an object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ObjectError {
    /// An HTTP status: 404 for an unknown object.
    #[serde(default)]
    pub code: u16,
    /// The server's message.
    #[serde(default)]
    pub message: String,
}

/// An invalid response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The response is not one of the batch API.
    #[error("the response is not one of the LFS batch API: {0}")]
    NotJson(String),
    /// The server chose another transfer than the requested one.
    #[error("the server offers the transfer `{0}`, but only `basic` is supported")]
    Transfer(String),
    /// The server identifies objects by another digest than SHA-256.
    #[error("the server identifies objects by `{0}` instead of sha256")]
    Hash(String),
}

/// A value for each object.
pub type ByOid<T> = HashMap<LfsOid, T>;

/// Parses a response. Objects with an invalid id are dropped.
///
/// # Errors
/// See [`BatchError`].
pub fn parse(body: &[u8]) -> Result<ByOid<Result<Download, ObjectError>>, BatchError> {
    let response: BatchResponse =
        weir_protocol::json::from_slice(body).map_err(|error| BatchError::NotJson(error.to_string()))?;
    if let Some(transfer) = response.transfer.filter(|transfer| !transfer.is_empty() && transfer != "basic") {
        return Err(BatchError::Transfer(shown(&transfer, MAX_SHOWN)));
    }
    if let Some(hash) = response.hash_algo.filter(|hash| !hash.is_empty() && hash != "sha256") {
        return Err(BatchError::Hash(shown(&hash, MAX_SHOWN)));
    }
    let mut found = ByOid::new();
    for object in response.objects {
        let Some(oid) = LfsOid::from_hex(object.oid.as_bytes()) else { continue };
        let download = object.actions.and_then(|actions| actions.download);
        let result = match (object.error, download) {
            (Some(error), _) => Err(ObjectError { message: shown(&error.message, MAX_SHOWN), ..error }),
            (None, Some(download)) if download.header.len() <= MAX_HEADERS => Ok(download),
            (None, Some(_)) => Err(ObjectError { code: 0, message: "too many headers for the download".to_owned() }),
            (None, None) => Err(ObjectError { code: 0, message: "no download URL".to_owned() }),
        };
        found.insert(oid, result);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OID: &str = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";

    fn parsed(body: &str) -> Result<Download, ObjectError> {
        parse(body.replace("OID", OID).as_bytes()).unwrap()[&LfsOid::from_hex(OID.as_bytes()).unwrap()].clone()
    }

    #[test]
    fn a_request_lists_objects_and_the_basic_transfer() {
        let oid = LfsOid::from_hex(OID.as_bytes()).unwrap();
        let body = String::from_utf8(request(&[Pointer { oid, size: 7 }])).unwrap();
        let expected =
            r#"{"operation":"download","transfers":["basic"],"objects":[{"oid":"OID","size":7}],"hash_algo":"sha256"}"#;
        assert_eq!(body, expected.replace("OID", OID));
    }

    #[test]
    fn a_response_has_a_location_or_an_error_per_object() {
        let located = parsed(
            r#"{"transfer":"basic","objects":[{"oid":"OID","size":7,"authenticated":true,"actions":{"download":
            {"href":"https://storage.example/x","header":{"Authorization":"Basic eA=="},"expires_in":60}}}]}"#,
        );
        assert_eq!(located.as_ref().unwrap().href, "https://storage.example/x");
        assert_eq!(located.unwrap().header["Authorization"], "Basic eA==");
        let null = r#"{"objects":[{"oid":"OID","actions":{"download":{"href":"h","header":null}}}]}"#;
        assert!(parsed(null).unwrap().header.is_empty());
        let absent = parsed(r#"{"objects":[{"oid":"OID","error":{"code":404,"message":"no\u0007 such"}}]}"#);
        assert_eq!(absent, Err(ObjectError { code: 404, message: "no such".to_owned() }));
        assert!(parsed(r#"{"objects":[{"oid":"OID"}]}"#).unwrap_err().message.contains("no download URL"));
    }

    #[test]
    fn a_url_expires_when_the_server_says() {
        let (second, year_2000) = (Duration::from_secs(1), SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800));
        let expired = |result: &str| {
            let download: Download = serde_json::from_str(&format!("{{\"href\": \"h\"{result}}}")).unwrap();
            [59, 60].map(|seconds| download.has_expired(second * seconds, year_2000))
        };
        assert_eq!(expired(""), [false, false]);
        assert_eq!(expired(r#", "expires_in": 60, "expires_at": "1999-01-01T00:00:00Z""#), [false, true]);
        assert_eq!(expired(r#", "expires_in": 0, "expires_at": "0001-01-01T00:00:00Z""#), [false, false]);
        assert_eq!(expired(r#", "expires_in": -5"#), [false, false]);
        assert_eq!(expired(r#", "expires_at": "2000-01-01T00:00:01Z""#), [false, false]);
        assert_eq!(expired(r#", "expires_at": "1999-12-31T23:59:59.123Z""#), [true, true]);
        assert_eq!(expired(r#", "expires_at": "tomorrow""#), [false, false]);
    }

    #[test]
    fn a_response_of_another_kind_is_refused() {
        for (body, expected) in [
            ("<html>", "not one of the LFS batch API"),
            ("{}", "not one of the LFS batch API"),
            (r#"{"transfer":"tus","objects":[]}"#, "`tus`"),
            (r#"{"hash_algo":"sha512","objects":[]}"#, "`sha512`"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse(br#"{"objects":[{"oid":"../../x"}]}"#).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn messages_of_a_server_are_shortened_and_cleaned(
            oid in "[0-9a-f]{64}|.{0,70}", href in ".*", name in ".*", value in ".*", message in ".*", code: i64,
            expires in any::<i64>(), at in ".*", cut in 0usize..400,
        ) {
            let download = json!({ "href": href, "header": { name: value }, "expires_in": expires, "expires_at": at });
            let responses = [
                json!({ "objects": [{ "oid": oid, "actions": { "download": download } }] }),
                json!({ "objects": [{ "oid": oid, "error": { "code": code, "message": message } }] }),
                json!({ "transfer": message, "objects": [] }),
            ];
            for response in responses {
                let body = response.to_string().into_bytes();
                for body in [&body[..], &body[..cut.min(body.len())]] {
                    match parse(body) {
                        Ok(found) => for (_, result) in found {
                            match result {
                                Ok(download) => _ = download.has_expired(Duration::MAX, SystemTime::UNIX_EPOCH),
                                Err(error) => prop_assert!(!error.message.chars().any(char::is_control)),
                            }
                        },
                        Err(error) => prop_assert!(!error.to_string().chars().any(char::is_control)),
                    }
                }
            }
        }
    }
}
