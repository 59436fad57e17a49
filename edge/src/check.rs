//! `--check-config`: checks the files and directories that a configuration names, without starting an edge.
//!
//! Not checked: whether another program uses the addresses or the cache's directory.

use std::fmt::Display;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::access_files::AccessFiles;
use weir_runtime::admin::METRICS_TOKEN;
use weir_runtime::failure;
use weir_runtime::file_check::FileCheck;
use weir_runtime::identity::Role;
use weir_runtime::memory_limit::memory_limit;
use weir_runtime::operator_token::{OPERATOR_TOKEN, OperatorToken};
use weir_runtime::secret_file::mode_warnings;
use weir_runtime::tls::{self, Purpose};
use weir_runtime::writable_directory;

use crate::access;
use crate::config::Config;

/// Prints every error of a configuration and of the files that it names. Returns whether an edge can start.
pub fn config(program: &str, file: &Path) -> bool {
    match Config::read(file) {
        Ok(config) => files(&config).report(program, config.validate().err()),
        Err(error) => {
            failure::report(program, &error.into());
            false
        }
    }
}

/// Checks the files that a configuration names. Blocks.
#[must_use]
pub fn files(config: &Config) -> FileCheck {
    let now = SystemTime::now();
    let mut found = FileCheck { warnings: warnings(config), ..FileCheck::default() };
    let mut report = |table: &str, error: &dyn Display| found.errors.push(format!("{table}: {error}"));
    for error in tls::check_pair(&config.tls.certificate, &config.tls.key, Purpose::Server, now) {
        report("[tls]", &error);
    }
    if let Some(Err(error)) = config.auth.client_ca.as_deref().map(tls::read_roots) {
        report("[auth] client_ca", &error);
    }
    if let Some(Err(error)) = config.peers.ca.as_deref().map(tls::read_roots) {
        report("[peers] ca", &error);
    }
    let keys = config.auth.keys.iter().map(|key| AccessFiles { keys: vec![key.clone()], deny: None });
    let deny = AccessFiles { keys: Vec::new(), deny: config.auth.deny.clone() };
    let each: Vec<_> = keys.chain([deny]).filter_map(|file| file.read().err()).collect();
    each.iter().for_each(|error| report("[auth]", error));
    let together = AccessFiles { keys: config.auth.keys.clone(), deny: config.auth.deny.clone() };
    if let (true, Err(error)) = (each.is_empty(), together.read()) {
        report("[auth]", &error);
    }
    if let Err(error) = access::read_issuers(&config.auth.issuers) {
        report("[[auth.issuer]]", &format!("{error:#}"));
    }
    for ca in config.auth.issuers.iter().filter_map(|issuer| issuer.ca.as_deref()) {
        if let Err(error) = tls::read_roots(ca) {
            report("[[auth.issuer]] ca", &error);
        }
    }
    let tokens =
        [(OPERATOR_TOKEN, &config.admin.operator_token_file), (METRICS_TOKEN, &config.admin.metrics_token_file)];
    for (key, file) in tokens.into_iter().filter(|_| config.admin_listen.is_some()) {
        if let Some(Err(error)) = file.as_deref().map(|file| OperatorToken::open(key, file)) {
            report("[admin]", &error);
        }
    }
    let (dir, disk) = (&config.cache.dir, config.cache.disk);
    if !dir.as_os_str().is_empty() {
        if let Err(error) = writable_directory::check(dir) {
            report("[cache] dir", &error);
        } else if let Some(bytes) = writable_directory::capacity(dir).filter(|bytes| *bytes < disk.as_u64()) {
            let has = bytesize::ByteSize(bytes);
            report("[cache] disk", &format!("{disk} is more than the {has} of the disk with {}", dir.display()));
        }
    }
    let origins = config.origins.iter().map(|origin| ("[[origin]]", origin));
    let role = Purpose::Client(Role::Edge, Some(&config.trust_domain));
    for (table, origin) in origins.chain(config.shields.iter().map(|shield| ("[[shield]]", shield))) {
        let table = format!("{table} {}", origin.url);
        let pair = tls::check_pair(&origin.client_certificate, &origin.client_key, role, now);
        for error in pair.into_iter().chain(tls::read_roots(&origin.ca).err()) {
            report(&table, &error);
        }
    }
    found
}

/// The secret files that other users can read or change, and bounds of memory that do not fit into this container.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let admin = &config.admin;
    let own =
        [("[tls] key", Some(&config.tls.key)), ("[admin] operator_token_file", admin.operator_token_file.as_ref())];
    let own = own.into_iter().chain([("[admin] metrics_token_file", admin.metrics_token_file.as_ref())]);
    let origins = config.origins.iter().map(|origin| ("[[origin]] client_key", Some(&origin.client_key)));
    let shields = config.shields.iter().map(|shield| ("[[shield]] client_key", Some(&shield.client_key)));
    let named = own.chain(origins).chain(shields);
    let mut found = mode_warnings(named.filter_map(|(key, file)| Some((key.to_owned(), file?.as_path()))));
    found.extend(memory_limit().and_then(|limit| memory_warning(config.memory(), limit)));
    found
}

fn memory_warning(bounds: u64, limit: u64) -> Option<String> {
    (bounds > limit).then(|| {
        let (bounds, limit) = (bytesize::ByteSize(bounds), bytesize::ByteSize(limit));
        format!(
            "the bounds of memory allow {bounds}, and the control group {limit}: the kernel may end the edge. Lower them \
             (the configuration reference of edge.toml names them), or raise the limit"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CacheConfig, OriginConfig, TlsConfig};

    #[test]
    fn unusable_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        weir_runtime::certificates::write(dir.path(), &[]).unwrap();
        let origin = OriginConfig::new(
            "https://127.0.0.1:7400",
            file("ca.pem"),
            file("edge-client.pem"),
            file("edge-client.key"),
        );
        let mut cache = CacheConfig::new(file("new/cache"));
        cache.disk = bytesize::ByteSize::mib(1);
        let tls = TlsConfig { certificate: file("edge.pem"), key: file("edge.key") };
        let good = Config::new("edge-1".parse().unwrap(), "127.0.0.1:0".parse().unwrap(), tls, cache, vec![origin]);
        let found = |change: &dyn Fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            files(&config).errors
        };
        assert_eq!(found(&|_| {}), [""; 0]);
        type Change<'a> = &'a dyn Fn(&mut Config);
        let changes: [(Change<'_>, &str); 6] = [
            (&|c| c.cache.disk = bytesize::ByteSize::pib(4), "[cache] disk: "),
            (&|c| c.cache.dir = "/proc/weir/cache".into(), "[cache] dir: "),
            (&|c| c.origins[0].ca = file("edge.pem"), "[[origin]]"),
            (&|c| c.origins[0].client_certificate = file("edge.pem"), "edge.pem"),
            (&|c| (c.tls.certificate, c.tls.key) = (file("agent.pem"), file("agent.key")), "`serverAuth`"),
            (&|c| c.auth.client_ca = Some(file("agent.pem")), "[auth] client_ca: "),
        ];
        for (change, named) in changes {
            let errors = found(change).join("\n");
            assert!(errors.contains(named), "{named}: {errors}");
        }
        assert_eq!(warnings(&good), [""; 0]);
        assert_eq!(memory_warning(good.memory(), good.memory()), None);
        assert!(
            memory_warning(good.memory(), 2 << 30).unwrap().contains("allow 3.5 GiB, and the control group 2.0 GiB")
        );
    }
}
