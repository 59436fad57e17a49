//! Checks the files that a configuration names, and collects all errors.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::access_files::AccessFiles;
use weir_runtime::admin::METRICS_TOKEN;
use weir_runtime::file_check::FileCheck;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::tls::{self, Purpose, TlsError};
use weir_runtime::{key_pair, secret_file, writable_directory};
use weir_source::PublicKey;
use weir_upstream::RepositoryConfig;

use super::{Config, EtcdConfig, TlsConfig};
use crate::webhook::Secret;

impl Config {
    /// Reads the files that the configuration names, for `--check-config`. If there are no errors, the origin can start.
    pub fn check_files(&self) -> FileCheck {
        let mut check = FileCheck::default();
        check_tls("[tls]", &self.tls, &mut check);
        check.record("[cluster] needs another [tls] certificate", self.check_member_certificate().err());
        let of_operators = self.operator_api.tls(&self.tls);
        if self.operator_listen.is_some() && of_operators != self.tls {
            check_tls("[operator_api]", &of_operators, &mut check);
        }
        check.record("[operator_api]", self.operator_api.token().err());
        if let Some(dir) = self.operator_api.secrets_dir.as_ref().filter(|dir| !dir.is_dir()) {
            check.missing.push(format!("[operator_api] `secrets_dir` {} does not exist (yet)", dir.display()));
        }
        let access = self.access.files();
        let keys = access.keys.iter().map(|key| AccessFiles { keys: vec![key.clone()], deny: None });
        let deny = AccessFiles { keys: Vec::new(), deny: access.deny.clone() };
        let each = keys.chain([deny]).map(|file| check.record("[access]", file.read().err()));
        // Counted, so that every file is read.
        if each.filter(|good| !good).count() == 0 {
            check.record("[access]", access.read().err());
        }
        let keys = self.signing.keys.iter();
        let each = keys.map(|key| check.record("[signing] keys", key_pair::read_private(key).err()));
        // Counted, so that every file is read.
        if each.filter(|good| !good).count() == 0 {
            check.errors.extend(self.signing.read().err().map(|error| error.to_string()));
        }
        if let Some(file) = &self.admin.metrics_token_file {
            check.record("[admin]", OperatorToken::open(METRICS_TOKEN, file).err());
        }
        let data_dir = writable_directory::check(&self.data_dir).err();
        check.record(&format!("data_dir = \"{}\"", self.data_dir.display()), data_dir);
        check.errors.extend(self.store.file_errors());
        if let Some(etcd) = self.etcd() {
            check.errors.extend(etcd.tls().err());
        }
        for repository in &self.repositories {
            check_repository(repository, &mut check);
        }
        check.warnings = self.warnings();
        check
    }

    /// Checks that the certificate of `listen` opens the other origins of the cluster too.
    ///
    /// # Errors
    /// It does not, or cannot be read.
    pub(crate) fn check_member_certificate(&self) -> Result<(), TlsError> {
        match self.cluster {
            Some(_) => tls::check_role(&self.tls.certificate, Role::Origin, Some(&self.trust_domain)),
            None => Ok(()),
        }
    }

    fn etcd(&self) -> Option<&EtcdConfig> {
        self.cluster.as_ref()?.etcd.as_ref()
    }

    /// What works, and should not stay so: files of secrets that others can read or change, and keys that will go.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.secret_warnings();
        if self.has_former_operator {
            warnings.push(
                "[operator] is called [operator_api] now; the next release does not read the old name".to_owned(),
            );
        }
        // A new hub begins with the token, and has nobody to tell apart yet.
        if self.operator_api.operator_token_file.is_some() && !self.operators.is_empty() {
            warnings.push(
                "[operator_api] `operator_token_file`: everybody with this token is still an admin, and the audit log cannot tell \
                 them apart; give each operator an [[operator]] with a role"
                    .to_owned(),
            );
        }
        warnings
    }

    fn secret_warnings(&self) -> Vec<String> {
        let own = [
            ("[tls] `key`", Some(&self.tls.key)),
            ("[operator_api] `key`", self.operator_api.key.as_ref()),
            ("[operator_api] `operator_token_file`", self.operator_api.operator_token_file.as_ref()),
            ("[admin] `metrics_token_file`", self.admin.metrics_token_file.as_ref()),
            ("[store] `secret_access_key_file`", self.store.secret_access_key_file.as_ref()),
            ("[cluster] `etcd.key`", self.etcd().and_then(|etcd| etcd.key.as_ref())),
        ];
        let own = own.into_iter().filter_map(|(key, file)| Some((key.to_owned(), file?.as_path())));
        let of_repositories = self.repositories.iter().flat_map(|repository| {
            let what = move |key| format!("repository `{}`: `{key}`", repository.name);
            repository.secrets().map(move |(key, file)| (what(key), file))
        });
        secret_file::mode_warnings(own.chain(of_repositories))
    }
}

/// Checks the named files. The origin starts without them, but a poll or a webhook fails.
fn check_repository(repository: &RepositoryConfig, check: &mut FileCheck) {
    let name = &repository.name;
    for (key, file) in repository.files() {
        let what = format!("repository `{name}`: `{key}`");
        check_later_file(&what, file, check, |contents| (!contents.trim_ascii().is_empty()).then_some(()));
    }
    if let Some(ca) = repository.ca.as_ref().filter(|ca| fs::read(ca).is_ok_and(|read| !read.trim_ascii().is_empty())) {
        check.record(&format!("repository `{name}`: `ca`"), tls::read_roots(ca).err());
    }
    for file in repository.verify.iter().flat_map(|verify| &verify.cosign_keys) {
        if let Some(pem) = fs::read(file).ok().filter(|pem| !pem.trim_ascii().is_empty()) {
            let what = format!("repository `{name}`: `verify.cosign_keys` {}", file.display());
            check.record(&what, PublicKey::from_pem(&pem).err());
        }
    }
    for file in &repository.webhook_secret_files {
        let what = format!("repository `{name}`: `webhook_secret_files`");
        check_later_file(&what, file, check, |secret| Secret::from_file(secret).map(drop));
    }
}

/// Checks a file that is read whenever it is needed.
fn check_later_file(what: &str, file: &Path, check: &mut FileCheck, is_usable: impl Fn(&[u8]) -> Option<()>) {
    let shown = file.display();
    match fs::read(file) {
        Ok(contents) if is_usable(&contents).is_some() => {}
        Ok(_) => check.errors.push(format!("{what} {shown} is empty")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            check.missing.push(format!("{what} {shown} does not exist (yet)"));
        }
        Err(error) => check.errors.push(format!("{what} {shown}: {error}")),
    }
}

fn check_tls(what: &str, TlsConfig { certificate, key, client_ca }: &TlsConfig, check: &mut FileCheck) {
    let errors = tls::check_pair(certificate, key, Purpose::Server, SystemTime::now());
    for error in errors.into_iter().chain(tls::read_roots(client_ca).err()) {
        check.record(what, Some(error));
    }
}
