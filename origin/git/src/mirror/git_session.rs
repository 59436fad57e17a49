//! A session with a Git upstream: limits on received bytes, the server's words, and the first error.
//!
//! Errors of a transport are recorded here, because gix does not preserve their types.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::AtomicBool;

use weir_upstream::http::UpstreamSession;
use weir_upstream::{Upstream, UpstreamError, UpstreamsConfig};

use super::limits::{BYTES_BEFORE_PACK, BYTES_PER_REF, LISTING_OVERHEAD};
use super::server_words::ServerWords;
use super::{FetchProgress, MirrorError};

/// A session with a Git upstream.
pub(super) struct GitSession<'a> {
    pub(super) network: UpstreamSession<'a>,
    pub(super) upstream: &'a Upstream,
    /// Bytes received in this step.
    received: Cell<u64>,
    /// `None` while refs are listed.
    fetch: RefCell<Option<PackContext>>,
    words: RefCell<ServerWords>,
    failure: RefCell<Option<MirrorError>>,
}

/// The fetch of a pack.
struct PackContext {
    /// Tells whether the pack has started.
    progress: FetchProgress,
    /// The size of the mirror before the fetch, in bytes.
    mirrored: u64,
}

impl<'a> GitSession<'a> {
    pub(super) fn new(upstream: &'a Upstream, interrupt: &'a AtomicBool) -> Result<Self, UpstreamError> {
        Ok(Self {
            network: UpstreamSession::new(upstream, "list refs", interrupt)?,
            upstream,
            received: Cell::new(0),
            fetch: RefCell::new(None),
            words: RefCell::default(),
            failure: RefCell::new(None),
        })
    }

    /// Starts the fetch of a pack, for a mirror of this size in bytes.
    pub(super) fn begin_fetch(&self, progress: &FetchProgress, mirrored: u64) {
        self.network.set_step("fetch");
        *self.fetch.borrow_mut() = Some(PackContext { progress: progress.clone(), mirrored });
        self.received.set(0);
    }

    /// Whether the upstream has sent anything.
    pub(super) fn has_received(&self) -> bool {
        self.received.get() > 0 || self.fetch.borrow().is_some()
    }

    /// A response of the server starts.
    pub(super) fn start_response(&self) {
        self.words.borrow_mut().start_response();
    }

    /// Adds the server's words to an error that they may explain.
    pub(super) fn explain(&self, error: MirrorError) -> MirrorError {
        match error {
            MirrorError::Upstream(UpstreamError::Protocol { step, cause }) => {
                UpstreamError::Protocol { step, cause: self.words.borrow().explain(cause) }.into()
            }
            other => other,
        }
    }

    /// Whether the server has reported an error.
    pub(super) fn has_error(&self) -> bool {
        self.words.borrow().has_error()
    }

    /// Counts received bytes, and limits a listing and a pack.
    pub(super) fn received(&self, bytes: &[u8]) -> Result<(), MirrorError> {
        self.words.borrow_mut().received(bytes);
        let received = self.received.get() + bytes.len() as u64;
        self.received.set(received);
        let max_refs = self.upstream.limits.max_refs;
        match &*self.fetch.borrow() {
            None if received > LISTING_OVERHEAD + max_refs as u64 * BYTES_PER_REF => {
                Err(MirrorError::TooManyRefs { limit: max_refs })
            }
            Some(fetch) if received > BYTES_BEFORE_PACK && !fetch.progress.has_pack() => {
                let cause = format!("it sent more than {BYTES_BEFORE_PACK} bytes before the pack");
                Err(UpstreamError::Protocol { step: self.network.step(), cause }.into())
            }
            Some(_) => self.check_pack(received),
            None => Ok(()),
        }
    }

    /// Checks the size of a pack in bytes, while it is received or written.
    pub(super) fn check_pack(&self, bytes: u64) -> Result<(), MirrorError> {
        if bytes > self.max_pack_bytes() { Err(self.too_large()) } else { Ok(()) }
    }

    /// The same with its index, which counts towards the mirror's size.
    pub(super) fn check_pack_and_index(&self, pack: u64, index: u64) -> Result<(), MirrorError> {
        self.check_pack(pack)?;
        if pack.saturating_add(index) > self.mirror_bytes_left() {
            return Err(MirrorError::MirrorTooLarge { limit: self.upstream.limits.max_mirror.as_u64() });
        }
        Ok(())
    }

    /// The largest pack that may be received, in bytes.
    pub(super) fn max_pack_bytes(&self) -> u64 {
        self.upstream.limits.max_pack.as_u64().min(self.mirror_bytes_left())
    }

    fn mirror_bytes_left(&self) -> u64 {
        let mirrored = self.fetch.borrow().as_ref().map_or(0, |fetch| fetch.mirrored);
        self.upstream.limits.max_mirror.as_u64().saturating_sub(mirrored)
    }

    /// The error for a larger pack.
    pub(super) fn too_large(&self) -> MirrorError {
        let UpstreamsConfig { max_pack, max_mirror, .. } = self.upstream.limits;
        if max_pack.as_u64() <= self.mirror_bytes_left() {
            MirrorError::PackTooLarge { limit: max_pack.as_u64() }
        } else {
            MirrorError::MirrorTooLarge { limit: max_mirror.as_u64() }
        }
    }

    /// Records the first error, and returns one that gix can pass on.
    pub(super) fn record(&self, error: impl Into<MirrorError>) -> io::Error {
        let error = error.into();
        let error_for_gix = io::Error::other(error.to_string());
        self.failure.borrow_mut().get_or_insert(error);
        error_for_gix
    }

    /// Takes the first recorded error.
    pub(super) fn take_failure(&self) -> Option<MirrorError> {
        self.failure.borrow_mut().take()
    }
}

#[cfg(test)]
mod tests {
    use bytesize::ByteSize;

    use super::*;

    fn session(upstream: &Upstream, work: impl FnOnce(&GitSession)) {
        let interrupt = AtomicBool::new(false);
        work(&GitSession::new(upstream, &interrupt).unwrap());
    }

    #[test]
    fn a_listing_and_a_pack_have_separate_limits() {
        let mut upstream = Upstream::new("git://host/x");
        (upstream.limits.max_refs, upstream.limits.max_pack, upstream.limits.max_mirror) =
            (10, ByteSize(1000), ByteSize(5000));
        session(&upstream, |session| {
            let listing = usize::try_from(LISTING_OVERHEAD + 10 * BYTES_PER_REF).unwrap();
            session.received(&vec![b'0'; listing]).unwrap();
            assert!(matches!(session.received(b"0"), Err(MirrorError::TooManyRefs { limit: 10 })));
            session.begin_fetch(&FetchProgress::default(), 4000);
            session.received(&[b'0'; 1000]).unwrap();
            assert!(matches!(session.received(b"0"), Err(MirrorError::PackTooLarge { limit: 1000 })));
            session.begin_fetch(&FetchProgress::default(), 4001);
            assert!(matches!(session.received(&[b'0'; 1000]), Err(MirrorError::MirrorTooLarge { limit: 5000 })));
        });
    }

    #[test]
    fn the_first_error_is_recorded() {
        session(&Upstream::new("git://host/x"), |session| {
            let _ = session.record(MirrorError::TooManyRefs { limit: 1 });
            let _ = session.record(UpstreamError::Interrupted);
            assert!(matches!(session.take_failure(), Some(MirrorError::TooManyRefs { .. })));
            assert!(session.take_failure().is_none());
        });
    }
}
