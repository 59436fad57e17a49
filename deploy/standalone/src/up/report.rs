//! The output of `weir up`: the addresses, commands to try, then each publication and each switch. Failures are in the log.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use weir_agent::ServiceStatus;
use weir_origin::reconcile::{Health, RepositoryState};
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::observed::HookState;
use weir_source::Condition;

use super::compose::Roles;
use super::progress::Progress;
use crate::repository::Repository;

/// Prints lines for people. Programs read the metrics and `/status`.
pub(super) struct Report<'a> {
    repository: &'a Repository,
    roles: &'a Roles,
    root: &'a Path,
    progress: &'a Progress,
}

impl<'a> Report<'a> {
    pub(super) fn new(repository: &'a Repository, roles: &'a Roles, root: &'a Path, progress: &'a Progress) -> Self {
        Self { repository, roles, root, progress }
    }

    /// Prints the addresses and commands to try.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn introduction(&self) -> io::Result<()> {
        let Self { repository, roles, .. } = self;
        let service = &roles.service;
        let edge = roles.edge.address();
        let here = std::env::current_dir().unwrap_or_default();
        let shown = |path: &Path| shell_quoted(&path.strip_prefix(&here).unwrap_or(path).display().to_string());
        let (origin, every) = (roles.origin.address(), human_readable(roles.poll_interval));
        let (ca, current) = (shown(&roles.ca), shown(&roles.current));
        self.print(&format!(
            "weir serves {} as the service `{service}`\n  \
               origin  https://{origin}  polls the repository every {every}\n  \
               edge    https://{edge}  over HTTP/1.1, 2 and 3\n  \
               agent   {current}\n\n\
             Try:\n  \
               curl --cacert {ca} https://{edge}/v1/services/{service}/tarball | tar -tv\n  \
               ls -l {current}/",
            repository.url
        ))?;
        for (role, admin) in [
            ("origin", roles.origin.admin_address()),
            ("edge", roles.edge.admin_address()),
            ("agent", roles.agent.admin_address()),
        ] {
            if let Some(admin) = admin {
                if role != "agent" {
                    self.print(&format!("  http://{admin}/ shows the {role} in a browser"))?;
                }
                self.print(&format!("  http://{admin}/metrics and /status of the {role}"))?;
            }
        }
        if let Some(operators) = roles.origin.operator_address() {
            let token = shown(&roles.operator_token);
            self.print(&format!(
                "  https://{operators}/ shows the fleet in a browser, to who has the token in {token}"
            ))?;
        }
        let root = shell_quoted(&self.root.display().to_string());
        self.print(&format!("\nAll data is in {root}. Stop with Ctrl-C.\n"))
    }

    /// Writes to standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        self.progress.print(text)
    }

    /// Prints a line for each publication and each switch, forever; with `once` until the agent has the newest release and
    /// its `exec` has succeeded.
    ///
    /// # Errors
    /// Standard output is closed. With `once` also an error that is not retried.
    pub(super) async fn follow(&self, once: bool) -> anyhow::Result<()> {
        let Roles { service, repository, origin, agent, .. } = self.roles;
        let configured = "a role knows its configured services and repositories";
        let mut descriptor = origin.service(service).expect(configured);
        let mut condition = origin.condition(service).expect(configured);
        let mut upstream = origin.repository(repository).expect(configured);
        let mut status = agent.service(service).expect(configured);
        descriptor.mark_changed();
        status.mark_changed();
        let (mut switches, mut reported) = (0, None);
        loop {
            // A role that has stopped closes its channels. Several may have changed at once: a cause is reported before its
            // effect.
            tokio::select! {
                biased;
                changed = upstream.changed() => {
                    changed?;
                    self.progress.show(&upstream.borrow_and_update());
                }
                changed = condition.changed() => changed?,
                changed = descriptor.changed() => {
                    changed?;
                    let now = descriptor.borrow_and_update().clone();
                    // A later revision has a delta in addition, and the same publication.
                    let generation = now.as_ref().map(|now| now.publication().generation);
                    if let Some(now) = now.filter(|_| generation != reported) {
                        self.line(&published(&now, origin.generation_before(service)))?;
                    }
                    reported = generation;
                }
                changed = status.changed() => {
                    changed?;
                    let now = status.borrow_and_update().clone();
                    if let (true, Some(release)) = (now.switches > switches, &now.release) {
                        self.line(&format!("switched   {}", release.directory.display()))?;
                    }
                    switches = now.switches;
                }
            }
            if once {
                let newest = descriptor.borrow().clone();
                let is_done = is_done(&upstream.borrow(), &condition.borrow(), newest.as_deref(), &status.borrow());
                let more =
                    [upstream.has_changed(), condition.has_changed(), descriptor.has_changed(), status.has_changed()];
                // Changes that arrived meanwhile are reported first.
                if !more.into_iter().any(|more| more.unwrap_or(false)) && is_done? {
                    return Ok(());
                }
            }
        }
    }

    fn line(&self, text: &str) -> io::Result<()> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let time = now.get(11..19).unwrap_or_default();
        self.print(&format!("{time}  {text}"))
    }
}

