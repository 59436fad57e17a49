//! Contexts: hubs by name, in a file of the user.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use weir_runtime::output::print;

use crate::table::Table;

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir context add prod --server https://origin-1.example:7401 --ca ca.pem --token-file operator.token
      Adds a hub and uses it. The token is read from the file at each command.
  weir context add prod --server https://origin-1.example:7401 --certificate ana.pem --key ana.key
      Signs in by a client certificate.
  weir context add prod --server https://hub.example --token-command 'vault read -field=token secret/weir'
      Signs in by what a command prints.
  weir context use stage && weir context list

Any origin of a hub answers. Environment variables win over the context: WEIR_CONTEXT, WEIR_SERVER, WEIR_CA, WEIR_TOKEN,
WEIR_TOKEN_FILE.";

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Add or replace a context, and use it
    Add(AddArguments),
    /// Use another context
    Use {
        /// Its name
        name: String,
    },
    /// List the contexts; the one in use has a star
    List,
    /// Remove a context
    Remove {
        /// Its name
        name: String,
    },
}

/// A context to add.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// A name of your choice
    name: String,
    #[command(flatten)]
    context: Context,
}

/// A hub, and how to sign in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// The operators' listener of an origin (`operator_listen`), such as https://origin-1.example:7401
    #[arg(long, value_name = "URL")]
    pub(crate) server: String,
    /// The authority of the server's certificate, PEM; the authorities of the system if absent
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// A file with the operators' token
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_command", "certificate"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// A command that prints the token; it runs in a shell
    #[arg(long, value_name = "COMMAND", conflicts_with = "certificate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_command: Option<String>,
    /// A client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
}

/// All contexts.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Contexts {
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// The file: `WEIR_CONTEXTS`, or `weir/contexts.toml` in the folder of the user's configuration.
    pub(crate) fn file() -> anyhow::Result<PathBuf> {
        let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = || of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")));
        let file = of("WEIR_CONTEXTS").or_else(|| Some(folder()?.join("weir/contexts.toml")));
        file.context("there is no folder for contexts: set HOME, or WEIR_CONTEXTS to a file")
    }

    /// Reads them; none where there is no file.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => toml::from_str(&text).with_context(|| format!("{} cannot be used", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        let written = || -> anyhow::Result<()> {
            fs::create_dir_all(folder)?;
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            new.write_all(toml::to_string(self)?.as_bytes())?;
            new.persist(file)?;
            Ok(())
        };
        written().with_context(|| format!("cannot write {}", file.display()))
    }

    /// A context by its name, or the one in use; `None`: no name is given, and none is in use.
    pub(crate) fn find(mut self, name: Option<&str>) -> anyhow::Result<Option<Context>> {
        let Some(name) = name.or(self.current.as_deref()).map(str::to_owned) else { return Ok(None) };
        match self.contexts.remove(&name) {
            Some(found) => Ok(Some(found)),
            None => bail!("there is no context `{name}`: `weir context list` shows those that there are"),
        }
    }
}

/// Paths are as the user sees them now, whatever folder a later command runs in.
fn absolute(path: Option<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    path.map(|path| std::path::absolute(&path).with_context(|| format!("cannot find {}", path.display()))).transpose()
}

pub(crate) fn run(command: ContextCommand) -> anyhow::Result<()> {
    let file = Contexts::file()?;
    let mut all = Contexts::read(&file)?;
    match command {
        ContextCommand::Add(AddArguments { name, context }) => {
            crate::connection::check_server(&context.server)?;
            let Context { ca, token_file, certificate, key, .. } = context.clone();
            let (ca, token_file) = (absolute(ca)?, absolute(token_file)?);
            let context =
                Context { ca, token_file, certificate: absolute(certificate)?, key: absolute(key)?, ..context };
            all.contexts.insert(name.clone(), context);
            all.current = Some(name);
        }
        ContextCommand::Use { name } => {
            if !all.contexts.contains_key(&name) {
                bail!("there is no context `{name}`: `weir context list` shows those that there are");
            }
            all.current = Some(name);
        }
        ContextCommand::Remove { name } => {
            if all.contexts.remove(&name).is_none() {
                bail!("there is no context `{name}`: `weir context list` shows those that there are");
            }
            all.current.take_if(|current| *current == name);
        }
        ContextCommand::List => {
            let mut table = Table::new(&["", "NAME", "SERVER"]);
            for (name, context) in &all.contexts {
                let mark = if all.current.as_ref() == Some(name) { "*" } else { "" };
                table.row([mark.to_owned(), name.clone(), context.server.clone()]);
            }
            print(table.render("there are no contexts: `weir context add NAME --server URL …` adds one"))?;
            return Ok(());
        }
    }
    all.write(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_found_by_its_name_or_because_it_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/contexts.toml");
        assert_eq!(Contexts::read(&file).unwrap().find(None).unwrap(), None);
        let context = |server: &str| Context { server: server.to_owned(), ..Context::default() };
        let contexts = [("prod", context("https://a")), ("stage", context("https://b"))];
        let contexts = contexts.map(|(name, context)| (name.to_owned(), context)).into();
        Contexts { current: Some("stage".to_owned()), contexts }.write(&file).unwrap();
        let found = |name| Contexts::read(&file).unwrap().find(name);
        assert_eq!(found(None).unwrap(), Some(context("https://b")));
        assert_eq!(found(Some("prod")).unwrap(), Some(context("https://a")));
        assert!(found(Some("prdo")).unwrap_err().to_string().contains("no context `prdo`"));
        fs::write(&file, "curent = \"prod\"\n").unwrap();
        assert!(format!("{:#}", Contexts::read(&file).unwrap_err()).contains("curent"));
    }
}
