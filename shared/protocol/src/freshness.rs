//! Freshness statements: "at this time, service S was at generation n with digest D, and its upstream answered or has not
//! since". An origin signs one on demand, so that an agent knows how far behind it may be whatever lies between.
//!
//! `POST /v1/agents/self/heartbeats` (agent → edge) and `POST /v1/heartbeats` (edge → origin) have the same request and
//! answer.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::descriptor::{Generation, Selector, rfc3339};
use crate::digest::TarballDigest;
use crate::envelope::Envelope;
use crate::name::ServiceName;
use crate::token::{PublicKey, SigningKey};

/// The payload type of a signed freshness statement.
pub const FRESHNESS_TYPE: &str = "application/vnd.weir.freshness+json";

/// The most services of a request.
pub const MAX_SERVICES: usize = 256;

/// The longest request, in bytes: [`MAX_SERVICES`] of the longest names.
pub const MAX_REQUEST_BYTES: usize = 32 << 10;

/// The longest answer, in bytes: [`MAX_SERVICES`] envelopes of 4 KiB.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The statement. Times are in whole seconds, UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freshness {
    /// The service.
    pub service: ServiceName,
    /// The clients it is for: all of them.
    pub selector: Selector,
    /// The generation of the current publication.
    pub generation: Generation,
    /// Its digest.
    pub digest: TarballDigest,
    /// When the origin signed it.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// Since when the upstream has not answered; `None` while it does.
    // The field must be there: a cut-off statement would say more than was signed.
    #[serde(with = "optional_rfc3339")]
    pub upstream_unreachable_since: Option<SystemTime>,
}

impl Freshness {
    /// Signs the statement with each of `keys`.
    pub fn sign(&self, keys: &[SigningKey]) -> Envelope {
        Envelope::sign(FRESHNESS_TYPE, &serde_json::to_vec(self).expect("plain data"), keys)
    }

    /// The statement that a key signed. `None`: it did not, or the payload is not a statement for all clients.
    pub fn signed_by(envelope: &Envelope, key: &PublicKey) -> Option<Self> {
        crate::json::from_slice(&envelope.signed_by(key, FRESHNESS_TYPE)?).ok()
    }

    /// The statement, whoever signed it.
    pub fn unverified(envelope: &Envelope) -> Option<Self> {
        crate::json::from_slice(&envelope.unverified(FRESHNESS_TYPE)?).ok()
    }
}

/// The request: the services of which statements are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatRequest {
    /// Each name once, at most [`MAX_SERVICES`].
    pub services: BTreeSet<ServiceName>,
}

/// The answer. A service without a statement is not in it: it is unknown, not published, or of an origin without a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// Sorted by name, each name once.
    pub services: Vec<SignedFreshness>,
}

/// A service with its signed statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedFreshness {
    /// The service. Unsigned: the statement in the envelope names it too.
    pub service: ServiceName,
    /// The statement, a [`Freshness`].
    pub envelope: Envelope,
    /// The same of the version that is staged, for those that have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<Envelope>,
}

/// The bytes are not a request or an answer.
#[derive(Debug, thiserror::Error)]
pub enum HeartbeatError {
    /// A bound is exceeded.
    #[error("the {what} has more than {limit} {unit}")]
    TooMuch {
        /// `request for freshness statements` or the answer.
        what: &'static str,
        /// The bound.
        limit: usize,
        /// What is counted.
        unit: &'static str,
    },
    /// Not JSON, or a field is missing or wrong.
    #[error("the {what} cannot be read: {error}")]
    Malformed {
        /// `request for freshness statements` or the answer.
        what: &'static str,
        /// The cause.
        error: serde_json::Error,
    },
}

const REQUEST: &str = "request for freshness statements";
const ANSWER: &str = "answer with freshness statements";

impl HeartbeatRequest {
    /// Reads a request. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is too long, malformed, or names too many services.
    pub fn parse(json: &[u8]) -> Result<Self, HeartbeatError> {
        let read: Self = parse(json, REQUEST, MAX_REQUEST_BYTES)?;
        bounded(read.services.len(), REQUEST)?;
        Ok(read)
    }

    /// The JSON document.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names")
    }
}

impl HeartbeatAnswer {
    /// Reads an answer. Unknown fields are ignored; no signature is verified.
    ///
    /// # Errors
    /// It is too long, malformed, or names too many services.
    pub fn parse(json: &[u8]) -> Result<Self, HeartbeatError> {
        let read: Self = parse(json, ANSWER, MAX_ANSWER_BYTES)?;
        bounded(read.services.len(), ANSWER)?;
        Ok(read)
    }

    /// The JSON document.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
}

fn parse<'de, T: Deserialize<'de>>(json: &'de [u8], what: &'static str, limit: usize) -> Result<T, HeartbeatError> {
    if json.len() > limit {
        return Err(HeartbeatError::TooMuch { what, limit, unit: "bytes" });
    }
    crate::json::from_slice(json).map_err(|error| HeartbeatError::Malformed { what, error })
}

fn bounded(services: usize, what: &'static str) -> Result<(), HeartbeatError> {
    let within = services <= MAX_SERVICES;
    if within { Ok(()) } else { Err(HeartbeatError::TooMuch { what, limit: MAX_SERVICES, unit: "services" }) }
}

