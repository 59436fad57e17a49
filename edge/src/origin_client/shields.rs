//! The shields of an edge: other edges, which fetch each object once for all.
//!
//! Rendezvous hashing chooses the shield of an object: edges with the same list choose the same one, and when one is
//! gone, only its objects move to others.

use std::sync::Arc;

use http::HeaderValue;
use weir_cache::cdn_loop::CdnLoop;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::NodeName;
use weir_runtime::shutdown::Drain;

use super::connection::Origin;
use super::{Clients, probe};

/// The most shields that are tried for an object, before the origins.
const MAX_TRIED: usize = 2;

/// Requests that have passed so many edges go to origins only.
const MAX_HOPS: usize = 4;

/// The shields of an edge. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shields {
    /// The name of this edge, for `CDN-Loop`.
    edge: NodeName,
    all: Arc<[Origin]>,
}

/// A shield, as its index in the configuration.
pub(crate) type ShieldId = usize;

impl Shields {
    pub(crate) fn new(edge: NodeName, all: Vec<Origin>) -> Self {
        Self { edge, all: all.into() }
    }

    pub(crate) fn all(&self) -> &[Origin] {
        &self.all
    }

    /// The shields to try for an object, the best first. None when the request has passed too many edges.
    pub(crate) fn of(&self, digest: &ObjectDigest, passed: &CdnLoop) -> Vec<ShieldId> {
        if self.all.is_empty() || passed.hops() >= MAX_HOPS {
            return Vec::new();
        }
        let names = self.all.iter().map(Origin::name).enumerate();
        let mut up = ranked(names, digest);
        up.retain(|id| !self.all[*id].is_down());
        up.truncate(MAX_TRIED);
        up
    }

    /// The value of `CDN-Loop` of a request to a shield. `passed`: the edges before this one.
    pub(crate) fn cdn_loop(&self, passed: &CdnLoop) -> HeaderValue {
        passed.with(&self.edge)
    }

    /// Probes the shields that are down.
    pub(crate) fn start_probes(&self, drain: &Drain) {
        for id in 0..self.all.len() {
            let (all, draining) = (self.all.clone(), drain.clone());
            drain.spawn(async move { probe::keep_probing(&all[id], || Some(true), &draining).await });
        }
    }

    /// Replaces the clients, in the order of the configuration.
    pub(crate) fn replace(&self, clients: Vec<Clients>) {
        self.all.iter().zip(clients).for_each(|(shield, clients)| shield.replace(clients));
    }
}

/// The shields in the order in which they are asked for an object. Pure.
fn ranked<'n>(shields: impl Iterator<Item = (ShieldId, &'n str)>, digest: &ObjectDigest) -> Vec<ShieldId> {
    let mut scored: Vec<_> = shields
        .map(|(id, name)| {
            let score = blake3::Hasher::new().update(digest.as_bytes()).update(name.as_bytes()).finalize();
            (*score.as_bytes(), id)
        })
        .collect();
    scored.sort_unstable_by(|one, other| other.cmp(one));
    scored.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["a:7443", "b:7443", "c:7443", "d:7443"];

    fn rank(names: &[&'static str], object: u32) -> Vec<&'static str> {
        let digest = ObjectDigest::of(&object.to_le_bytes());
        ranked(names.iter().copied().enumerate(), &digest).into_iter().map(|id| names[id]).collect()
    }

    #[test]
    fn edges_agree_whatever_the_order_of_their_lists() {
        let mut reversed = NAMES;
        reversed.reverse();
        (0..100).for_each(|object| assert_eq!(rank(&NAMES, object), rank(&reversed, object)));
        // Edges of different versions agree too.
        assert_eq!((0..8).map(|object| rank(&NAMES, object)[0]).collect::<Vec<_>>(), GOLDEN);
    }

    const GOLDEN: [&str; 8] = ["d:7443", "d:7443", "a:7443", "a:7443", "a:7443", "d:7443", "a:7443", "b:7443"];

    #[test]
    fn a_lost_shield_moves_its_own_objects_only() {
        let mut first = [0; NAMES.len()];
        for object in 0..4000 {
            let (all, without) = (rank(&NAMES, object), rank(&NAMES[1..], object));
            first[NAMES.iter().position(|name| *name == all[0]).unwrap()] += 1;
            assert!(without.iter().eq(all.iter().filter(|name| **name != NAMES[0])));
        }
        assert!(first.iter().all(|objects| (850..1150).contains(objects)), "{first:?}");
    }
}
