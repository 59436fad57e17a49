//! A release that is complete on disk before its switch, with what the switch records.

use weir_protocol::manifest::Manifest;
use weir_protocol::observed::Transfer;
use weir_release::{ReleaseName, TarRecord};

pub(crate) struct Ready {
    pub(super) name: ReleaseName,
    pub(super) tar: Option<TarRecord>,
    pub(super) manifest: Option<Manifest>,
    pub(super) transfer: Option<Transfer>,
}
