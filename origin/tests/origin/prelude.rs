//! Names that most tests use.

pub(crate) use std::fs;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::{Duration, SystemTime};

pub(crate) use bytes::Bytes;
pub(crate) use bytesize::ByteSize;
pub(crate) use reqwest::{Method, StatusCode};
pub(crate) use serde_json::{Value, json};
pub(crate) use weir_origin::config::Config;
pub(crate) use weir_origin::reconcile::{Health, Phase, RepositoryState, WaitsFor};
pub(crate) use weir_protocol::commit_id::CommitId;
pub(crate) use weir_protocol::descriptor::{Descriptor, OmissionReason};
pub(crate) use weir_protocol::digest::{ObjectDigest, TarballDigest};
pub(crate) use weir_protocol::encoding::Encoding;
pub(crate) use weir_protocol::event::EventKind;
pub(crate) use weir_protocol::manifest::Manifest;
pub(crate) use weir_protocol::name::RepositoryName;
pub(crate) use weir_runtime::{certificates, tls};
pub(crate) use weir_source::{Condition, ServiceConfig};
pub(crate) use weir_tarball::{Base, Built, Limits, Selection, TarballError};
pub(crate) use weir_upstream::{EgressPolicy, Hosts, Redirects, RepositoryConfig};

pub(crate) use crate::events::Reader;
pub(crate) use crate::git_fixture::{Git, git_command};
pub(crate) use crate::lfs_server::LfsServer;
pub(crate) use crate::lfs_services::Shop;
pub(crate) use crate::long_or;
pub(crate) use crate::node::{
    Home, Node, REPOSITORY, SERVICE, also, commit_of, flip_a_bit, in_time, names, object_of, object_path, repository,
    service, started, until,
};
pub(crate) use crate::operator::{Operator, config, empty_config, operated, repository_at, serve};
pub(crate) use crate::scripted_server::{
    ADVERTISEMENT, RESULT, ScriptedServer, advertisement, begin, line, listing, packfile, say,
};
pub(crate) use crate::smart_http::SmartHttp;
pub(crate) use crate::tar_reading::{build_tar, read_tar};
pub(crate) use crate::upstream::{Upstream, archive};
