//! What `weir up` tells a person: what is served where, what to try, and then a line for each thing that happens.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use weir_agent::ServiceStatus;
use weir_origin::Condition;
use weir_origin::repository_agent::{Health, Phase, RepositoryState};
use weir_shared::descriptor::Descriptor;

use super::compose::Roles;
use crate::repository::Repository;

/// Tells what happens. The lines are for people: programs read the metrics and `/status`.
pub(super) struct Report<'a> {
    repository: &'a Repository,
    roles: &'a Roles,
    root: &'a Path,
    progress: Progress,
}

impl<'a> Report<'a> {
    pub(super) fn new(repository: &'a Repository, roles: &'a Roles, root: &'a Path) -> Self {
        Self { repository, roles, root, progress: Progress::new() }
    }

    /// What is served where, and what to try.
    pub(super) fn introduction(&self) {
        let Self { repository, roles, .. } = self;
        let service = &roles.service;
        let edge = roles.edge.address();
        let here = std::env::current_dir().unwrap_or_default();
        let shown = |path: &Path| shell_word(&path.strip_prefix(&here).unwrap_or(path).display().to_string());
        println!("weir serves {} as the service `{service}`", repository.url);
        println!(
            "  origin  https://{}  asks the repository every {}",
            roles.origin.address(),
            in_words(roles.poll_interval)
        );
        println!("  edge    https://{edge}  over HTTP/1.1, 2 and 3");
        println!("  agent   {}", shown(&roles.current));
        println!("\nTry:");
        println!("  curl --cacert {} https://{edge}/v1/services/{service}/tarball | tar -tv", shown(&roles.ca));
        println!("  ls -l {}/", shown(&roles.current));
        for (role, admin) in [
            ("origin", roles.origin.admin_address()),
            ("edge", roles.edge.admin_address()),
            ("agent", roles.agent.admin_address()),
        ] {
            if let Some(admin) = admin {
                println!("  http://{admin}/metrics and /status of the {role}");
            }
        }
        println!("\nAll it keeps stands below {}. Ctrl-C ends it.\n", shell_word(&self.root.display().to_string()));
    }

    /// Prints a line for each change, for ever; with `once` until the first switch.
    ///
    /// # Errors
    /// With `once`: why there will be no switch.
    pub(super) async fn follow(&self, once: bool) -> anyhow::Result<()> {
        let Roles { service, repository, origin, agent, .. } = self.roles;
        let configured = "what is configured is known to the role";
        let mut descriptor = origin.service(service).expect(configured);
        let mut condition = origin.condition(service).expect(configured);
        let mut upstream = origin.repository(repository).expect(configured);
        let mut status = agent.service(service).expect(configured);
        descriptor.mark_changed();
        condition.mark_changed();
        upstream.mark_changed();
        status.mark_changed();
        let mut seen = Seen::default();
        loop {
            // A role that has stopped closes its channels.
            tokio::select! {
                changed = upstream.changed() => {
                    changed?;
                    let state = upstream.borrow_and_update().clone();
                    self.progress.show(&state.phase);
                    if let Some(reason) = seen.upstream(&state) {
                        self.line(&reason);
                        if once {
                            bail!("{reason}");
                        }
                    }
                }
                changed = condition.changed() => {
                    changed?;
                    let now = condition.borrow_and_update().clone();
                    if let Condition::Unhealthy { reason, .. } = now {
                        let reason = format!("{service} cannot follow: {reason}");
                        self.line(&reason);
                        if once {
                            bail!("{reason}");
                        }
                    }
                }
                changed = descriptor.changed() => {
                    changed?;
                    let now = descriptor.borrow_and_update().clone();
                    if let Some(now) = now {
                        self.line(&published(&now));
                    }
                }
                changed = status.changed() => {
                    changed?;
                    let now = status.borrow_and_update().clone();
                    for line in seen.agent(&now) {
                        self.line(&line);
                    }
                    if once && now.switches > 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn line(&self, text: &str) {
        self.progress.clear();
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let time = now.get(11..19).unwrap_or_default();
        println!("{time}  {text}");
    }
}

fn published(descriptor: &Descriptor) -> String {
    let publication = descriptor.publication();
    let stored = descriptor.representations().first().map_or(0, |representation| representation.size);
    format!(
        "published  {}  commit {}  digest {}  {} bytes, {stored} compressed{}",
        publication.service,
        publication.commit.short(),
        &publication.digest.to_string()[..15],
        publication.size,
        match publication.omitted.len() {
            0 => String::new(),
            n => format!(", {n} left out (see the descriptor)"),
        }
    )
}

/// What has been told already.
#[derive(Default)]
struct Seen {
    switches: u64,
    error: Option<String>,
    failure: Option<String>,
}

impl Seen {
    /// News of the upstream: why it fails, said once, and that it answers again.
    fn upstream(&mut self, state: &RepositoryState) -> Option<String> {
        let failure = match &state.health {
            Health::Unhealthy { failure, .. } => {
                Some(format!("the repository fails to {}: {}", failure.step, failure.reason))
            }
            _ => None,
        };
        if failure == self.failure {
            return None;
        }
        self.failure.clone_from(&failure);
        failure
    }

    /// News of the agent: switches, and errors said once.
    fn agent(&mut self, status: &ServiceStatus) -> Vec<String> {
        let mut lines = Vec::new();
        if status.switches != self.switches {
            self.switches = status.switches;
            if let Some(release) = &status.release {
                lines.push(format!("switched   {}", release.directory.display()));
            }
        }
        if status.last_error != self.error {
            self.error.clone_from(&status.last_error);
            // Before the first publication an agent is told to come back: no news.
            if let (Some(error), true) = (&status.last_error, status.release.is_some()) {
                lines.push(format!("the agent: {error}"));
            }
        }
        lines
    }
}

/// A line on a terminal that is written over and over while something long is under way.
struct Progress {
    is_terminal: bool,
}

impl Progress {
    fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal() && std::io::stdout().is_terminal() }
    }

    fn show(&self, phase: &Phase) {
        let text = match phase {
            Phase::Cloning { progress } => match progress.total {
                Some(total) => format!("cloning: {} {}/{total}", progress.phase, progress.done),
                None if progress.bytes > 0 => format!("cloning: {} {} MB", progress.phase, progress.bytes / 1_000_000),
                None => format!("cloning: {}", progress.phase),
            },
            Phase::FetchingLfs { service } => format!("fetching LFS objects of {service}"),
            Phase::Building { service } => format!("building {service}"),
            Phase::Overdue => "the repository does not answer in time".to_owned(),
            Phase::Idle | Phase::Polling { .. } => return self.clear(),
        };
        if self.is_terminal {
            eprint!("\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// A word for a shell: as it is when that is safe, else quoted.
fn shell_word(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_safe) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn in_words(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(shell_word("weir-data/certificates/ca.pem"), "weir-data/certificates/ca.pem");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
