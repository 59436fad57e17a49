//! The batch API: asking an LFS server where objects are. Only what is sent and what is read; the sending is elsewhere.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{LfsOid, Pointer};

/// The type of what is sent and answered.
pub const MEDIA_TYPE: &str = "application/vnd.git-lfs+json";

/// Objects are asked for so many at a time, as other clients do.
pub const OBJECTS_PER_REQUEST: usize = 100;

/// An answer about that many objects is not longer.
pub const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// Headers that a server may ask for on a download, at the most.
const MAX_HEADERS: usize = 32;

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

/// The body that asks for these objects.
pub fn request(objects: &[Pointer]) -> Vec<u8> {
    let objects = objects.iter().map(|object| RequestedObject { oid: object.oid.to_string(), size: object.size });
    let request =
        Request { operation: "download", transfers: ["basic"], objects: objects.collect(), hash_algo: "sha256" };
    serde_json::to_vec(&request).expect("a request is plain data")
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

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Download {
    /// Its address.
    pub href: String,
    /// What to send with the request: they may be secrets.
    #[serde(default, deserialize_with = "map_or_null")]
    pub header: HashMap<String, String>,
    /// For how many seconds the address holds. Servers that do not say write 0, or nothing.
    #[serde(default)]
    expires_in: Option<i64>,
    /// Until when it holds, as RFC 3339 has it, likewise.
    #[serde(default)]
    expires_at: Option<String>,
}

impl Download {
    /// Whether the address holds no longer, so long after it was asked for. What the server says of seconds counts
    /// before what it says of the clock.
    pub fn has_expired(&self, since: Duration, now: SystemTime) -> bool {
        match (self.expires_in.and_then(|seconds| u64::try_from(seconds).ok()), &self.expires_at) {
            (Some(seconds @ 1..), _) => since.as_secs() >= seconds,
            // Year 1 is how some programs write nothing, and is before what can be read.
            (_, Some(at)) => humantime::parse_rfc3339_weak(at).is_ok_and(|at| at <= now),
            _ => false,
        }
    }
}

/// Some servers write `null` for no headers.
fn map_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<HashMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Why a server does not give an object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ObjectError {
    /// As an HTTP status: 404 for an object that it does not have.
    #[serde(default)]
    pub code: u16,
    /// In its own words.
    #[serde(default)]
    pub message: String,
}

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It is no answer of this API.
    #[error("its answer is not that of an LFS server: {0}")]
    NotJson(String),
    /// It wants something that nobody asked for.
    #[error("it wants to send objects by `{0}`, and only `basic` was asked for")]
    Transfer(String),
    /// It names objects by something else than SHA-256.
    #[error("it names objects by `{0}`, and not by sha256")]
    Hash(String),
}

/// Something for each object.
pub type ByOid<T> = HashMap<LfsOid, T>;

/// Reads an answer: what it says of each object of which it says anything.
///
/// # Errors
/// See [`BatchError`].
pub fn parse(body: &[u8]) -> Result<ByOid<Result<Download, ObjectError>>, BatchError> {
    let answer: BatchResponse =
        weir_protocol::json::from_slice(body).map_err(|error| BatchError::NotJson(error.to_string()))?;
    if let Some(transfer) = answer.transfer.filter(|transfer| !transfer.is_empty() && transfer != "basic") {
        return Err(BatchError::Transfer(shown(&transfer)));
    }
    if let Some(hash) = answer.hash_algo.filter(|hash| !hash.is_empty() && hash != "sha256") {
        return Err(BatchError::Hash(shown(&hash)));
    }
    let mut found = ByOid::new();
    for object in answer.objects {
        let Some(oid) = LfsOid::from_hex(object.oid.as_bytes()) else { continue };
        let download = object.actions.and_then(|actions| actions.download);
        let said = match (object.error, download) {
            (Some(error), _) => Err(ObjectError { message: shown(&error.message), ..error }),
            (None, Some(download)) if download.header.len() <= MAX_HEADERS => Ok(download),
            (None, Some(_)) => Err(ObjectError { code: 0, message: "it asks for too many headers".to_owned() }),
            (None, None) => Err(ObjectError { code: 0, message: "it says nothing of where the object is".to_owned() }),
        };
        found.insert(oid, said);
    }
    Ok(found)
}

