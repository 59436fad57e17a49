//! `weir-agent doctor`: checks what an agent needs, one line each, with what to do. Works beside a running agent.

mod edge;
mod identity;
mod machine;

use std::fmt;

use futures_util::future::join_all;
use serde::Serialize;

use crate::config::Config;

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is to be done.
    Ok,
    /// The agent works, but not as well as it could, or not for long.
    Warn,
    /// The agent does not work with this edge, or on this machine.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The URL of an edge, or `this machine`.
    pub subject: String,
    /// `configuration`, `disk`, `proxy`, `dns`, `tcp`, `tls`, `udp`, `identity`, `services` or `clock`.
    pub check: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub message: String,
    /// What to do; `None` if it is well.
    pub advice: Option<String>,
}

/// All checks, in the order in which one needs the other.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether a check failed.
    pub fn has_failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.verdict == Verdict::Fail)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut subject = "";
        for finding in &self.findings {
            if finding.subject != subject {
                subject = &finding.subject;
                writeln!(f, "{subject}")?;
            }
            let verdict = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            writeln!(f, "  {verdict:<4}  {:<13}  {}", finding.check, finding.message)?;
            if let Some(advice) = &finding.advice {
                writeln!(f, "{:23}→ {advice}", "")?;
            }
        }
        Ok(())
    }
}

/// Checks this machine and each edge of a valid configuration. Takes a few seconds when something does not respond.
pub async fn doctor(config: &Config) -> Report {
    let own = config.clone();
    let machine = tokio::task::spawn_blocking(move || machine::check(&own)).await.unwrap_or_default();
    let edges = join_all(config.edges.iter().map(|url| edge::check(url, config))).await;
    Report { findings: machine.into_iter().chain(edges.into_iter().flatten()).collect() }
}

/// The findings about one subject.
struct Findings {
    subject: String,
    found: Vec<Finding>,
}

impl Findings {
    fn new(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), found: Vec::new() }
    }

    fn add(&mut self, check: &'static str, verdict: Verdict, message: impl Into<String>, advice: Option<String>) {
        let (subject, message) = (self.subject.clone(), message.into());
        self.found.push(Finding { subject, check, verdict, message, advice });
    }

    fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Verdict::Ok, message, None);
    }

    fn warn(&mut self, check: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(check, Verdict::Warn, message, Some(advice.into()));
    }

    fn fail(&mut self, check: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(check, Verdict::Fail, message, Some(advice.into()));
    }
}