/// With `--once`: whether the newest release is current.
///
/// # Errors
/// The poll, the publication, the agent or `exec` failed.
fn is_done(
    upstream: &RepositoryState,
    condition: &Condition,
    newest: Option<&Descriptor>,
    agent: &ServiceStatus,
) -> anyhow::Result<bool> {
    if let Health::Unhealthy { failure, .. } = &upstream.health {
        bail!("polling the repository failed at the step `{}`: {}", failure.step, failure.reason);
    }
    if let Condition::Unhealthy { reason, .. } = condition {
        bail!("the service cannot follow: {reason}");
    }
    // Until the first poll is applied, the publication is that of an earlier process.
    let newest = newest.filter(|_| upstream.applied_polls > 0 && *condition == Condition::Following);
    newest.map_or(Ok(false), |newest| is_current(&newest.publication().digest, agent))
}

/// Whether the agent has this release, and its `exec` has succeeded.
///
/// # Errors
/// The agent or `exec` failed.
fn is_current(newest: &TarballDigest, agent: &ServiceStatus) -> anyhow::Result<bool> {
    let has_it = agent.release.as_ref().is_some_and(|release| release.digest == *newest);
    match (has_it && agent.confirmed, agent.hook) {
        (false, _) => match &agent.last_error {
            Some(error) if !agent.last_error_retryable => bail!("the agent: {error}"),
            _ => Ok(false),
        },
        (true, HookState::None | HookState::Succeeded | HookState::Other) => Ok(true),
        (true, HookState::Pending | HookState::Running) => Ok(false),
        (true, HookState::Failed) => bail!("{}", agent.hook_error.as_deref().unwrap_or("exec failed")),
    }
}

/// The line of a publication. `before`: the generation at the start of this process.
fn published(descriptor: &Descriptor, before: Option<Generation>) -> String {
    let publication = descriptor.publication();
    let is_new = Some(publication.generation) > before;
    let stored = descriptor.representations().first().map_or(0, |representation| representation.size);
    format!(
        "{}  {}  {} {}  digest {}  {} bytes, {stored} compressed{}",
        if is_new { "published" } else { "as before" },
        publication.service,
        if publication.commit.is_some() { "commit" } else { "revision" },
        publication.revision_id.short(),
        &publication.digest.to_string()[..15],
        publication.size,
        match publication.omitted.len() {
            0 => String::new(),
            n => format!(", {n} left out (see the descriptor)"),
        }
    )
}

/// Quotes an argument for a shell, if it needs that.
fn shell_quoted(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_safe) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn human_readable(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(shell_quoted("weir-data/certificates/ca.pem"), "weir-data/certificates/ca.pem");
        assert_eq!(shell_quoted("a b"), "'a b'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }
}
