//! What a Git server was asked for: by whom, and from when to when.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The list of refs.
    Refs,
    /// Objects, by a client that has some.
    Newer,
    /// All objects, by a client that has none.
    Clone,
}

impl Wants {
    /// Reads the body of a `POST …/git-upload-pack`. A compressed one is long, because it names what the client has.
    pub(crate) fn of(body: &[u8], is_compressed: bool) -> Self {
        let has = |text: &[u8]| body.windows(text.len()).any(|part| part == text);
        if is_compressed || has(b"have ") {
            Self::Newer
        } else if has(b"want ") {
            Self::Clone
        } else {
            Self::Refs
        }
    }
}

/// A request, from its head to the last byte that was sent or to the end of its connection.
#[derive(Debug, Clone)]
pub struct GitRequest {
    /// The client's address.
    pub client: IpAddr,
    /// The name of the repository.
    pub repository: String,
    /// What it wants.
    pub wants: Wants,
    /// When its head was read.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// All requests that have ended. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct GitRequests(Arc<Mutex<Vec<GitRequest>>>);

impl GitRequests {
    /// Those so far, in the order in which they ended.
    pub fn all(&self) -> Vec<GitRequest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a record, which is complete when it is dropped.
    pub(crate) fn begin(&self, client: IpAddr, path: &str) -> Recording {
        let repository = path.trim_start_matches('/').split(".git/").next().unwrap_or_default().to_owned();
        let now = Instant::now();
        let request = GitRequest { client, repository, wants: Wants::Refs, began: now, ended: now };
        Recording { log: self.clone(), request, is_sending: false }
    }
}

/// A request that is being answered.
pub(crate) struct Recording {
    log: GitRequests,
    request: GitRequest,
    is_sending: bool,
}

impl Recording {
    pub(crate) fn wants(&mut self, wants: Wants) {
        self.request.wants = wants;
    }

    /// A part of the answer is taken by the connection.
    pub(crate) fn sends(&mut self) {
        self.is_sending = true;
        self.request.ended = Instant::now();
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_sending {
            self.request.ended = Instant::now();
        }
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.request.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_nothing() {
        assert_eq!(Wants::of(b"0014command=ls-refs\n0000", false), Wants::Refs);
        assert_eq!(Wants::of(b"0012command=fetch\n0032want 1234\n0009done\n", false), Wants::Clone);
        assert_eq!(Wants::of(b"0012command=fetch\n0032want 1234\n0032have 5678\n", false), Wants::Newer);
        assert_eq!(Wants::of(b"\x1f\x8b", true), Wants::Newer);
    }
}
