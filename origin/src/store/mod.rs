//! The store of an origin: immutable [`Objects`], named by the BLAKE3 of their bytes, and mutable [`Records`],
//! replaced by compare-and-set. Begin at [`open()`].
//!
//! Objects are in a local folder or in a bucket, each under its repository; every read is verified. Records need only
//! conditional writes of single keys, and have engines: local files, a bucket, etcd.

mod bucket;
mod disk_cache;
mod local_folder;
mod metrics;
mod object_error;
mod object_location;
mod object_writer;
mod objects;
mod open;
mod records;
#[cfg(test)]
#[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "without S3 only etcd is started"))]
mod test_server;
mod with_causes;

pub(crate) use metrics::StoreMetrics;
pub(crate) use object_error::ObjectError;
pub(crate) use object_location::Area;
pub(crate) use object_writer::ObjectWriter;
pub(crate) use objects::Objects;
pub use records::proof;
pub(crate) use records::{
    Expect, Listed, MAX_RECORD_BYTES, PutOutcome, Record, RecordError, RecordKey, Records, Version,
};

#[cfg(test)]
pub(crate) use {
    objects::faulty::FaultyStore,
    records::faulty::{FaultyEngine, WriteFault},
};
