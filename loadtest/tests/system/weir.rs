//! The commands of operators.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use tokio::process::Command;
use weir_loadtest::processes::{binary, until};

/// `weir` as an operator of one origin.
pub(crate) struct Weir {
    program: PathBuf,
    dir: PathBuf,
    server: String,
}

impl Weir {
    /// `dir` has its `ca.pem` and its `operator-token`.
    pub(crate) fn new(dir: &Path, server: String) -> anyhow::Result<Self> {
        Ok(Self { program: binary("weir")?, dir: dir.to_owned(), server })
    }

    /// The exit status of a command, and what it printed and said.
    pub(crate) async fn run(&self, command: &str) -> anyhow::Result<(Option<i32>, String)> {
        let mut weir = Command::new(&self.program);
        weir.args(command.split(' ')).args([
            "--server",
            &self.server,
            "--ca",
            "ca.pem",
            "--token-file",
            "operator-token",
        ]);
        let output = weir.current_dir(&self.dir).env_clear().output().await?;
        let said = String::from_utf8([output.stdout, output.stderr].concat())?;
        Ok((output.status.code(), said))
    }

    /// Runs a command that succeeds.
    pub(crate) async fn succeeds(&self, command: &str) -> anyhow::Result<String> {
        let (status, said) = self.run(command).await?;
        ensure!(status == Some(0), "weir {command}: {status:?} {said}");
        Ok(said)
    }

    /// Runs a command that prints this.
    pub(crate) async fn says(&self, command: &str, expected: &[&str]) -> anyhow::Result<()> {
        let said = self.succeeds(command).await?;
        let missing = expected.iter().find(|part| !said.contains(**part));
        ensure!(missing.is_none(), "weir {command} does not say {missing:?}: {said}");
        Ok(())
    }

    /// Runs a command until it prints this. Returns all that it printed.
    pub(crate) async fn until(&self, command: &str, expected: &str) -> anyhow::Result<String> {
        let last = Mutex::new(String::new());
        let says = async || {
            let said = self.run(command).await.map_or_else(|error| format!("{error:#}"), |(_, said)| said);
            let is_it = said.contains(expected);
            *last.lock().unwrap_or_else(PoisonError::into_inner) = said;
            is_it
        };
        let met = until(&format!("weir {command} says {expected}"), says).await;
        let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
        met.with_context(|| last.clone())?;
        Ok(last)
    }
}
