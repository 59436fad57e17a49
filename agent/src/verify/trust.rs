//! The pinned public keys of origins, by patterns of services.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use prometheus::IntGaugeVec;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use weir_protocol::access_list::AccessList;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;
use weir_runtime::access_files::AccessFiles;
use weir_runtime::shutdown::Drain;

use crate::config::TrustConfig;

/// The pinned keys. The first entry whose pattern matches a service decides alone, so that a narrow entry before `*` limits
/// who may sign for its services.
pub(crate) struct Trust(Vec<Pinned>);

struct Pinned {
    services: NameGlob,
    /// Its file as it was last read.
    keys: watch::Receiver<Arc<AccessList>>,
}

/// Reads a file of keys. Blocks.
///
/// # Errors
/// It cannot be read, is malformed, or has no key.
pub(crate) fn read_keys(file: &Path) -> anyhow::Result<AccessList> {
    let keys = files(file.to_owned()).read()?;
    anyhow::ensure!(
        keys.keys().next().is_some(),
        "{} has no key: write there what `weir-origin keys` prints",
        file.display()
    );
    Ok(keys)
}

fn files(keys: PathBuf) -> AccessFiles {
    AccessFiles { keys: vec![keys], deny: None }
}

impl Trust {
    /// Reads the files of keys, and follows their changes until the drain. `None`: nothing is pinned.
    ///
    /// # Errors
    /// A file cannot be read, or has no key.
    pub(crate) async fn follow(
        entries: &[TrustConfig],
        readable: &IntGaugeVec,
        drain: &Drain,
    ) -> anyhow::Result<Option<Arc<Self>>> {
        let mut pinned = Vec::new();
        for TrustConfig { services, keys } in entries {
            let gauge = readable.with_label_values(&[&keys.display().to_string()]);
            let file = keys.clone();
            spawn_blocking(move || read_keys(&file)).await?.context("`trust`")?;
            let keys = files(keys.clone()).follow(gauge, drain).await.context("`trust`")?;
            pinned.push(Pinned { services: services.clone(), keys });
        }
        Ok((!pinned.is_empty()).then(|| Arc::new(Self(pinned))))
    }

    /// The keys that may sign for a service, as of now. `None`: no entry names it, so nothing of it is accepted.
    pub(crate) fn keys_of(&self, service: &ServiceName) -> Option<Arc<AccessList>> {
        let entry = self.0.iter().find(|entry| entry.services.matches(service.as_str()))?;
        Some(entry.keys.borrow().clone())
    }
}
