//! Stores the objects of a repository's next state: the changed pages and the last segment of its history.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_store::{Area, ObjectError, Objects};

use super::protection::Protection;
use crate::error::PublishError;
use crate::metrics::PublishMetrics;
use crate::stored::history::{MAX_SEGMENT_BYTES, MAX_SEGMENTS};
use crate::stored::history_line::{Line, appended};
use crate::stored::load::read_pages;
use crate::stored::page::{self, Page, PageRef};
use crate::stored::record::{RepositoryRecord, SegmentRef};
use crate::stored::row::unix_milliseconds;

const CONCURRENT_PAGES: usize = 8;

/// Stores objects of one repository.
pub(crate) struct StateWriter<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) repository: &'a RepositoryName,
    pub(crate) metrics: &'a PublishMetrics,
    /// Protects the objects until a record names them.
    pub(crate) protection: &'a Protection,
}

impl StateWriter<'_> {
    /// Stores the `changed` pages, by their position in the record, merged with small neighbours. Updates the record.
    pub(crate) async fn write_pages(
        &self,
        record: &mut RepositoryRecord,
        mut changed: BTreeMap<usize, Page>,
    ) -> Result<(), PublishError> {
        let refs = std::mem::take(&mut record.pages);
        let positions: Vec<usize> = changed.keys().copied().collect();
        let size = |position: usize| changed.get(&position).map_or_else(|| refs[position].size as usize, Page::size);
        let runs = page::rewritten_together(&positions, size, refs.len().max(1));
        let missing: Vec<usize> =
            runs.iter().cloned().flatten().filter(|position| !changed.contains_key(position)).collect();
        changed.extend(read_pages(self.objects, self.repository, &refs, missing).await?);
        let (mut next, mut copied) = (Vec::new(), 0);
        for run in runs {
            next.extend(refs[copied..run.start].iter().cloned().map(PageWrite::Keep));
            copied = run.end.min(refs.len());
            let mut all = Page::default();
            run.clone().filter_map(|position| changed.remove(&position)).for_each(|page| all.append(page));
            let previous: Vec<ObjectDigest> = refs[run.start..copied].iter().map(|page| page.digest).collect();
            next.extend(all.split().into_iter().map(|page| PageWrite::New(page, previous.clone())));
        }
        next.extend(refs[copied..].iter().cloned().map(PageWrite::Keep));
        record.pages = stream::iter(next.into_iter().map(|split| self.write_page(split)))
            .buffered(CONCURRENT_PAGES)
            .try_collect()
            .await?;
        Ok(())
    }

    async fn write_page(&self, split: PageWrite) -> Result<PageRef, PublishError> {
        let (page, previous) = match split {
            PageWrite::Keep(page) => return Ok(page),
            PageWrite::New(page, previous) => (page, previous),
        };
        let first = page.first().expect("a page that was cut has rows").clone();
        let size = page.size() as u64;
        let digest = self.put("page", page.to_bytes()).await?;
        // A change may restore a page that was stored before.
        let previous = previous.into_iter().filter(|previous| *previous != digest).collect();
        Ok(PageRef { first, digest, size, previous })
    }

    /// Appends lines to the last segment, or begins a new one. Updates the record.
    pub(crate) async fn append_history(
        &self,
        record: &mut RepositoryRecord,
        lines: &[Line],
        now: SystemTime,
    ) -> Result<(), PublishError> {
        if lines.is_empty() {
            return Ok(());
        }
        let now = unix_milliseconds(now);
        let (mut before, mut entries, mut first) = (Bytes::new(), 0, now);
        if let Some(last) = record.history.last().filter(|last| last.size < MAX_SEGMENT_BYTES).cloned() {
            match self.objects.get(self.repository, Area::Private, &last.digest).await {
                Ok(bytes) => {
                    (before, entries, first) = (bytes, last.entries, last.first);
                    record.history.pop();
                }
                // The old entries are lost, but new ones can still be recorded.
                Err(error @ (ObjectError::Missing(_) | ObjectError::Corrupt(_))) => {
                    tracing::error!(repository = %self.repository, %error, "a segment of the history is lost");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let bytes = appended(&before, lines);
        let (size, entries) = (bytes.len() as u64, entries + lines.len() as u64);
        let digest = self.put("history", bytes).await?;
        record.history.push(SegmentRef { digest, size, entries, first, last: now.max(first) });
        let excess = record.history.len().saturating_sub(MAX_SEGMENTS);
        record.history.drain(..excess);
        Ok(())
    }

    async fn put(&self, kind: &str, bytes: Bytes) -> Result<ObjectDigest, PublishError> {
        self.metrics.object_bytes.with_label_values(&[kind]).inc_by(bytes.len() as u64);
        self.protection.add(ObjectDigest::of(&bytes)).await;
        Ok(self.objects.put(self.repository, Area::Private, bytes).await?)
    }
}

enum PageWrite {
    Keep(PageRef),
    New(Page, Vec<ObjectDigest>),
}
