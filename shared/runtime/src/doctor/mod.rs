//! `doctor` of each role's program: checks, one line each, with what to do. Works beside a running process.

mod machine;
mod network;

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;

pub use self::network::{Peer, clock, dns, handshake, tcp};
use crate::output::print;

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is to be done.
    Ok,
    /// The process works, but not as well as it could, or not for long.
    Warn,
    /// The process does not work with this node, or on this machine.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The URL or the address of a node, or `this machine`.
    pub subject: String,
    /// What was looked at, such as `configuration`, `disk`, `dns`, `tcp`, `tls`, `identity` or `clock`.
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

    /// Prints it, for people or as JSON. The exit code of the command: 0, no check failed; 1, one did.
    pub fn print(&self, as_json: bool) -> ExitCode {
        let printed = match as_json {
            true => print(serde_json::to_string_pretty(self).unwrap_or_default()),
            false => print(self.to_string().trim_end()),
        };
        if self.has_failed() || printed.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

/// The findings about one subject.
#[derive(Debug)]
pub struct Findings {
    subject: String,
    /// In their order.
    pub found: Vec<Finding>,
}

impl Findings {
    /// None, about this.
    pub fn new(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), found: Vec::new() }
    }

    fn add(&mut self, check: &'static str, verdict: Verdict, message: impl Into<String>, advice: Option<String>) {
        let (subject, message) = (self.subject.clone(), message.into());
        self.found.push(Finding { subject, check, verdict, message, advice });
    }

    /// All is well.
    pub fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Verdict::Ok, message, None);
    }

    /// Not as it should be, or not for long.
    pub fn warn(&mut self, check: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(check, Verdict::Warn, message, Some(advice.into()));
    }

    /// This does not work.
    pub fn fail(&mut self, check: &'static str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(check, Verdict::Fail, message, Some(advice.into()));
    }
}
