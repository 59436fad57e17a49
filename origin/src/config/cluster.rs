//! `[cluster]`: several origins that share repositories.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use weir_ownership::Timing;
use weir_runtime::config;
use weir_store::{EtcdConfig, NEEDS_BUCKET, SharedEngine, StoreConfig, StoreLocation, has_only_host};

/// The shortest and the longest time of a session.
const SESSION_TTL: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(600)];
const MAX_WEIGHT: u32 = 1000;
const MAX_ZONE_BYTES: usize = 100;

const NEEDS_ETCD: &str =
    "[cluster] engine = \"etcd\" needs etcd = { endpoints = [\"https://etcd-1:2379\"], ca = \"etcd-ca.pem\" }";

/// Several origins that share repositories. Each repository has one owner among them. `weir-origin check` tests the engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Store of the records of all origins.
    pub engine: EngineName,
    /// URL at which other origins and edges reach `listen`, such as `https://origin-1.example:7400`. `{name}` in it is the
    /// origin's name, so that all origins may have one file.
    pub advertise: String,
    /// The zone of this origin.
    #[serde(default)]
    pub zone: Option<String>,
    /// This origin's share of the repositories, in relation to others': 1 to 1,000. Default: `1`.
    #[serde(default = "one")]
    pub weight: u32,
    /// How long other origins wait for one that does not answer before they claim its repositories: at least 3 s. Renewed
    /// every third of it. Default: `30s` with a bucket, `15s` with etcd.
    #[serde(default, with = "config::optional_duration")]
    pub session_ttl: Option<Duration>,
    /// How etcd is reached, with `engine = "etcd"`.
    #[serde(default)]
    pub etcd: Option<EtcdConfig>,
}

/// The record store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// The bucket of `[store]`. It must have conditional writes.
    Bucket,
    /// An etcd. The objects may be in any store that all origins reach.
    Etcd,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bucket => "bucket",
            Self::Etcd => "etcd",
        })
    }
}

fn one() -> u32 {
    1
}

impl ClusterConfig {
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.etcd.iter_mut().flat_map(EtcdConfig::paths)
    }

    /// The intervals of a member.
    pub(crate) fn timing(&self) -> Timing {
        let default = match self.engine {
            EngineName::Bucket => Duration::from_secs(30),
            EngineName::Etcd => Duration::from_secs(15),
        };
        Timing::new(self.session_ttl.unwrap_or(default))
    }

    /// The engine of the records.
    ///
    /// # Errors
    /// Its section is missing.
    pub(crate) fn shared_engine<'a>(&'a self, store: &'a StoreConfig) -> Result<SharedEngine<'a>, String> {
        Ok(match self.engine {
            EngineName::Bucket => SharedEngine::Bucket(store),
            EngineName::Etcd => {
                // A session must survive a member that does not answer: two are asked in each attempt to renew it.
                let patience = self.timing().attempt() / 2;
                SharedEngine::Etcd(self.etcd.as_ref().ok_or(NEEDS_ETCD)?, patience)
            }
        })
    }

    pub(super) fn errors(&self, store: &StoreConfig) -> Vec<String> {
        let mut errors = Vec::new();
        let mut wrong = |what: &str| errors.push(format!("[cluster] {what}"));
        if !is_origin(&self.advertise) {
            wrong("advertise must be a URL without a path, such as \"https://origin-1.example:7400\"");
        }
        if self.zone.as_ref().is_some_and(|zone| zone.is_empty() || zone.len() > MAX_ZONE_BYTES) {
            wrong(&format!("zone must have 1 to {MAX_ZONE_BYTES} bytes, or be left out"));
        }
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            wrong(&format!("weight = {}: it must be 1 to {MAX_WEIGHT}", self.weight));
        }
        let [shortest, longest] = SESSION_TTL;
        if self.session_ttl.is_some_and(|ttl| ttl < shortest || ttl > longest) {
            wrong(&format!("session_ttl must be {shortest:?} to {longest:?}, for example \"30s\""));
        }
        match (self.engine, &self.etcd) {
            (EngineName::Bucket, None) => {}
            (EngineName::Bucket, Some(_)) => {
                wrong("etcd is for engine = \"etcd\" alone: remove it, or change the engine");
            }
            (EngineName::Etcd, None) => errors.push(NEEDS_ETCD.to_owned()),
            (EngineName::Etcd, Some(etcd)) => errors.extend(etcd.errors()),
        }
        match (self.engine, store.location()) {
            (EngineName::Bucket, Ok(StoreLocation::DataDir | StoreLocation::Folder(_))) => {
                errors.push(NEEDS_BUCKET.to_owned());
            }
            (EngineName::Etcd, Ok(StoreLocation::DataDir)) => {
                errors.push("[cluster] needs [store] url: other origins cannot read objects in data_dir".to_owned());
            }
            // An error of `url` is told of [store].
            _ => {}
        }
        errors
    }
}