/// RFC 3339 in UTC, whole seconds, or `null`.
pub mod optional_rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::descriptor::rfc3339;

    #[derive(Serialize, Deserialize)]
    struct Seconds(#[serde(with = "rfc3339")] SystemTime);

    /// Writes a time, or `null`.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(Seconds).serialize(serializer)
    }

    /// Reads a time, or `null`.
    ///
    /// # Errors
    /// It is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Seconds>::deserialize(deserializer)?.map(|Seconds(time)| time))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOLDEN: &str = include_str!("../golden/agent/freshness.json");

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    fn statement() -> Freshness {
        Freshness {
            service: "shop-prod".parse().unwrap(),
            selector: Selector,
            generation: 1_795_164_249_650,
            digest: TarballDigest::of(b"tar"),
            time: at("2026-11-20T09:30:00Z"),
            upstream_unreachable_since: Some(at("2026-11-20T09:12:00Z")),
        }
    }

    /// Signatures depend on these bytes: a change here is a change of the contract.
    #[test]
    fn a_statement_has_exactly_these_bytes() {
        let reachable = Freshness { upstream_unreachable_since: None, ..statement() };
        let lines = [statement(), reachable].map(|statement| serde_json::to_string(&statement).unwrap() + "\n");
        assert_eq!(lines.concat(), GOLDEN);
        for line in GOLDEN.lines() {
            let read: Freshness = serde_json::from_str(line).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), line);
        }
    }

    #[test]
    fn only_a_signed_statement_for_all_clients_is_believed() {
        let [(key, _), (other, _)] = [(); 2].map(|()| SigningKey::generate().unwrap());
        let (public, stranger) = (key.public().clone(), other.public().clone());
        let keys = [key];
        let envelope = statement().sign(&keys);
        assert_eq!(Freshness::signed_by(&envelope, &public), Some(statement()));
        assert_eq!(Freshness::signed_by(&envelope, &stranger), None);

        let json = serde_json::to_string(&statement()).unwrap();
        let signed = |json: &str, payload_type| {
            Freshness::signed_by(&Envelope::sign(payload_type, json.as_bytes(), &keys), &public)
        };
        assert_eq!(signed(&json, FRESHNESS_TYPE), Some(statement()));
        assert_eq!(signed(&json, crate::envelope::PUBLICATION_TYPE), None, "another type");
        for (field, other) in [
            (r#""selector":null"#, r#""selector":{"ring":"canary"}"#),
            (r#""generation":"#, r#""generation":1,"generation":"#),
            (r#","upstream_unreachable_since":"2026-11-20T09:12:00Z""#, ""),
            ("2026-11-20T09:30:00Z", "yesterday"),
        ] {
            let changed = json.replace(field, other);
            assert_ne!(changed, json);
            assert_eq!(signed(&changed, FRESHNESS_TYPE), None, "{changed}");
        }
        let later = json.replacen('{', r#"{"later":1,"#, 1);
        assert_eq!(signed(&later, FRESHNESS_TYPE), Some(statement()), "unknown fields are ignored");
    }

    #[test]
    fn requests_and_answers_are_bounded() {
        let name = |i: usize| -> ServiceName { format!("{i:x>100}").parse().unwrap() };
        let full = HeartbeatRequest { services: (0..MAX_SERVICES).map(name).collect() };
        assert_eq!(HeartbeatRequest::parse(&full.to_json()).unwrap(), full);
        let more = HeartbeatRequest { services: (0..=MAX_SERVICES).map(name).collect() };
        let error = HeartbeatRequest::parse(&more.to_json()).unwrap_err().to_string();
        assert_eq!(error, "the request for freshness statements has more than 256 services");
        let error = HeartbeatRequest::parse(&vec![b' '; MAX_REQUEST_BYTES + 1]).unwrap_err().to_string();
        assert!(error.ends_with("more than 32768 bytes"), "{error}");
        assert!(HeartbeatRequest::parse(br#"{"services":["A"]}"#).is_err());

        let keys = [SigningKey::generate().unwrap().0, SigningKey::generate().unwrap().0];
        let signed = |i| {
            let service = name(i);
            let envelope = Freshness { service: service.clone(), ..statement() }.sign(&keys);
            SignedFreshness { staged: Some(envelope.clone()), envelope, service }
        };
        let full = HeartbeatAnswer { services: (0..MAX_SERVICES).map(signed).collect() };
        assert_eq!(HeartbeatAnswer::parse(&full.to_json()).unwrap(), full);
        let more = HeartbeatAnswer { services: (0..=MAX_SERVICES).map(signed).collect() };
        assert!(HeartbeatAnswer::parse(&more.to_json()).is_err());
        assert!(HeartbeatAnswer::parse(&vec![b' '; MAX_ANSWER_BYTES + 1]).is_err());
    }

    proptest! {
        #[test]
        fn statements_round_trip(
            service in "[a-z0-9][a-z0-9._-]{0,99}", generation: u64, content: Vec<u8>, time in 0u64..4_000_000_000,
            since in proptest::option::of(0u64..4_000_000_000),
        ) {
            let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let statement = Freshness {
                service: service.parse().unwrap(),
                selector: Selector,
                generation,
                digest: TarballDigest::of(&content),
                time: at(time),
                upstream_unreachable_since: since.map(at),
            };
            let json = serde_json::to_vec(&statement).unwrap();
            prop_assert_eq!(crate::json::from_slice::<Freshness>(&json).unwrap(), statement);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = (HeartbeatRequest::parse(&bytes), HeartbeatAnswer::parse(&bytes));
        }
    }
}
