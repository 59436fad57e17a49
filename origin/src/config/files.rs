//! Whether the files that a configuration names can be used: each by itself, and all faults at once.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::access_files::AccessFiles;
use weir_runtime::tls::{self, Purpose};
use weir_runtime::{key_pair, secret_file, writable_directory};

use super::{Config, EtcdConfig, TlsConfig};

/// What opening the files comes to.
#[derive(Debug, Default)]
pub struct FileFaults {
    /// What keeps the origin from starting, or will keep it from doing what it was told.
    pub faults: Vec<String>,
    /// What is not there, and may come while the origin runs.
    pub missing: Vec<String>,
    /// What the origin starts with, and somebody should look at.
    pub warnings: Vec<String>,
}

impl FileFaults {
    /// A fault, if there is one. True when there is none.
    pub(super) fn fault(&mut self, called: &str, error: Option<impl Display>) -> bool {
        let good = error.is_none();
        self.faults.extend(error.map(|error| format!("{called}: {error}")));
        good
    }

    /// A file that is read each time it is needed.
    pub(super) fn may_come_later(&mut self, called: &str, file: &Path, is_usable: impl Fn(&[u8]) -> Option<()>) {
        let shown = file.display();
        match fs::read(file) {
            Ok(contents) if is_usable(&contents).is_some() => {}
            Ok(_) => self.faults.push(format!("{called} {shown} is empty")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.missing.push(format!("{called} {shown} is not there (yet)"));
            }
            Err(error) => self.faults.push(format!("{called} {shown}: {error}")),
        }
    }

    fn tls(&mut self, called: &str, TlsConfig { certificate, key, client_ca }: &TlsConfig) {
        let faults = tls::check_pair(certificate, key, Purpose::Server, SystemTime::now());
        for error in faults.into_iter().chain(tls::read_roots(client_ca).err()) {
            self.fault(called, Some(error));
        }
    }
}

impl Config {
    /// Opens the files that the configuration names, for `--check-config`: what is found to be good is good for a start.
    pub fn check_files(&self) -> FileFaults {
        let mut found = FileFaults::default();
        found.tls("[tls]", &self.tls);
        let of_operators = self.operator.tls(&self.tls);
        if self.operator_listen.is_some() && of_operators != self.tls {
            found.tls("[operator]", &of_operators);
        }
        found.fault("[operator]", self.operator.token().err());
        if let Some(dir) = self.operator.secrets_dir.as_ref().filter(|dir| !dir.is_dir()) {
            found.missing.push(format!("[operator] `secrets_dir` {} is not there (yet)", dir.display()));
        }
        let access = self.access.files();
        let keys = access.keys.iter().map(|key| AccessFiles { keys: vec![key.clone()], deny: None });
        let deny = AccessFiles { keys: Vec::new(), deny: access.deny.clone() };
        let each = keys.chain([deny]).map(|file| found.fault("[access]", file.read().err()));
        // Each is looked at.
        if each.filter(|good| !good).count() == 0 {
            found.fault("[access]", access.read().err());
        }
        let each = self.signing.keys.iter().map(|key| found.fault("[signing] keys", key_pair::read_private(key).err()));
        // Each is looked at.
        if each.filter(|good| !good).count() == 0 {
            let together = self.signing.read().err();
            found.faults.extend(together.map(|error| error.to_string()));
        }
        found.fault(
            &format!("data_dir = \"{}\"", self.data_dir.display()),
            writable_directory::check(&self.data_dir).err(),
        );
        self.store.check_files(&mut found);
        if let Some(etcd) = self.etcd() {
            etcd.check_files(&mut found);
        }
        for repository in &self.repositories {
            repository.check_files(&mut found);
        }
        found.warnings = self.secret_warnings();
        found
    }

    fn etcd(&self) -> Option<&EtcdConfig> {
        self.cluster.as_ref()?.etcd.as_ref()
    }

    /// The files of secrets that others can read or change.
    pub fn secret_warnings(&self) -> Vec<String> {
        let own = [
            ("[tls] `key`", Some(&self.tls.key)),
            ("[operator] `key`", self.operator.key.as_ref()),
            ("[operator] `operator_token_file`", self.operator.operator_token_file.as_ref()),
            ("[store] `secret_access_key_file`", self.store.secret_access_key_file.as_ref()),
            ("[cluster] `etcd.key`", self.etcd().and_then(|etcd| etcd.key.as_ref())),
        ];
        let own = own.into_iter().filter_map(|(key, file)| secret_file::mode_warning(key, file?));
        let warnings = own.chain(self.repositories.iter().flat_map(|repository| {
            let called = move |key| format!("repository `{}`: `{key}`", repository.name);
            repository.secrets().filter_map(move |(key, file)| secret_file::mode_warning(&called(key), file))
        }));
        warnings.collect()
    }
}
