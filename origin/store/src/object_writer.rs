//! Stores many objects in parallel, because a build produces them faster than a disk makes them durable one by one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;

use super::object_error::ObjectError;
use super::object_location::{Area, ObjectLocation};
use super::objects::Objects;

/// The most writes in progress for one writer; the next one blocks.
const WRITES_IN_FLIGHT: u32 = 16;

/// Stores many objects in one area. They are durable once [`ObjectWriter::finish`] has returned, and not before.
#[derive(Debug)]
pub struct ObjectWriter {
    objects: Objects,
    repository: RepositoryName,
    area: Area,
    runtime: Handle,
    permits: Arc<Semaphore>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    outstanding: AtomicUsize,
    first_error: OnceLock<ObjectError>,
}

impl ObjectWriter {
    /// Must be called on the runtime that performs the writes.
    pub fn new(objects: &Objects, repository: &RepositoryName, area: Area) -> Self {
        let (objects, repository) = (objects.clone(), repository.clone());
        let permits = Arc::new(Semaphore::new(WRITES_IN_FLIGHT as usize));
        Self { objects, repository, area, runtime: Handle::current(), permits, state: Arc::default() }
    }

    /// Starts to store an object, and blocks while too many writes are in progress. For threads outside the runtime;
    /// several may call it at once.
    ///
    /// # Errors
    /// The first write that failed.
    pub fn put(&self, bytes: Bytes) -> Result<ObjectDigest, ObjectError> {
        let digest = ObjectDigest::of(&bytes);
        let object = ObjectLocation { repository: self.repository.clone(), area: self.area, digest };
        let permit = self.runtime.block_on(self.permits.clone().acquire_owned());
        let permit = permit.map_err(|error| ObjectError::Unavailable(error.to_string()))?;
        self.first_error()?;
        let (objects, state) = (self.objects.clone(), self.state.clone());
        state.outstanding.fetch_add(1, Ordering::SeqCst);
        self.runtime.spawn(async move {
            match objects.put_hashed(&object, bytes).await {
                Ok(()) => drop(state.outstanding.fetch_sub(1, Ordering::SeqCst)),
                Err(error) => drop(state.first_error.set(error)),
            }
            drop(permit);
        });
        Ok(digest)
    }

    /// Waits until all objects are durable.
    ///
    /// # Errors
    /// The first write that failed.
    pub async fn finish(self) -> Result<(), ObjectError> {
        let all = self.permits.acquire_many(WRITES_IN_FLIGHT).await;
        let _all = all.map_err(|error| ObjectError::Unavailable(error.to_string()))?;
        self.first_error()?;
        match self.state.outstanding.load(Ordering::SeqCst) {
            0 => Ok(()),
            more => Err(ObjectError::Unavailable(format!("{more} writes ended early"))),
        }
    }

    fn first_error(&self) -> Result<(), ObjectError> {
        self.state.first_error.get().cloned().map_or(Ok(()), Err)
    }
}
