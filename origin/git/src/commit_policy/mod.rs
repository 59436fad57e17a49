//! The commit policy of a repository: signatures that a commit needs before it is published.
//!
//! The policy is evaluated each time before a service is published, and not for its past versions. Keys must be valid
//! now: the dates in a commit are chosen by its author.

mod signed_object;
mod ssh;

#[cfg(feature = "fuzzing")]
pub use signed_object::fuzz_signed_object;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use gix::ObjectId;
use gix::object::Kind;
use signed_object::{MAX_OBJECT_BYTES, NotSigned, SignatureFormat, Signed};
use weir_upstream::signatures::{SignatureError, gpgv};
use weir_upstream::{SignedBy, VerifyConfig};

use crate::revision::Tip;

/// The namespace of tags.
const TAG_PREFIX: &str = "refs/tags/";

/// Why a commit is not published.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The policy forbids it, or cannot be evaluated.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// An object of the mirror cannot be read.
    #[error("object {object} cannot be read: {cause}")]
    Unreadable {
        /// Its id.
        object: ObjectId,
        /// Why.
        cause: String,
    },
}

impl VerifyError {
    fn refused(reason: String) -> Self {
        SignatureError::Refused(reason).into()
    }

    /// The result as a metric label.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Signature(error) => error.as_str(),
            Self::Unreadable { .. } => "failed",
        }
    }
}

/// The results by the object of a tip and the name of its ref.
type Known = HashMap<(ObjectId, Option<String>), Result<(), String>>;

/// Evaluates a policy for one resolution of services, and caches the results.
pub struct Verifier<'a> {
    policy: &'a VerifyConfig,
    repository: &'a gix::Repository,
    count: &'a dyn Fn(&str),
    stop: &'a AtomicBool,
    known: Known,
}

impl<'a> Verifier<'a> {
    /// `count` gets each result: `verified`, `refused` or `failed`.
    pub fn new(
        policy: &'a VerifyConfig,
        repository: &'a gix::Repository,
        count: &'a dyn Fn(&str),
        stop: &'a AtomicBool,
    ) -> Self {
        Self { policy, repository, count, stop, known: HashMap::new() }
    }

    /// Whether a tip may be published. A tip is verified once.
    pub fn check(&mut self, tip: &Tip) -> Result<(), VerifyError> {
        let key = (tip.object, tip.reference.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone().map_err(VerifyError::refused);
        }
        // The configuration is refused without it.
        let mode = self.policy.mode.ok_or_else(|| SignatureError::Unusable("`verify.mode` is missing".to_owned()))?;
        let checked = match mode {
            SignedBy::Commit => self.commit(tip),
            SignedBy::Tag => self.tag(tip),
            SignedBy::Either => match self.tag(tip) {
                Err(VerifyError::Signature(SignatureError::Refused(tag))) => {
                    self.commit(tip).map_err(|error| match error {
                        VerifyError::Signature(SignatureError::Refused(commit)) => {
                            VerifyError::refused(format!("{tag}, and {commit}"))
                        }
                        other => other,
                    })
                }
                other => other,
            },
        };
        let result = checked.as_ref().map_or_else(VerifyError::as_str, |()| "verified");
        (self.count)(result);
        match &checked {
            Ok(()) => drop(self.known.insert(key, Ok(()))),
            Err(VerifyError::Signature(SignatureError::Refused(reason))) => {
                drop(self.known.insert(key, Err(reason.clone())));
            }
            Err(_) => {}
        }
        checked
    }

    fn commit(&self, tip: &Tip) -> Result<(), VerifyError> {
        let what = format!("commit {}", tip.commit.short());
        let id = ObjectId::from_hex(tip.commit.as_str().as_bytes());
        let id = id.map_err(|error| VerifyError::refused(format!("{what} {error}")))?;
        let object = self.read(id, Kind::Commit)?;
        let object = object.ok_or_else(|| VerifyError::refused(format!("{what} is not a commit")))?;
        let sha256 = tip.commit.as_str().len() == 64;
        self.signature(&what, signed_object::parse_commit(&object, sha256))
    }

    fn tag(&self, tip: &Tip) -> Result<(), VerifyError> {
        let refused = |reason: String| Err(VerifyError::refused(reason));
        let Some(name) = tip.reference.as_deref().and_then(|reference| reference.strip_prefix(TAG_PREFIX)) else {
            return refused("the followed ref is not a tag".to_owned());
        };
        let what = format!("tag `{name}`");
        let Some(object) = self.read(tip.object, Kind::Tag)? else {
            return refused(format!("{what} is a lightweight tag, which cannot be signed"));
        };
        let (signed_name, signed) = match signed_object::parse_tag(&object) {
            Ok((signed_name, signed)) => (signed_name, Ok(signed)),
            Err(error) => (name.to_owned(), Err(error)),
        };
        // Otherwise an old tag could be published under a new name.
        if signed_name != name {
            return refused(format!("{what} was signed as `{signed_name}`"));
        }
        self.signature(&what, signed)
    }

    fn signature(&self, what: &str, signed: Result<Signed, NotSigned>) -> Result<(), VerifyError> {
        let Signed { payload, signature, standard } =
            signed.map_err(|error| VerifyError::refused(format!("{what} {error}")))?;
        let policy = self.policy;
        let (keys, name) = match standard {
            SignatureFormat::Ssh => (&policy.ssh_allowed_signers, "ssh_allowed_signers"),
            SignatureFormat::Pgp => (&policy.pgp_keyring, "pgp_keyring"),
        };
        let Some(keys) = keys else {
            return Err(VerifyError::refused(format!("{what} is signed, but `{name}` is not configured")));
        };
        let verify = match standard {
            SignatureFormat::Ssh => ssh::verify,
            SignatureFormat::Pgp => gpgv::verify,
        };
        let verified = verify(keys, &payload, &signature, self.repository.git_dir(), self.stop);
        verified.map_err(|error| match error {
            SignatureError::Refused(reason) => VerifyError::refused(format!("{what}: {reason}")),
            other => other.into(),
        })
    }

    /// The bytes of an object, if it has that kind.
    fn read(&self, id: ObjectId, kind: Kind) -> Result<Option<Vec<u8>>, VerifyError> {
        let unreadable = |error: gix::Error| VerifyError::Unreadable { object: id, cause: error.to_string() };
        let header = self.repository.find_header(id).map_err(unreadable)?;
        if header.kind() != kind {
            return Ok(None);
        }
        if header.size() > MAX_OBJECT_BYTES {
            return Err(VerifyError::refused(format!("object {id} is larger than {MAX_OBJECT_BYTES} bytes")));
        }
        let object = self.repository.find_object(id).map_err(unreadable)?;
        Ok(Some(object.detach().data))
    }
}
