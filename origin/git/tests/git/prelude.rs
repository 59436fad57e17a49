//! Names that most tests use.

pub(crate) use std::collections::HashSet;
pub(crate) use std::fs;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::{Duration, SystemTime};

pub(crate) use bytes::Bytes;
pub(crate) use bytesize::ByteSize;
pub(crate) use weir_git::mirror::{FetchMemory, Mirror, MirrorError, Poll};
pub(crate) use weir_git::revision::RevisionError;
pub(crate) use weir_protocol::commit_id::CommitId;
pub(crate) use weir_protocol::descriptor::OmissionReason;
pub(crate) use weir_protocol::digest::{ObjectDigest, TarballDigest};
pub(crate) use weir_runtime::certificates;
pub(crate) use weir_tarball::{Base, Built, Filters, Limits, Selection, TarballError};
pub(crate) use weir_upstream::{DEFAULT_MAX_OBJECT, EgressPolicy, FetchProgress, Hosts, Redirects, UpstreamError};

pub(crate) use crate::git_fixture::{Git, git_command};
pub(crate) use crate::long_or;
pub(crate) use crate::pair::Pair;
pub(crate) use crate::scripted_server::{
    ADVERTISEMENT, RESULT, ScriptedServer, advertisement, begin, line, listing, packfile, say,
};
pub(crate) use crate::smart_http::SmartHttp;
pub(crate) use crate::ssh_server::{SshServer, keygen};
pub(crate) use crate::tar_reading::{build_tar, read_tar};
