//! `[[service]]`: what is followed, and what runs at a switch.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::{LabelGlob, NameGlob};

use super::hook::{HookCommand, SignalConfig, WebhookConfig};
use super::{Config, MAX_INTERVAL, MIN_INTERVAL};
use crate::dependencies::cycle_of_names;

/// A service to follow, or services. With `services = "assigned"` only the hooks of what is assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Name of the service at the edge, and of its folder in `root`; or a pattern with `*`, for all services of the edge that
    /// match. The table with a service's own name decides on its hooks, then the first pattern that matches.
    pub name: NameGlob,
    /// Command, run in the new release before the switch. Unless it succeeds, nothing is switched.
    #[serde(default)]
    pub check: Option<HookCommand>,
    /// Command, run in the new release after each switch: a string for `sh -c`, or a list for a program without a shell.
    /// It runs at least once for each switch; make it idempotent. So do the other hooks, in the order of this table.
    #[serde(default)]
    pub exec: Option<HookCommand>,
    /// File that is created, or gets the present time, after each switch.
    #[serde(default)]
    pub touch: Option<PathBuf>,
    /// A signal to a process after each switch.
    #[serde(default)]
    pub signal: Option<SignalConfig>,
    /// A request after each switch.
    #[serde(default)]
    pub webhook: Option<WebhookConfig>,
    /// Whether edges and origins are told the last lines that a failed `check` or `exec` wrote to stderr, at most 512 bytes:
    /// operators see them as `output` of the problem. Off by default, because what commands write may have secrets.
    #[serde(default)]
    pub report_output: bool,
    /// Whether `check` and `exec` get the labels of the agent, and the hooks run again when one changes. They do not run before
    /// an edge has sent labels.
    #[serde(default)]
    pub labels: bool,
    /// Services, by names or patterns, that go first: `depends_on = ["crds", "infra-*"]`. This one does not switch until each
    /// of those that the agent follows has its own newest release, and its hooks have succeeded.
    #[serde(default)]
    pub depends_on: Vec<NameGlob>,
}

impl Config {
    /// The keys of the labels of edges that hooks get.
    pub(crate) fn allowed_labels(&self) -> Vec<LabelGlob> {
        match self.labels_from_edge.is_empty() && self.trust.is_empty() {
            true => vec!["*".parse().expect("a pattern")],
            false => self.labels_from_edge.clone(),
        }
    }

    /// Whether a hook gets labels of edges.
    pub(crate) fn uses_labels_of_edges(&self) -> bool {
        self.services.iter().any(|service| service.labels) && !self.allowed_labels().is_empty()
    }

    /// The error of a hook that would wait for ever.
    pub(super) fn labels_error(&self) -> Option<String> {
        let has_none = self.labels.is_empty() && self.allowed_labels().is_empty();
        let service = self.services.iter().find(|service| service.labels && has_none)?;
        let name = &service.name;
        Some(format!(
            "the service `{name}` has `labels`, and with `trust` there are none: set `labels`, or `labels_from_edge`"
        ))
    }
}

impl ServiceConfig {
    /// A service without hooks.
    pub fn new(name: &ServiceName) -> Self {
        Self::of(name.as_str().parse().expect("a name is a pattern"))
    }

    /// The services that match a pattern, without hooks.
    pub fn of(name: NameGlob) -> Self {
        Self {
            name,
            check: None,
            exec: None,
            touch: None,
            signal: None,
            webhook: None,
            report_output: false,
            labels: false,
            depends_on: Vec::new(),
        }
    }

    /// The one service that is meant; `None`: a pattern.
    pub(crate) fn service(&self) -> Option<ServiceName> {
        self.name.as_str().parse().ok()
    }

    /// Whether something runs after each switch.
    pub(crate) fn has_hook(&self) -> bool {
        self.exec.is_some() || self.touch.is_some() || self.signal.is_some() || self.webhook.is_some()
    }

    /// A hash of what runs after each switch. Commands may contain secrets, and the hash is written to disk.
    pub(crate) fn hooks_hash(&self) -> String {
        let hooks = serde_json::to_vec(&(&self.exec, &self.touch, &self.signal, &self.webhook));
        blake3::hash(&hooks.expect("hooks are plain data")).to_hex().to_string()
    }

    /// The paths that may be relative.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let pid_file = self.signal.as_mut().map(|signal| &mut signal.pid_file);
        let ca = self.webhook.as_mut().and_then(|webhook| webhook.ca.as_mut());
        [self.touch.as_mut(), pid_file, ca].into_iter().flatten()
    }

    /// The error of tables that wait for each other by their names.
    pub(super) fn cycle_error(tables: &[Self]) -> Option<String> {
        fn names(table: &ServiceConfig) -> (&str, Vec<&str>) {
            (table.name.as_str(), table.depends_on.iter().map(NameGlob::as_str).collect())
        }
        // Whether patterns are a cycle depends on the services that there are: a pattern is the name of none.
        let depends_on = tables.iter().filter(|table| table.service().is_some()).map(names).collect();
        let cycle = cycle_of_names(&depends_on)?;
        Some(format!("`depends_on` is a cycle, {cycle}: these services would wait for each other for ever"))
    }

    /// The errors of its hooks.
    pub(super) fn hook_errors(&self) -> Vec<String> {
        let name = &self.name;
        let mut errors = Vec::new();
        for (key, command) in [("exec", &self.exec), ("check", &self.check)] {
            if command.as_ref().is_some_and(HookCommand::is_empty) {
                errors.push(format!("`{key}` of the service `{name}` is empty"));
            }
        }
        if let Some(webhook) = &self.webhook {
            errors.extend(webhook.error().map(|error| format!("`webhook.url` of the service `{name}`: {error}")));
            if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&webhook.timeout) {
                errors.push(format!("`webhook.timeout` of the service `{name}` is not between 1s and a year"));
            }
        }
        errors
    }
}
