//! Reads the agents' directories all the time, as their users do, and looks for one that is wrong.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use weir_loadtest::tree;

use crate::content::Content;
use crate::fleet::root;
use crate::site::name;

/// The most errors that are kept.
const MAX_ERRORS: usize = 20;

#[derive(Debug, Clone)]
pub(crate) struct Directories {
    pub(crate) dir: PathBuf,
    pub(crate) agents: usize,
    pub(crate) services: usize,
    pub(crate) content: Content,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) samples: u64,
    /// The release was replaced and removed while it was read.
    pub(crate) gone: u64,
    /// Wrong or mixed directories, and such that went back.
    pub(crate) wrong: Vec<String>,
}

impl Directories {
    /// The change of a service whose content an agent has. `None`: its release was removed meanwhile.
    ///
    /// # Errors
    /// The directory is not that of one change.
    fn change(&self, agent: usize, service: usize) -> anyhow::Result<Option<usize>> {
        let current = root(&self.dir, agent).join(name(service)).join("current");
        // As a reader should: one look at the link, then files of one release.
        let release = fs::canonicalize(&current).with_context(|| format!("agent {agent}, service {service}"))?;
        let read = match tree::read(&release) {
            Err(error) if error.kind() == ErrorKind::NotFound && is_replaced(&current, &release) => return Ok(None),
            read => read.with_context(|| format!("cannot read {}", release.display()))?,
        };
        let change = self.content.change_of(service, &read).map(Some);
        match change {
            // Files are removed one by one.
            Err(_) if is_replaced(&current, &release) && !release.exists() => Ok(None),
            change => change.with_context(|| format!("{}", release.display())),
        }
    }

    /// Reads `per_second` directories, in turn, until `ended`.
    pub(crate) fn watch(self, per_second: u32, ended: Arc<AtomicBool>) -> JoinHandle<Seen> {
        thread::spawn(move || {
            let (mut seen, mut last) = (Seen::default(), vec![0; self.agents * self.services]);
            for index in (0..last.len()).cycle() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_secs(1) / per_second);
                let (agent, service) = (index / self.services, index % self.services);
                seen.samples += 1;
                match self.change(agent, service) {
                    Ok(Some(change)) if change >= last[index] => last[index] = change,
                    Ok(Some(change)) => {
                        let before = last[index];
                        seen.wrong(format!("agent {agent}, service {service}: from change {before} back to {change}"));
                    }
                    Ok(None) => seen.gone += 1,
                    Err(error) => seen.wrong(format!("{error:#}")),
                }
            }
            seen
        })
    }

    /// Reads all directories once: each must be at a change.
    pub(crate) fn all_at(&self, change: usize) -> Seen {
        let mut seen = Seen::default();
        for (agent, service) in
            (0..self.agents).flat_map(|agent| (0..self.services).map(move |service| (agent, service)))
        {
            seen.samples += 1;
            match self.change(agent, service) {
                Ok(Some(found)) if found == change => {}
                Ok(found) => seen.wrong(format!("agent {agent}, service {service}: at change {found:?}")),
                Err(error) => seen.wrong(format!("{error:#}")),
            }
        }
        seen
    }
}

impl Seen {
    fn wrong(&mut self, what: String) {
        if self.wrong.len() < MAX_ERRORS {
            self.wrong.push(what);
        }
    }
}

fn is_replaced(current: &Path, release: &Path) -> bool {
    fs::canonicalize(current).is_ok_and(|now| now != release)
}
