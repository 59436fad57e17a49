//! `[upstreams]`: which upstreams are allowed, how much is fetched from each, and the egress policy by author.

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_model::ValidationError;
use weir_runtime::config;

use super::{DefinedBy, RepositoryConfig};
use crate::{EgressPolicy, Endpoint, Hosts};

/// The default of [`UpstreamsConfig::max_object`], in bytes: more than hosting services accept.
pub const DEFAULT_MAX_OBJECT: u64 = 256 << 20;

/// Which upstreams are allowed, and how much is fetched from each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamsConfig {
    /// Allowed hosts, redirects included: `["github.com", "*.example.org"]`. Default: any.
    pub hosts: Hosts,
    /// Allow repositories that operators create to use addresses that are not public.
    pub private_addresses: bool,
    /// Most refs of an upstream, 1 to 10,000,000. A listing may have 256 bytes for each.
    pub max_refs: usize,
    /// Most bytes of one fetch, as received and as written. An index of about 32 bytes for each object comes on top. At least
    /// `1MiB`.
    #[serde(with = "config::size")]
    pub max_pack: ByteSize,
    /// Largest mirror of a repository; nothing is fetched beyond it. LFS objects may have as much again. A full repack needs
    /// as much free disk while it runs. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_mirror: ByteSize,
    /// Largest Git object, in all of the history. A fetch may hold five of them in memory. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_object: ByteSize,
    /// Most objects of one fetch, 1 to 4,294,967,295. A first clone fetches all of the history (Linux: about 10 million).
    /// Each takes up to 400 bytes of memory while it is indexed.
    pub max_objects: usize,
    /// Largest LFS object. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_lfs_object: ByteSize,
    /// Largest index of a Helm repository. Only what services follow of it is kept in memory. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_index: ByteSize,
    /// Largest archive of a chart. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_chart: ByteSize,
    /// Largest layer of an artifact in a registry. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_artifact: ByteSize,
    /// Most tags of a repository in a registry, 1 to 1,000,000. They are listed for ranges of versions, and for charts.
    pub max_tags: usize,
    /// Largest archive without its compression. At least `1MiB`.
    #[serde(with = "config::size")]
    pub max_unpacked: ByteSize,
    /// Lowest rate of a fetch in bytes per second, on average over four times `stall_timeout`. `"0B"`: any.
    #[serde(with = "config::size")]
    pub min_rate: ByteSize,
}

impl Default for UpstreamsConfig {
    fn default() -> Self {
        Self {
            hosts: Hosts::default(),
            private_addresses: false,
            max_refs: 100_000,
            max_pack: ByteSize::gib(16),
            max_mirror: ByteSize::gib(32),
            max_object: ByteSize(DEFAULT_MAX_OBJECT),
            // Twice as many as Linux has.
            max_objects: 20_000_000,
            max_lfs_object: ByteSize::gib(2),
            // As Helm's and Flux's own.
            max_index: ByteSize::mib(50),
            // As Flux's own.
            max_chart: ByteSize::mib(10),
            max_artifact: ByteSize::mib(256),
            max_tags: 10_000,
            max_unpacked: ByteSize::mib(512),
            min_rate: ByteSize::kib(1),
        }
    }
}

