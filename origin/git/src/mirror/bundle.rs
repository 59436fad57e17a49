//! Bundles of a mirror: packs it, and takes packs in with the care of a fetch.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufRead;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gix::ObjectId;
use weir_upstream::outside_program::{run, run_to_file};
use weir_upstream::{Upstream, UpstreamError};

use super::git_session::GitSession;
use super::maintenance::{MaintenanceError, timeout};
use super::quarantine::Quarantine;
use super::{BundleHeader, FetchMemory, FetchProgress, Mirror, MirrorError, create, git_program, refs, shallow, size};

/// The timeout of packing a small mirror.
const PACK_TIMEOUT: Duration = Duration::from_secs(600);

impl Mirror {
    /// Whether it lacks the parents of some commits, because its upstream is a shallow clone. Nobody else can use its
    /// packs.
    pub(crate) fn is_shallow(&self) -> bool {
        self.dir.join(shallow::FILE).exists()
    }

    /// Whether it follows no ref yet.
    pub(crate) fn is_empty(&self) -> Result<bool, MirrorError> {
        Ok(refs::mirrored(&self.repository()?.to_thread_local())?.is_empty())
    }

    /// The header of a bundle with all refs as they are now, on top of others.
    pub(crate) fn header_on(&self, base: Option<&BundleHeader>) -> Result<BundleHeader, MirrorError> {
        let repository = self.repository()?.to_thread_local();
        let tips: BTreeSet<_> = base.iter().flat_map(|base| base.refs.values().copied()).collect();
        // Git expects commits. An object that the mirror has dropped is packed again with whatever needs it.
        let commit = |id| repository.find_object(id).ok()?.peel_to_commit().ok().map(|commit| commit.id);
        let prerequisites = tips.into_iter().filter_map(commit).collect();
        Ok(BundleHeader { format: repository.object_hash(), prerequisites, refs: refs::mirrored(&repository)? })
    }

    /// Whether the mirror has every object that a header names.
    pub(crate) fn has_all(&self, header: &BundleHeader) -> Result<bool, MirrorError> {
        let repository = self.repository()?.to_thread_local();
        Ok(header.format == repository.object_hash() && header.refs.values().all(|id| repository.has_object(*id)))
    }

    /// Whether a tip of `before` cannot be reached any more.
    pub(crate) fn is_rewritten(
        &self,
        before: &BundleHeader,
        now: &BundleHeader,
        stop: &AtomicBool,
    ) -> Result<bool, MaintenanceError> {
        if !self.has_all(before).map_err(|error| MaintenanceError::local(&error))? {
            return Ok(true);
        }
        let input = revisions(before.refs.values(), now.refs.values());
        let command = &mut git_program::find_unreachable(&self.dir);
        let result = run(command, input.as_bytes(), &self.dir, self.pack_timeout()?, stop)?;
        if result.success { Ok(!result.output.is_empty()) } else { Err(MaintenanceError::Pack(result.error_line())) }
    }

    /// Packs what a header adds to its prerequisites, into an unnamed file.
    pub(crate) fn pack(&self, header: &BundleHeader, stop: &AtomicBool) -> Result<File, MaintenanceError> {
        let input = revisions(header.refs.values(), header.prerequisites.iter());
        let command = &mut git_program::pack_objects(&self.dir);
        let (result, pack) = run_to_file(command, input.as_bytes(), &self.dir, self.pack_timeout()?, stop)?;
        if result.success { Ok(pack) } else { Err(MaintenanceError::Pack(result.error_line())) }
    }

    fn pack_timeout(&self) -> Result<Duration, MaintenanceError> {
        let measured = size::measure(&self.dir).map_err(|error| MaintenanceError::local(&error))?;
        Ok(timeout(PACK_TIMEOUT, measured))
    }

    /// Takes in a bundle as if an upstream had sent it, within the limits of `upstream`, and sets all refs to those of its
    /// header. Blocks.
    ///
    /// # Errors
    /// See [`MirrorError`]. Some refs may be deleted already.
    pub(crate) fn apply(
        &self,
        header: &BundleHeader,
        pack: &mut dyn BufRead,
        upstream: &Upstream,
        memory: &FetchMemory,
        interrupt: &AtomicBool,
    ) -> Result<(), MirrorError> {
        let _one_at_a_time = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut repository = self.repository()?.to_thread_local();
        let mirrored = refs::mirrored(&repository)?;
        if header.format != repository.object_hash() {
            if !mirrored.is_empty() {
                return Err(MirrorError::OtherObjectFormat { format: header.format, mirrored: mirrored.len() });
            }
            fs::remove_dir_all(&self.dir).map_err(MirrorError::local("be removed"))?;
            create(&self.dir, header.format)?;
            repository = self.repository()?.to_thread_local();
        }
        let progress = &FetchProgress::default();
        let session = &GitSession::new(upstream, interrupt)?;
        let measured = size::measure(repository.git_dir()).map_err(MirrorError::local("be measured"))?;
        session.begin_fetch(progress, measured.bytes);
        let classify = |error: gix::Error| match session.take_failure() {
            _ if interrupt.load(Ordering::Relaxed) => UpstreamError::Interrupted.into(),
            Some(failure) => failure,
            None => MirrorError::protocol(session.network.step(), &error),
        };
        let quarantine = Quarantine::new(&repository, session, progress, memory);
        let quarantine = quarantine.map_err(MirrorError::local("create a quarantine folder"))?;
        quarantine.receive(pack).map_err(classify)?;
        let both = quarantine.repository().map_err(MirrorError::local_gix("read the quarantine"))?;
        let deleted = mirrored.keys().filter(|name| !header.refs.contains_key(*name)).cloned().collect();
        refs::delete(&repository, deleted)?;
        let broken = refs::update(&both, &header.refs, interrupt, |tips| quarantine.admit(tips).map_err(classify))?;
        broken.first().map_or(Ok(()), |(name, error)| Err(error.of(name)))
    }
}

/// The input of programs that walk over the history.
fn revisions<'a>(tips: impl Iterator<Item = &'a ObjectId>, except: impl Iterator<Item = &'a ObjectId>) -> String {
    let (tips, except): (BTreeSet<_>, BTreeSet<_>) = (tips.collect(), except.collect());
    let lines = tips.iter().map(|id| format!("{id}\n")).chain(except.iter().map(|id| format!("^{id}\n")));
    lines.collect()
}
