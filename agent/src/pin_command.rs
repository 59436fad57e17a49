//! `weir-agent rollback` and `weir-agent unpin`: write and remove the pin of a service below the root.
//!
//! A running agent follows within a second. Without one, the release is switched at once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_release::{KeptReleases, RootLock, ServiceDirectory, read_pins, remove_pin, write_pin};

use crate::config::Config;

/// How long a running agent may take to switch: it may be in the middle of a download or a check.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(50);

/// Where the releases are.
#[derive(Debug, Clone, clap::Args)]
pub struct RootArgs {
    /// The configuration file of the agent
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// The folder that holds one folder per service
    #[arg(long, value_name = "DIR", env = "WEIR_ROOT")]
    pub root: Option<PathBuf>,
}

/// The arguments of `rollback`.
#[derive(Debug, Clone, clap::Args)]
pub struct RollbackArgs {
    /// The folder of the agent.
    #[command(flatten)]
    pub root: RootArgs,
    /// The service
    pub service: ServiceName,
    /// A release on this machine: its digest, or its first characters [default: the previous release]
    pub digest: Option<String>,
}

/// The arguments of `unpin`.
#[derive(Debug, Clone, clap::Args)]
pub struct UnpinArgs {
    /// The folder of the agent.
    #[command(flatten)]
    pub root: RootArgs,
    /// The service
    pub service: ServiceName,
}

impl RootArgs {
    fn config(self) -> anyhow::Result<Config> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        config.root = std::path::absolute(self.root.unwrap_or(config.root)).context("name the root: `--root DIR`")?;
        Ok(config)
    }
}

/// Goes back to a release and pins it; returns what was done, as a sentence. Blocks.
///
/// # Errors
/// The release is not on disk, the root is not writable, or the running agent does not switch.
pub fn rollback(arguments: RollbackArgs) -> anyhow::Result<String> {
    let config = arguments.root.config()?;
    let (root, service) = (&config.root, &arguments.service);
    let options = config.release_options(service);
    let kept = KeptReleases::read(root, service)
        .with_context(|| format!("there are no releases of `{service}` in {}", root.display()))?;
    if let (None, Some(Ok(pinned))) = (&arguments.digest, read_pins(root)?.get(service)) {
        bail!("{service} is pinned to {} already: name the release to go to", pinned.digest);
    }
    let digest = choose(&kept, arguments.digest.as_deref())?;
    write_pin(root, service, digest, options.modes)?;
    match RootLock::try_acquire(root, options.modes)? {
        Some(lock) => {
            let directory = ServiceDirectory::new(root, service, options, lock.into(), None);
            directory.restore()?;
            if kept.current != Some(digest) {
                directory.roll_back(digest)?;
            }
        }
        None => wait(root, service, digest)?,
    }
    Ok(format!("{service} is at {digest}, and stays there until `weir-agent unpin {service}`"))
}

/// Removes the pin of a service; returns what was done, as a sentence. Blocks.
///
/// # Errors
/// The root is not writable.
pub fn unpin(arguments: UnpinArgs) -> anyhow::Result<String> {
    let (config, service) = (arguments.root.config()?, &arguments.service);
    Ok(match remove_pin(&config.root, service)? {
        true => format!("{service} is no longer pinned: the agent follows its edges again"),
        false => format!("{service} was not pinned"),
    })
}

fn choose(kept: &KeptReleases, wanted: Option<&str>) -> anyhow::Result<TarballDigest> {
    let Some(wanted) = wanted else {
        return kept.previous.context("there is no previous release on disk: name one of those that are kept");
    };
    let matching: Vec<_> = kept.digests.iter().filter(|digest| digest.to_string().starts_with(wanted)).collect();
    match matching[..] {
        [digest] => Ok(*digest),
        _ => {
            let problem =
                if matching.is_empty() { "no release on disk is" } else { "several releases on disk begin with" };
            let all: Vec<_> = kept.digests.iter().map(ToString::to_string).collect();
            bail!("{problem} `{wanted}`. There are: {}", all.join(", "));
        }
    }
}

/// Waits for the running agent.
fn wait(root: &Path, service: &ServiceName, digest: TarballDigest) -> anyhow::Result<()> {
    let deadline = Instant::now() + SWITCH_TIMEOUT;
    while KeptReleases::read(root, service)?.current != Some(digest) {
        if Instant::now() >= deadline {
            bail!(
                "the pin is written, but the agent has not switched within {SWITCH_TIMEOUT:?}: does it follow `{service}`? \
                 Its log has the reason"
            );
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_chosen_by_the_beginning_of_its_digest() {
        let [one, two] = [b"one", b"two"].map(|content| TarballDigest::of(content));
        let mut kept = KeptReleases { current: Some(two), previous: Some(one), digests: vec![one, two] };
        assert_eq!(choose(&kept, None).unwrap(), one);
        assert_eq!(choose(&kept, Some(&two.to_string()[..12])).unwrap(), two);
        let error = choose(&kept, Some("b3-")).unwrap_err().to_string();
        assert!(error.contains("several") && error.contains(&one.to_string()), "{error}");
        assert!(choose(&kept, Some("x")).unwrap_err().to_string().starts_with("no release on disk is `x`"));
        kept.previous = None;
        assert!(choose(&kept, None).is_err());
    }
}
