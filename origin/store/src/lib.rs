//! The store of an origin: immutable [`Objects`], named by the BLAKE3 of their bytes, and mutable [`Records`],
//! replaced by compare-and-set. Begin at [`Objects::open`] and [`Records::open_shared`].
//!
//! Objects are in a local folder or in a bucket, each under its repository; every read is verified. Records need only
//! conditional writes of single keys, and have engines: local files, a bucket, etcd.

mod bucket;
mod config;
mod disk_cache;
mod etcd_config;
mod local_folder;
mod metrics;
mod object_error;
mod object_location;
mod object_writer;
mod objects;
mod open;
mod records;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "without S3 only etcd is started"))]
mod test_server;
mod with_causes;

pub use config::{AccessKeyFiles, NEEDS_BUCKET, StoreConfig, StoreLocation};
pub use etcd_config::{EtcdConfig, has_only_host};
pub use metrics::StoreMetrics;
pub use object_error::ObjectError;
pub use object_location::Area;
pub use object_writer::ObjectWriter;
pub use objects::Objects;
pub use records::proof;
pub use records::{
    Expect, Listed, MAX_RECORD_BYTES, PutOutcome, Record, RecordError, RecordKey, Records, SharedEngine, Version,
};

/// Stores and engines that fail as a test says, and servers that tests start.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    pub use crate::objects::faulty::FaultyStore;
    pub use crate::records::faulty::{FaultyEngine, WriteFault};
    pub use crate::test_server::TestServer;
}