impl UpstreamsConfig {
    /// The errors of a repository's URL and proxy, as far as their host names show them; a poll checks the addresses too. Each
    /// error names the key of `[upstreams]`.
    pub fn errors(&self, repository: &RepositoryConfig) -> Vec<ValidationError> {
        let egress = self.egress_policy(repository.defined_by);
        let refused = |field: &'static str, url: &Endpoint| {
            // The repository reports an invalid URL itself.
            Some(ValidationError::new(field, egress.check_host(url.host()?).err()?.to_string()))
        };
        let mut errors: Vec<_> = refused("url", &repository.url).into_iter().collect();
        // A proxy is not subject to `hosts`.
        if egress.public_only {
            errors.extend(repository.proxy.as_ref().and_then(|proxy| refused("proxy", proxy)));
        }
        errors
    }

    pub(crate) fn egress_policy(&self, defined_by: DefinedBy) -> EgressPolicy {
        let public_only = defined_by == DefinedBy::Api && !self.private_addresses;
        EgressPolicy { hosts: self.hosts.clone(), public_only, ..EgressPolicy::default() }
    }

    /// The errors of the limits. Each names its key.
    pub fn errors_of_limits(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut wrong = |what: &str| errors.push(format!("[upstreams] {what}"));
        if !(1..=10_000_000).contains(&self.max_refs) {
            wrong("max_refs must be between 1 and 10000000");
        }
        if !(1..=1_000_000).contains(&self.max_tags) {
            wrong("max_tags must be between 1 and 1000000");
        }
        // The format of a pack has no larger count.
        if !(1..=u32::MAX as usize).contains(&self.max_objects) {
            wrong("max_objects must be between 1 and 4294967295");
        }
        for (key, size) in [
            ("max_pack", self.max_pack),
            ("max_mirror", self.max_mirror),
            ("max_object", self.max_object),
            ("max_lfs_object", self.max_lfs_object),
            ("max_index", self.max_index),
            ("max_chart", self.max_chart),
            ("max_artifact", self.max_artifact),
            ("max_unpacked", self.max_unpacked),
        ] {
            if size < ByteSize::mib(1) {
                wrong(&format!("{key} must be at least \"1MiB\""));
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(url: &str) -> RepositoryConfig {
        RepositoryConfig::new("shop".parse().unwrap(), url)
    }

    #[test]
    fn the_file_may_name_every_listed_host() {
        let mut upstreams = UpstreamsConfig::default();
        for url in ["https://git.example/x", "/srv/git/x", "file:///srv/x", "http://127.0.0.1/x", "git@10.0.0.1:x"] {
            assert_eq!(upstreams.errors(&repository(url)), [], "{url}");
        }
        upstreams.hosts = Hosts::new(["*.example".to_owned()]).unwrap();
        for url in ["https://git.example/x", "ssh://git@git.example/x", "/srv/git/x"] {
            assert_eq!(upstreams.errors(&repository(url)), [], "{url}");
        }
        for url in ["https://evil.org/x", "git@evil.org:x", "git://evil.org/x"] {
            let errors = upstreams.errors(&repository(url));
            assert!(errors[0].field == "url" && errors[0].detail.contains("`evil.org`"), "{errors:?}");
        }
    }

    #[test]
    fn operators_may_name_public_addresses_only() {
        let mut upstreams = UpstreamsConfig::default();
        let by_operator = |url: &str| RepositoryConfig { defined_by: DefinedBy::Api, ..repository(url) };
        assert_eq!(upstreams.errors(&by_operator("https://github.com/a/b")), []);
        for url in ["http://169.254.169.254/latest", "https://[::1]/x", "git@10.0.0.1:x", "git://127.0.0.1/x"] {
            let errors = upstreams.errors(&by_operator(url));
            assert!(errors[0].field == "url" && errors[0].detail.contains("no public address"), "{url}: {errors:?}");
        }
        let proxied = |url: &str| RepositoryConfig { proxy: Some("http://10.0.0.1:3128".into()), ..repository(url) };
        assert_eq!(upstreams.errors(&proxied("https://h/x")), []);
        let proxied = RepositoryConfig { defined_by: DefinedBy::Api, ..proxied("https://h/x") };
        assert_eq!(upstreams.errors(&proxied)[0].field, "proxy");
        assert!(upstreams.egress_policy(DefinedBy::Api).public_only);
        assert!(!upstreams.egress_policy(DefinedBy::File).public_only);
        upstreams.private_addresses = true;
        assert_eq!(upstreams.errors(&by_operator("https://10.0.0.1/x")), []);
    }
}