/// Whether the text is `https://`, a host and perhaps a port.
fn is_origin(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| url.scheme() == "https" && has_only_host(&url))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "engine = 'bucket'\nadvertise = 'https://origin-1.example:7400'\n";

    fn read(toml: &str) -> Result<ClusterConfig, config::ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster.toml");
        std::fs::write(&file, toml).unwrap();
        config::read(&file)
    }

    fn errors(toml: &str, store: &str) -> Vec<String> {
        let store = StoreConfig { url: Some(store.to_owned()), ..StoreConfig::default() };
        read(toml).unwrap().errors(&store)
    }

    #[test]
    fn the_contract_s_example_is_read() {
        let example = "zone = 'a'\nweight = 2\nsession_ttl = '30s'";
        assert_eq!(errors(&format!("{EXAMPLE}{example}"), "s3://weir-hub"), [""; 0]);
        let short = read(EXAMPLE).unwrap();
        assert_eq!((short.engine, short.weight, short.session_ttl), (EngineName::Bucket, 1, None));
    }

    #[test]
    fn an_error_names_its_key_and_says_what_to_do() {
        for (line, named) in [
            ("weight = 0", "[cluster] weight = 0"),
            ("session_ttl = '2s'", "[cluster] session_ttl must be 3s"),
            ("zone = ''", "[cluster] zone"),
        ] {
            let errors = errors(&format!("{EXAMPLE}{line}"), "s3://weir-hub");
            assert!(errors.len() == 1 && errors[0].starts_with(named), "{errors:?}");
        }
        for url in ["origin-1:7400", "http://origin-1:7400", "https://origin-1/path", "https://a:b@origin-1"] {
            let errors = errors(&EXAMPLE.replace("https://origin-1.example:7400", url), "s3://weir-hub");
            assert!(errors.len() == 1 && errors[0].contains("[cluster] advertise"), "{errors:?}");
        }
        assert_eq!(errors(EXAMPLE, "file:///srv/objects"), [NEEDS_BUCKET]);
        let etcd = EXAMPLE.replace("bucket", "etcd");
        assert_eq!(errors(&etcd, "file:///srv/objects"), [NEEDS_ETCD]);
        let section = "etcd = { endpoints = ['https://etcd-1:2379'], ca = 'etcd-ca.pem' }";
        assert_eq!(errors(&format!("{etcd}{section}"), "file:///srv/objects"), [""; 0]);
        let alone = errors(&format!("{EXAMPLE}{section}"), "s3://weir-hub");
        assert!(alone.len() == 1 && alone[0].contains("[cluster] etcd is for"), "{alone:?}");
        let local = read(&format!("{etcd}{section}")).unwrap().errors(&StoreConfig::default());
        assert!(local.len() == 1 && local[0].contains("[store] url"), "{local:?}");
        let error = read(&EXAMPLE.replace("bucket", "buckets")).unwrap_err().to_string();
        assert!(error.contains("bucket") && error.contains("line 1"), "{error}");
    }
}
