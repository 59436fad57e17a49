//! What operators do to the version in force: pin it, go back to another one and pin that, and unpin.

use std::sync::Arc;

use weir_protocol::digest::TarballDigest;
use weir_source::Service;

use super::draft::{Change, Draft, VisibleChange, last_generation};
use crate::error::VersionChangeError;
use crate::request::VersionChange;
use crate::stored::history_line::{Line, Why};
use crate::stored::row::{Pin, StoredVersion, parsed, unix_milliseconds};

impl Draft<'_> {
    /// Pins a service to a digest: the current one (`None`), or a retained one, which becomes a new publication.
    pub(crate) fn pin(
        &mut self,
        service: &Arc<Service>,
        digest: Option<&TarballDigest>,
        change: &VersionChange,
    ) -> Result<((), Vec<VisibleChange>), VersionChangeError> {
        let (mut row, current) = self.expected(service, change)?;
        let stays = current.filter(|current| digest.is_none_or(|digest| current.publication().digest == *digest));
        let ended = if stays.is_some() { self.ended(&row, change.now)? } else { None };
        let since = row.pin.as_ref().map_or(unix_milliseconds(change.now), |pin| pin.since);
        let pin = Pin { since, author: change.author.clone() };
        let mut shown = vec![Change::Pinned(pin.shown())];
        row.pin = Some(pin);
        match (stays, digest) {
            (Some(current), _) => {
                let is_again = ended.is_some();
                let pinned = ended.unwrap_or(current);
                if is_again {
                    self.publish_again(&mut row, &pinned, change.now, change.author.clone());
                }
                self.lines.push(Line::pinned(&pinned, change.now, change.author.clone()));
                self.put(row);
                shown.push(if is_again { Change::Published(pinned) } else { Change::Current(pinned) });
            }
            (None, None) => return Err(VersionChangeError::NothingPublished(service.name.clone())),
            (None, Some(digest)) => {
                let retained = row.version(digest).cloned();
                let not_retained = || VersionChangeError::NotRetained(service.name.clone(), *digest);
                let retained = retained.ok_or_else(not_retained)?;
                let version = parsed(&retained)?;
                let (last, followed_ref) = (last_generation(&row, service), service.followed.to_string());
                let descriptor = self.republished(version.fields(), &followed_ref, last, change.now)?;
                let by = change.author.by.clone();
                let StoredVersion { key, recipe, .. } = retained;
                let version = StoredVersion::new(&descriptor, key, recipe, Why::RolledBack, by);
                self.replace_current(row, &descriptor, version, change.now, change.author.clone());
                self.lines.push(Line::pinned(&descriptor, change.now, change.author.clone()));
                shown.push(Change::Published(descriptor));
            }
        }
        Ok(((), shown.into_iter().map(|change| VisibleChange { service: service.clone(), change }).collect()))
    }

    /// Lets a service follow its ref again. Returns false if it was not pinned.
    pub(crate) fn unpin(
        &mut self,
        service: &Arc<Service>,
        change: &VersionChange,
    ) -> Result<(bool, Vec<VisibleChange>), VersionChangeError> {
        let (mut row, current) = self.expected(service, change)?;
        let was_pinned = row.pin.take().is_some();
        if was_pinned {
            let line = current.map(|current| Line::unpinned(&current, change.now, change.author.clone()));
            self.lines.extend(line);
            self.put(row);
        }
        Ok((was_pinned, vec![VisibleChange { service: service.clone(), change: Change::Unpinned }]))
    }
}
