//! Signed heartbeats: "at this time, this origin's services were at these generations".
//!
//! A heartbeat holds the root of a tree over all services, and a reader of one service is given the few hashes between
//! its service and the root: enough to see that nobody holds a newer generation back, without the names of any other
//! service. An origin signs one each minute; whoever passes it on can withhold it, which shows by its age, but not change
//! it. Everything here is pure.
//!
//! The tree is that of RFC 9162 with BLAKE3: leaves in byte order of the services' names, a leaf `H(0x00 ‖ generation,
//! eight bytes, big-endian ‖ name)`, a node `H(0x01 ‖ left ‖ right)`, a node without a neighbour moves up as it is; the
//! root of no services is `H()`.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::descriptor::{Generation, rfc3339};
use crate::digest::TreeDigest;
use crate::envelope::{Envelope, EnvelopeError, HEARTBEAT_TYPE};
use crate::name::{NodeName, ServiceName};
use crate::token::PublicKey;

/// How often an origin signs a heartbeat, in seconds.
pub const SIGNED_EVERY_SECONDS: u64 = 60;

/// The largest answer that is read, in bytes.
pub const MAX_STANDING_BYTES: usize = 64 << 10;

/// The most hashes between a service and the root: more than any number of services needs.
const MAX_PATH: usize = 64;

/// What an origin signs each minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The origin.
    pub origin: NodeName,
    /// When: nothing newer than its generation was published of any service then, give or take the second. Whole seconds,
    /// UTC.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// How many services there are in the tree: all that were published then.
    pub services: u64,
    /// The root of the tree.
    pub root: TreeDigest,
}

/// A signed heartbeat and one service's place in it: what a reader is given.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing<'a> {
    /// The envelope with the [`Heartbeat`].
    #[serde(borrow)]
    envelope: &'a RawValue,
    /// The generation of the service.
    generation: Generation,
    /// The number of the service among all of them, from 0.
    index: u64,
    /// The neighbours on the way to the root, from the leaf on.
    path: Vec<TreeDigest>,
}

/// What a verified heartbeat says of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedStanding {
    /// The origin that said so.
    pub origin: NodeName,
    /// When. Whoever reads it decides whether that is too long ago.
    pub time: SystemTime,
    /// The generation that the service had then: whoever serves a lower one by now withholds something.
    pub generation: Generation,
}

/// The tree over services and their generations.
#[derive(Debug)]
pub struct GenerationTree {
    services: Vec<(ServiceName, Generation)>,
    /// The leaves, the nodes above them, and so on up to the root.
    levels: Vec<Vec<TreeDigest>>,
}

impl GenerationTree {
    /// A tree over services, in any order, each once.
    pub fn new(mut services: Vec<(ServiceName, Generation)>) -> Self {
        services.sort();
        services.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut levels =
            vec![services.iter().map(|(service, generation)| leaf(service, *generation)).collect::<Vec<_>>()];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            levels
                .push(below.chunks(2).map(|pair| pair.get(1).map_or(pair[0], |right| node(&pair[0], right))).collect());
        }
        Self { services, levels }
    }

    /// How many services there are.
    pub fn len(&self) -> u64 {
        self.services.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The root.
    pub fn root(&self) -> TreeDigest {
        self.levels.last().and_then(|top| top.first().copied()).unwrap_or_else(|| TreeDigest::of(b""))
    }

    /// A service's place under an envelope that holds this tree's root, as JSON. `None`: there is no such service in it.
    pub fn standing(&self, envelope: &Envelope, service: &ServiceName) -> Option<Vec<u8>> {
        let at = self.services.binary_search_by(|(name, _)| name.cmp(service)).ok()?;
        let neighbour = |(height, level): (usize, &Vec<TreeDigest>)| level.get((at >> height) ^ 1).copied();
        let path = self.levels.iter().enumerate().filter_map(neighbour).collect();
        let envelope = serde_json::value::to_raw_value(envelope).expect("plain data");
        let standing = Standing { envelope: &envelope, generation: self.services[at].1, index: at as u64, path };
        Some(serde_json::to_vec(&standing).expect("plain data"))
    }
}

/// What a heartbeat says of a service, once it is found to be signed by one of `keys` and to hold the service.
///
/// # Errors
/// It is malformed, signed by nobody who is trusted, or says nothing of this service.
pub fn verify_standing(
    json: &[u8],
    service: &ServiceName,
    keys: &[PublicKey],
) -> Result<VerifiedStanding, EnvelopeError> {
    let malformed = |error: &dyn std::fmt::Display| EnvelopeError::Malformed(error.to_string());
    if json.len() > MAX_STANDING_BYTES {
        return Err(malformed(&format!("{} bytes, more than the limit of {MAX_STANDING_BYTES}", json.len())));
    }
    let standing: Standing<'_> = serde_json::from_slice(json).map_err(|error| malformed(&error))?;
    let Standing { envelope, generation, index, path } = standing;
    let heartbeat = verify(envelope.get().as_bytes(), keys)?;
    match root_from(leaf(service, generation), index, heartbeat.services, &path) {
        Some(root) if root == heartbeat.root => {
            Ok(VerifiedStanding { origin: heartbeat.origin, time: heartbeat.time, generation })
        }
        _ => Err(EnvelopeError::Payload(format!("it does not show that `{service}` was at generation {generation}"))),
    }
}

