//! `[upstreams]`: where upstreams may be, how much is taken from one, and what holds for those that are named at run time.

use std::sync::Arc;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

use super::RepositoryConfig;
use super::fault::Fault;
use crate::source::{
    DEFAULT_MAX_LFS_OBJECT, DEFAULT_MAX_MIRROR, DEFAULT_MAX_OBJECT, DEFAULT_MAX_OBJECTS, DEFAULT_MAX_PACK,
    DEFAULT_MAX_REFS, DEFAULT_MIN_RATE, EgressPolicy, Endpoint, Hosts, Upstream,
};

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
    /// Lowest rate of a fetch in bytes per second, on average over four times `stall_timeout`. `"0B"`: any.
    #[serde(with = "config::size")]
    pub min_rate: ByteSize,
}

impl Default for UpstreamsConfig {
    fn default() -> Self {
        Self {
            hosts: Hosts::default(),
            private_addresses: false,
            max_refs: DEFAULT_MAX_REFS,
            max_pack: ByteSize(DEFAULT_MAX_PACK),
            max_mirror: ByteSize(DEFAULT_MAX_MIRROR),
            max_object: ByteSize(DEFAULT_MAX_OBJECT),
            max_objects: DEFAULT_MAX_OBJECTS,
            max_lfs_object: ByteSize(DEFAULT_MAX_LFS_OBJECT),
            min_rate: ByteSize(DEFAULT_MIN_RATE),
        }
    }
}

/// Who named a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// The configuration file, whose author may do anything.
    #[default]
    File,
    /// Somebody who may create repositories while the origin runs.
    Operator,
}

impl UpstreamsConfig {
    /// A repository's upstream, within these bounds.
    pub fn upstream(&self, repository: &RepositoryConfig) -> Upstream {
        Upstream {
            egress: Arc::new(self.egress(repository.named_by)),
            max_refs: self.max_refs,
            max_pack: self.max_pack.as_u64(),
            max_mirror: self.max_mirror.as_u64(),
            max_object: self.max_object.as_u64(),
            max_objects: self.max_objects,
            max_lfs_object: self.max_lfs_object.as_u64(),
            min_rate: self.min_rate.as_u64(),
            ..repository.upstream()
        }
    }

    /// Where a repository leads that may not be asked, as far as its document says: by the rule of a poll, which judges
    /// addresses too, when it looks names up. Each names the key of `[upstreams]` that says so.
    pub fn faults(&self, repository: &RepositoryConfig) -> Vec<Fault> {
        let egress = self.egress(repository.named_by);
        let refused = |field: &'static str, url: &Endpoint| {
            // What is no address is told by the repository's own faults.
            Some(Fault::new(field, egress.check_host(url.host()?).err()?.to_string()))
        };
        let mut faults: Vec<_> = refused("url", &repository.url).into_iter().collect();
        // Who may go anywhere may have any proxy.
        if egress.public_only {
            faults.extend(repository.proxy.as_ref().and_then(|proxy| refused("proxy", proxy)));
        }
        faults
    }

    fn egress(&self, named_by: NamedBy) -> EgressPolicy {
        let public_only = named_by == NamedBy::Operator && !self.private_addresses;
        EgressPolicy { hosts: self.hosts.clone(), public_only, ..EgressPolicy::default() }
    }

    pub(super) fn bounds_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut wrong = |what: &str| faults.push(format!("[upstreams] {what}"));
        if !(1..=10_000_000).contains(&self.max_refs) {
            wrong("max_refs must be between 1 and 10000000");
        }
        // A pack cannot say that it has more.
        if !(1..=u32::MAX as usize).contains(&self.max_objects) {
            wrong("max_objects must be between 1 and 4294967295");
        }
        for (key, size) in [
            ("max_pack", self.max_pack),
            ("max_mirror", self.max_mirror),
            ("max_object", self.max_object),
            ("max_lfs_object", self.max_lfs_object),
        ] {
            if size < ByteSize::mib(1) {
                wrong(&format!("{key} must be at least \"1MiB\""));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(url: &str) -> RepositoryConfig {
        RepositoryConfig::new("shop".parse().unwrap(), url)
    }

    #[test]
    fn who_writes_the_file_may_go_anywhere_that_is_listed() {
        let mut upstreams = UpstreamsConfig::default();
        for url in ["https://git.example/x", "/srv/git/x", "file:///srv/x", "http://127.0.0.1/x", "git@10.0.0.1:x"] {
            assert_eq!(upstreams.faults(&repository(url)), [], "{url}");
        }
        upstreams.hosts = Hosts::new(["*.example".to_owned()]).unwrap();
        for url in ["https://git.example/x", "ssh://git@git.example/x", "/srv/git/x"] {
            assert_eq!(upstreams.faults(&repository(url)), [], "{url}");
        }
        for url in ["https://evil.org/x", "git@evil.org:x", "git://evil.org/x"] {
            let faults = upstreams.faults(&repository(url));
            assert!(faults[0].field == "url" && faults[0].detail.contains("`evil.org`"), "{faults:?}");
        }
    }

    #[test]
    fn who_creates_at_run_time_does_not_reach_the_neighbours() {
        let mut upstreams = UpstreamsConfig::default();
        let by_operator = |url: &str| RepositoryConfig { named_by: NamedBy::Operator, ..repository(url) };
        assert_eq!(upstreams.faults(&by_operator("https://github.com/a/b")), []);
        for url in ["http://169.254.169.254/latest", "https://[::1]/x", "git@10.0.0.1:x", "git://127.0.0.1/x"] {
            let faults = upstreams.faults(&by_operator(url));
            assert!(faults[0].field == "url" && faults[0].detail.contains("no public address"), "{url}: {faults:?}");
        }
        let proxied = |url: &str| RepositoryConfig { proxy: Some("http://10.0.0.1:3128".into()), ..repository(url) };
        assert_eq!(upstreams.faults(&proxied("https://h/x")), []);
        let proxied = RepositoryConfig { named_by: NamedBy::Operator, ..proxied("https://h/x") };
        assert_eq!(upstreams.faults(&proxied)[0].field, "proxy");
        assert!(upstreams.upstream(&by_operator("https://h/x")).egress.public_only);
        assert!(!upstreams.upstream(&repository("https://h/x")).egress.public_only);
        upstreams.private_addresses = true;
        assert_eq!(upstreams.faults(&by_operator("https://10.0.0.1/x")), []);
    }
}
