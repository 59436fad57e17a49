//! What hooks are told about a switch: environment variables for programs, JSON for webhooks.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::json;
use weir_protocol::name::ServiceName;
use weir_release::{Changes, ReleaseRecord};

/// A switch, or one that a check decides on.
pub(crate) struct Facts {
    pub(crate) service: ServiceName,
    pub(crate) release: ReleaseRecord,
    /// The absolute path of the release.
    pub(crate) path: PathBuf,
    pub(crate) previous: Option<ReleaseRecord>,
    pub(crate) changes: Changes,
}

impl Facts {
    /// The environment variables. Unknown values are empty.
    pub(super) fn variables(&self) -> [(&'static str, OsString); 11] {
        fn text<T: ToString>(value: Option<T>) -> OsString {
            value.map(|value| value.to_string()).unwrap_or_default().into()
        }
        let previous = self.previous.as_ref();
        [
            ("WEIR_SERVICE", self.service.as_str().into()),
            ("WEIR_RELEASE", self.path.clone().into()),
            ("WEIR_DIGEST", self.release.directory.digest().to_string().into()),
            ("WEIR_COMMIT", text(self.release.commit.as_ref())),
            ("WEIR_REVISION", text(self.release.revision_id.as_ref())),
            ("WEIR_VERSION", text(self.release.version.as_ref())),
            ("WEIR_PREVIOUS_DIGEST", text(previous.map(|previous| previous.directory.digest()))),
            ("WEIR_PREVIOUS_COMMIT", text(previous.and_then(|previous| previous.commit.as_ref()))),
            ("WEIR_PREVIOUS_REVISION", text(previous.and_then(|previous| previous.revision_id.as_ref()))),
            ("WEIR_PREVIOUS_VERSION", text(previous.and_then(|previous| previous.version.as_ref()))),
            ("WEIR_CHANGES", self.changes.file.path().into()),
        ]
    }

    /// The body of a webhook: at most the first thousand changes, and the number of all.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let previous = self.previous.as_ref().map(|previous| {
            json!({
                "digest": previous.directory.digest(),
                "commit": previous.commit,
                "revision_id": previous.revision_id,
                "version": previous.version,
            })
        });
        json!({
            "service": self.service,
            "digest": self.release.directory.digest(),
            "commit": self.release.commit,
            "revision_id": self.release.revision_id,
            "version": self.release.version,
            "release": self.path,
            "previous": previous,
            "changes_total": self.changes.total,
            "changes": self.changes.first,
        })
    }
}
