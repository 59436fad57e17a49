//! What a service runs before and after a switch.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::{Deserialize, Serialize};
use weir_runtime::config::duration;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a command is a string for `sh -c`, or a list: a program and its arguments")]
pub enum HookCommand {
    /// A line for `sh -c`.
    Shell(String),
    /// A program and its arguments, without a shell.
    Program(Vec<String>),
}

impl HookCommand {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Shell(line) => line.trim().is_empty(),
            Self::Program(words) => words.first().is_none_or(String::is_empty),
        }
    }
}

impl From<&str> for HookCommand {
    fn from(line: &str) -> Self {
        Self::Shell(line.to_owned())
    }
}

impl From<String> for HookCommand {
    fn from(line: String) -> Self {
        Self::Shell(line)
    }
}

/// A request that is sent after each switch: a POST with JSON. Any status but 2xx is a failure; redirects are not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// `http://` or `https://`.
    pub url: String,
    /// PEM file of the authority that signs the server's certificate. Default: the agent's `ca`.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// How long the request may take. Default: `"10s"`.
    #[serde(with = "duration", default = "webhook_timeout")]
    pub timeout: Duration,
}

fn webhook_timeout() -> Duration {
    Duration::from_secs(10)
}

impl WebhookConfig {
    /// A request without a proxy, a user or a fragment.
    pub(super) fn error(&self) -> Option<&'static str> {
        let Ok(uri) = self.url.parse::<Uri>() else { return Some("it is not a URL") };
        match (uri.scheme_str(), uri.authority()) {
            (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
                Some("it contains a user name")
            }
            (Some("http" | "https"), Some(_)) => None,
            _ => Some("it does not begin with `http://` or `https://`"),
        }
    }
}

/// A signal to a process after each switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalConfig {
    /// File with the number of the process, as seen by the agent. Read for each signal.
    pub pid_file: PathBuf,
    /// The signal. Default: `"hup"`.
    #[serde(default)]
    pub signal: SignalName,
}

/// The signals that programs use for reloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalName {
    /// SIGHUP.
    #[default]
    Hup,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGTERM.
    Term,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGWINCH.
    Winch,
}