/// The heartbeat in an envelope, once that is found to be signed by one of `keys`.
///
/// # Errors
/// It is malformed, or signed by nobody who is trusted.
pub fn verify(envelope: &[u8], keys: &[PublicKey]) -> Result<Heartbeat, EnvelopeError> {
    let envelope = Envelope::parse(envelope)?;
    let payload = envelope.verify(HEARTBEAT_TYPE, keys)?;
    serde_json::from_slice(payload).map_err(|error| EnvelopeError::Payload(error.to_string()))
}

/// The root above a leaf, going by its neighbours on the way. `None`: there are too few or too many of them.
fn root_from(leaf: TreeDigest, mut index: u64, mut count: u64, path: &[TreeDigest]) -> Option<TreeDigest> {
    if index >= count || path.len() > MAX_PATH {
        return None;
    }
    let (mut hash, mut path) = (leaf, path.iter());
    while count > 1 {
        // The last of an odd number moves up as it is.
        if index ^ 1 < count {
            let neighbour = path.next()?;
            hash = if index & 1 == 0 { node(&hash, neighbour) } else { node(neighbour, &hash) };
        }
        (index, count) = (index >> 1, count.div_ceil(2));
    }
    path.next().is_none().then_some(hash)
}

fn leaf(service: &ServiceName, generation: Generation) -> TreeDigest {
    TreeDigest::of(&[&[0], &generation.to_be_bytes()[..], service.as_str().as_bytes()].concat())
}

fn node(left: &TreeDigest, right: &TreeDigest) -> TreeDigest {
    TreeDigest::of(&[&[1], &left.as_bytes()[..], right.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::SigningKey;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn name(number: u64) -> ServiceName {
        format!("s{number}").parse().unwrap()
    }

    fn tree(services: u64) -> GenerationTree {
        GenerationTree::new((0..services).map(|number| (name(number), 1_000 + number)).collect())
    }

    fn signed(tree: &GenerationTree, key: SigningKey) -> Envelope {
        let heartbeat = Heartbeat {
            origin: "origin-1".parse().unwrap(),
            time: UNIX_EPOCH + Duration::from_secs(1_795_164_249),
            services: tree.len(),
            root: tree.root(),
        };
        Envelope::sign(HEARTBEAT_TYPE, serde_json::to_vec(&heartbeat).unwrap(), &[key])
    }

    #[test]
    fn the_roots_of_small_trees_are_what_the_document_says() {
        assert_eq!(tree(0).root(), TreeDigest::of(b""));
        let (a, b, c) = (leaf(&name(0), 1_000), leaf(&name(1), 1_001), leaf(&name(2), 1_002));
        assert_eq!(a, TreeDigest::of(b"\x00\x00\x00\x00\x00\x00\x00\x03\xe8s0"));
        assert_eq!(tree(1).root(), a);
        assert_eq!(tree(2).root(), node(&a, &b));
        assert_eq!(tree(3).root(), node(&node(&a, &b), &c));
    }

    #[test]
    fn the_payload_is_the_contract_s() {
        let (key, _) = SigningKey::generate().unwrap();
        let envelope = signed(&tree(3), key);
        let expected = format!(
            r#"{{"origin":"origin-1","time":"2026-11-20T08:44:09Z","services":3,"root":"{}"}}"#,
            tree(3).root()
        );
        assert_eq!(std::str::from_utf8(envelope.unverified_payload()), Ok(expected.as_str()));
    }

    #[test]
    fn a_standing_is_of_one_service_one_generation_and_one_key() {
        let ((key, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys = [key.public().clone()];
        let tree = tree(5);
        let envelope = signed(&tree, key);
        assert_eq!(tree.standing(&envelope, &name(9)), None);
        let json = tree.standing(&envelope, &name(4)).unwrap();
        let verified = verify_standing(&json, &name(4), &keys).unwrap();
        assert_eq!((verified.generation, verified.origin.as_str()), (1_004, "origin-1"));
        let shown = |json: &[u8], number| verify_standing(json, &name(number), &keys);
        assert!(matches!(shown(&json, 3), Err(EnvelopeError::Payload(_))), "another service's place");
        let text = String::from_utf8(json.clone()).unwrap();
        for (from, to) in [("1004", "1003"), (r#""index":4"#, r#""index":3"#), (r#""index":4"#, r#""index":5"#)] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            assert!(matches!(shown(changed.as_bytes(), 4), Err(EnvelopeError::Payload(_))), "{changed}");
        }
        let more = text.replace(r#""path":["#, &format!(r#""path":["{}","#, tree.root()));
        assert!(matches!(shown(more.as_bytes(), 4), Err(EnvelopeError::Payload(_))));
        assert!(matches!(
            verify_standing(&json, &name(4), &[other.public().clone()]),
            Err(EnvelopeError::UnknownKeys(_))
        ));
        assert!(matches!(shown(&vec![b' '; MAX_STANDING_BYTES + 1], 4), Err(EnvelopeError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn every_service_of_a_tree_is_shown_in_it(services in 1u64..70, generations in 0u64..9) {
            let services: Vec<_> = (0..services).map(|number| (name(number), generations * number)).collect();
            let tree = GenerationTree::new(services.clone());
            let (key, _) = SigningKey::generate().unwrap();
            let keys = [key.public().clone()];
            let envelope = signed(&tree, key);
            for (service, generation) in services {
                let json = tree.standing(&envelope, &service).unwrap();
                prop_assert_eq!(verify_standing(&json, &service, &keys).unwrap().generation, generation);
            }
        }

        #[test]
        fn no_bytes_panic(index in any::<u64>(), count in any::<u64>(), length in 0usize..70) {
            root_from(TreeDigest::of(b""), index, count, &vec![TreeDigest::of(b"x"); length]);
        }
    }
}
