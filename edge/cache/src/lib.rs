//! The cache of an edge: immutable objects in memory and on disk, and the bodies made of them. Begin at [`Cache::open`].
//!
//! An object is looked up in memory, then on disk, then fetched. Requests for the same object share one fill
//! ([`single_flight`]). A body is the concatenated frames of a representation. Every object is verified after it arrived
//! and after each read from disk.
//!
//! The crate knows digests, frames and representations, and for whom an object is fetched: [`ObjectRequest`]. It knows no
//! catalog and no reader, and not how an origin is asked: that is [`Fetch`], which the edge gives to it.

mod body;
mod budget;
mod cache;
pub mod cdn_loop;
pub mod clock;
mod config;
mod disk;
mod disk_failure;
mod fill;
mod in_flight;
mod manifests;
mod memory;
mod metrics;
mod objects;
mod origin_error;
mod purge;
mod representation;
pub mod single_flight;
mod slots;
mod source;

pub use body::{ReadyBody, SentBytes, Transcoding};
pub use cache::Cache;
pub use config::CacheConfig;
pub use fill::{Attempt, Fetch, FillError, Filled, ObjectRequest, OriginId};
pub use metrics::{CacheMetrics, FarthestTier, Tier};
pub use origin_error::OriginError;
pub use representation::BodyRequest;
pub use slots::{ClientSlot, ClientSlots, Slot, Slots};
pub use source::{CACHE_STATUS, Source, cache_status};
