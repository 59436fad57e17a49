//! `weir token key`.

use std::path::PathBuf;

use clap::Args;
use weir_protocol::access_list::key_line;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// Makes a key pair: the private key, which issues tokens, and the public one, which verifies them.
///
/// FILE gets the private key (Ed25519, PKCS#8 in PEM, as `openssl pkey` reads it), readable only by its owner. FILE.pub gets
/// the public key as one line, `<key id> <public key>`, for a file that `keys` in `[auth]` of an edge names. A file may have
/// several such lines. Existing files are never overwritten.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// Where the private key goes; the public key goes to FILE.pub.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn run(arguments: &KeyArguments) -> anyhow::Result<()> {
    let (key, public) = key_pair::write(&arguments.out)?;
    let private = arguments.out.display();
    eprintln!("{private} is the private key: keep it only where you issue tokens.");
    eprintln!("The public key of {private} is in {}, for `keys` of [auth] of the edges:", public.display());
    print(key_line(key.public()))?;
    Ok(())
}
