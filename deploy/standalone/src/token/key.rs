//! `weir token key`.

use std::path::PathBuf;

use clap::Args;
use weir_protocol::access_list::key_line;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// Makes a key pair: the private key, which issues tokens, and the public one, which verifies them.
///
/// FILE gets the private key (Ed25519, PKCS#8 in PEM, as `openssl pkey` reads it), readable by its owner alone. FILE.pub
/// gets the public key in one line, `<key id> <public key>`: put it into a file that edges name as `keys` in `[auth]`. Several
/// such lines make a file of several keys. Neither file is ever written over.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// Where the private key goes; the public key goes to FILE.pub.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn run(arguments: &KeyArguments) -> anyhow::Result<()> {
    let (key, public) = key_pair::write(&arguments.out)?;
    print(key_line(key.public()))?;
    eprintln!("{} issues tokens: keep it where you issue them, and nowhere else.", arguments.out.display());
    eprintln!("{} verifies them: edges read it, as `keys` in [auth].", public.display());
    Ok(())
}
