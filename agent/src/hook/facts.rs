//! What hooks are told about a switch: environment variables for programs, JSON for webhooks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tempfile::NamedTempFile;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_release::{Changes, ReleaseRecord};

use crate::hook_labels;

/// A switch, or one that a check decides on.
pub(crate) struct Facts {
    pub(crate) service: ServiceName,
    pub(crate) release: ReleaseRecord,
    /// The absolute path of the release.
    pub(crate) path: PathBuf,
    pub(crate) previous: Option<ReleaseRecord>,
    pub(crate) changes: Changes,
    pub(crate) agent: NodeName,
    /// Only for hooks with `labels`; with a file of them.
    pub(crate) labels: Option<(Arc<Labels>, NamedTempFile)>,
}

impl Facts {
    /// The environment variables. Unknown values are empty.
    pub(super) fn variables(&self) -> Vec<(String, OsString)> {
        fn text<T: ToString>(value: Option<T>) -> OsString {
            value.map(|value| value.to_string()).unwrap_or_default().into()
        }
        let previous = self.previous.as_ref();
        let fixed = [
            ("WEIR_AGENT", self.agent.as_str().into()),
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
        ];
        let mut variables: Vec<_> = fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Some((labels, file)) = &self.labels {
            variables.push(("WEIR_LABELS".to_owned(), file.path().into()));
            variables.extend(hook_labels::variables(labels).into_iter().map(|(name, value)| (name, value.into())));
        }
        variables
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
