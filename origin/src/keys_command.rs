//! `weir-origin keys`: prints and creates signing keys.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use weir_origin::config::Config;
use weir_protocol::access_list::key_line;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// Prints the public keys that publications are signed with, or makes a new key.
///
/// Each line is `<key id> <public key>`, the format of all key files. Do not mix these keys with those of tokens, and do not
/// distribute them through an edge.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct KeysArguments {
    /// The configuration whose `[signing]` names the keys.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<KeysCommand>,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Makes a key pair: FILE gets the private key, readable by its owner alone, and FILE.pub the public one. Existing
    /// files are never overwritten.
    New {
        /// Where the private key goes.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs the command. Public keys go to standard output.
///
/// # Errors
/// The configuration or a key cannot be used, or a file cannot be written.
pub(crate) fn run(arguments: KeysArguments) -> anyhow::Result<()> {
    if let Some(KeysCommand::New { file }) = arguments.command {
        let (key, public) = key_pair::write(&file)?;
        print(key_line(key.public()))?;
        eprintln!("{} is the private key: name it in `keys` of [signing] of the origin.", file.display());
        eprintln!(
            "{} is the public key: install it on all readers before the origin signs with the private one.",
            public.display()
        );
        return Ok(());
    }
    let config = Config::load(&arguments.config.unwrap_or_default())?;
    if config.signing.keys.is_empty() {
        anyhow::bail!("[signing] names no keys: this origin does not sign");
    }
    for key in config.signing.read()? {
        print(key_line(key.public()))?;
    }
    Ok(())
}
