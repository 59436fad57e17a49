//! `weir token revoke`.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use weir_shared::access_list::{AccessList, DenyLine};
use weir_shared::process::output::print;
use weir_shared::token::{KeyId, TokenId, UnverifiedToken};

use super::file;

/// Denies tokens, or all tokens of a key: appends to a deny file that edges or origins read.
///
/// A token is named by its id (--id), or by itself (in a file, or on standard input). With --keys a token that verifies is
/// written down with its end, from when on the line may be taken out; without, the line holds for ever, because anybody
/// could have written another end into it.
#[derive(Debug, Args)]
pub(crate) struct RevokeArguments {
    /// The deny file; made when it is not there.
    #[arg(long, value_name = "FILE")]
    deny: PathBuf,
    /// Files that hold a token; or `-` for a token on standard input.
    #[arg(value_name = "TOKEN", required_unless_present_any = ["ids", "key_ids"])]
    tokens: Vec<String>,
    /// The id of a token, as `weir token issue` and `inspect` show it. May be given several times.
    #[arg(long = "id", value_name = "ID", allow_hyphen_values = true)]
    ids: Vec<TokenId>,
    /// Revoke a key: all tokens that it signed, and those that it will sign. Its id is the first word of its public key
    /// file, and `weir token inspect` shows it for each token. May be given several times.
    #[arg(long = "key-id", value_name = "ID", allow_hyphen_values = true)]
    key_ids: Vec<KeyId>,
    /// A file of public keys, to learn a token's end from the token itself, and to know a key's id. May be given several
    /// times.
    #[arg(long, value_name = "FILE", num_args = 1)]
    keys: Vec<PathBuf>,
}

pub(super) fn run(arguments: &RevokeArguments) -> anyhow::Result<()> {
    let keys = file::keys(&arguments.keys)?;
    for id in &arguments.key_ids {
        require_key_id(id, &keys)?;
    }
    let tokens = arguments.tokens.iter().map(|given| deny_line(given, &keys));
    let mut lines = tokens.collect::<anyhow::Result<Vec<_>>>()?;
    lines.extend(arguments.ids.iter().cloned().map(|id| DenyLine::Token(id, None)));
    lines.extend(arguments.key_ids.iter().cloned().map(DenyLine::Key));
    let (new, known) = append(&arguments.deny, lines)?;
    for line in &new {
        print(line)?;
    }
    for line in &known {
        eprintln!("{} says so already: {line}", arguments.deny.display());
    }
    if !new.is_empty() {
        eprintln!("{} is read again by the edges and origins that name it.", arguments.deny.display());
    }
    Ok(())
}

/// A line that names no key would look as if one were revoked.
fn require_key_id(id: &KeyId, keys: &AccessList) -> anyhow::Result<()> {
    if !id.is_thumbprint() && !keys.keys().any(|key| key.id() == id) {
        bail!(
            "{id} is not the id of a key, and nothing was revoked: an id is the first word of the public key file (for a key \
             with an id of its own name that file as well: --keys)"
        );
    }
    Ok(())
}

fn deny_line(given: &str, keys: &AccessList) -> anyhow::Result<DenyLine> {
    let text = file::token(given).context("nothing was revoked (the id of a token goes to --id)")?;
    let token = UnverifiedToken::parse(&text)
        .with_context(|| format!("{given} holds no token: nothing was revoked (the id of a token goes to --id)"))?;
    let id = token.claims()?.id;
    let key = keys.keys().find(|key| key.id() == token.key_id());
    let verified = key.and_then(|key| token.verify(key).ok());
    Ok(DenyLine::Token(id, verified.map(|claims| claims.expires)))
}

/// Appends in one write, so that a reader finds whole lines, to a file that can be read and stays so. Which lines are new,
/// and which the file held already.
fn append(path: &Path, lines: Vec<DenyLine>) -> anyhow::Result<(Vec<DenyLine>, Vec<DenyLine>)> {
    let cannot = || format!("cannot write {}", path.display());
    let mut list = AccessList::default();
    let before = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    list.add_deny_file(&before).with_context(|| format!("{} is no deny file", path.display()))?;
    let is_known = |line: &DenyLine| before.lines().any(|known| known.trim() == line.to_string());
    let (known, new): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_known);
    if new.is_empty() {
        return Ok((new, known));
    }
    let mut text: String = new.iter().map(|line| format!("{line}\n")).collect();
    if let Err(error) = list.add_deny_file(&text) {
        bail!(
            "{}: {error}; revoke their key instead (--key-id), or take out lines whose end has passed",
            path.display()
        );
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).with_context(cannot)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != *b"\n" {
        text.insert(0, '\n');
    }
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(cannot)?;
    Ok((new, known))
}