/// Foreign words for people: short, and without controls.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OID: &str = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";

    fn said_of_it(body: &str) -> Result<Download, ObjectError> {
        parse(body.replace("OID", OID).as_bytes()).unwrap()[&LfsOid::from_hex(OID.as_bytes()).unwrap()].clone()
    }

    #[test]
    fn a_request_names_objects_and_asks_for_plain_downloads() {
        let oid = LfsOid::from_hex(OID.as_bytes()).unwrap();
        let body = String::from_utf8(request(&[Pointer { oid, size: 7 }])).unwrap();
        let expected =
            r#"{"operation":"download","transfers":["basic"],"objects":[{"oid":"OID","size":7}],"hash_algo":"sha256"}"#;
        assert_eq!(body, expected.replace("OID", OID));
    }

    #[test]
    fn an_answer_says_where_an_object_is_or_why_not() {
        let there = said_of_it(
            r#"{"transfer":"basic","objects":[{"oid":"OID","size":7,"authenticated":true,"actions":{"download":
            {"href":"https://storage.example/x","header":{"Authorization":"Basic eA=="},"expires_in":60}}}]}"#,
        );
        assert_eq!(there.as_ref().unwrap().href, "https://storage.example/x");
        assert_eq!(there.unwrap().header["Authorization"], "Basic eA==");
        let null = r#"{"objects":[{"oid":"OID","actions":{"download":{"href":"h","header":null}}}]}"#;
        assert!(said_of_it(null).unwrap().header.is_empty());
        let absent = said_of_it(r#"{"objects":[{"oid":"OID","error":{"code":404,"message":"no\u0007 such"}}]}"#);
        assert_eq!(absent, Err(ObjectError { code: 404, message: "no such".to_owned() }));
        assert!(said_of_it(r#"{"objects":[{"oid":"OID"}]}"#).unwrap_err().message.contains("nothing"));
    }

    #[test]
    fn an_address_ends_as_the_server_says() {
        let (second, year_2000) = (Duration::from_secs(1), SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800));
        let ended = |said: &str| {
            let download: Download = serde_json::from_str(&format!("{{\"href\": \"h\"{said}}}")).unwrap();
            [59, 60].map(|seconds| download.has_expired(second * seconds, year_2000))
        };
        assert_eq!(ended(""), [false, false]);
        assert_eq!(ended(r#", "expires_in": 60, "expires_at": "1999-01-01T00:00:00Z""#), [false, true]);
        assert_eq!(ended(r#", "expires_in": 0, "expires_at": "0001-01-01T00:00:00Z""#), [false, false]);
        assert_eq!(ended(r#", "expires_in": -5"#), [false, false]);
        assert_eq!(ended(r#", "expires_at": "2000-01-01T00:00:01Z""#), [false, false]);
        assert_eq!(ended(r#", "expires_at": "1999-12-31T23:59:59.123Z""#), [true, true]);
        assert_eq!(ended(r#", "expires_at": "tomorrow""#), [false, false]);
    }

    #[test]
    fn an_answer_of_another_kind_is_refused() {
        for (body, expected) in [
            ("<html>", "not that of an LFS server"),
            ("{}", "not that of an LFS server"),
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
        fn whatever_a_server_answers_what_is_shown_of_it_is_short_and_plain(
            oid in "[0-9a-f]{64}|.{0,70}", href in ".*", name in ".*", value in ".*", message in ".*", code: i64,
            expires in any::<i64>(), at in ".*", cut in 0usize..400,
        ) {
            let download = json!({ "href": href, "header": { name: value }, "expires_in": expires, "expires_at": at });
            let answers = [
                json!({ "objects": [{ "oid": oid, "actions": { "download": download } }] }),
                json!({ "objects": [{ "oid": oid, "error": { "code": code, "message": message } }] }),
                json!({ "transfer": message, "objects": [] }),
            ];
            for answer in answers {
                let body = answer.to_string().into_bytes();
                for body in [&body[..], &body[..cut.min(body.len())]] {
                    match parse(body) {
                        Ok(found) => for (_, said) in found {
                            match said {
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
