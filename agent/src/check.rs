//! `--check-config`: checks the files that a configuration names, without starting an agent.
//!
//! Not checked: whether another program uses the address or the root.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::admin::METRICS_TOKEN;
use weir_runtime::file_check::FileCheck;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::secret_file::mode_warnings;
use weir_runtime::tls::{self, Purpose};
use weir_runtime::writable_directory;

use crate::config::Config;
use crate::verify::read_keys;

/// Checks the files that a configuration names. Blocks.
#[must_use]
pub fn files(config: &Config) -> FileCheck {
    let mut found = FileCheck { warnings: warnings(config), ..FileCheck::default() };
    let mut report = |key: &str, error: &dyn Display| found.errors.push(format!("{key}: {error}"));
    // `Config::validate` reports a missing key.
    if !config.ca.as_os_str().is_empty()
        && let Err(error) = tls::read_roots(&config.ca)
    {
        report("ca", &error);
    }
    if let Some((certificate, key)) = config.client_certificate.as_deref().zip(config.client_key.as_deref()) {
        let errors = tls::check_pair(certificate, key, Purpose::Client(Role::Agent, None), SystemTime::now());
        errors.iter().for_each(|error| report("client_certificate", error));
    }
    if !config.root.as_os_str().is_empty()
        && let Err(error) = writable_directory::check(&config.root)
    {
        report("root", &error);
    }
    for entry in config.trust.iter().filter(|entry| !entry.keys.as_os_str().is_empty()) {
        if let Err(error) = read_keys(&entry.keys) {
            report("trust", &error);
        }
    }
    if let Some(Err(error)) =
        config.admin.metrics_token_file.as_deref().map(|file| OperatorToken::open(METRICS_TOKEN, file))
    {
        report("[admin]", &error);
    }
    if let Some(file) = config.token_file.as_deref() {
        match token_error(file) {
            Some(error) => report("token_file", &error),
            None if !file.exists() => {
                found.missing.push(format!("token_file: {} does not exist (yet)", file.display()));
            }
            None => {}
        }
    }
    found
}

/// Why an existing file has no token. Never contains the file's contents.
fn token_error(file: &Path) -> Option<String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("{} cannot be read: {error}", file.display())),
    };
    let (token, file) = (text.trim(), file.display());
    if token.contains("PRIVATE KEY") {
        return Some(format!("{file} is a private key: name a token that `weir token issue` made with it"));
    }
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_token).then(|| format!("{file} contains no token: it must be one line, as `weir token issue` writes it"))
}

/// The secret files that other users can read or change.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let metrics_token = &config.admin.metrics_token_file;
    let secrets =
        [("client_key", &config.client_key), ("token_file", &config.token_file), (METRICS_TOKEN, metrics_token)];
    mode_warnings(secrets.into_iter().filter_map(|(key, file)| Some((key.to_owned(), file.as_deref()?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrustConfig;

    #[test]
    fn unusable_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        weir_runtime::certificates::write(dir.path(), &[]).unwrap();
        fs::write(file("token"), "a.b.c\n").unwrap();
        let mut good = Config::new(Vec::new(), file("ca.pem"), file("new/root"));
        good.token_file = Some(file("token"));
        (good.client_certificate, good.client_key) = (Some(file("agent.pem")), Some(file("agent.key")));
        let errors_of = |change: &dyn Fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            files(&config).errors.join("\n")
        };
        assert_eq!(errors_of(&|_| {}), "");
        type Change<'a> = &'a dyn Fn(&mut Config);
        let trust = |keys| vec![TrustConfig { services: "*".parse().unwrap(), keys }];
        fs::write(file("empty.pub"), "# no key\n").unwrap();
        let changes: [(Change<'_>, &str); 9] = [
            (&|c| c.trust = trust(file("missing.pub")), "trust: "),
            (&|c| c.trust = trust(file("empty.pub")), "has no key"),
            (&|c| c.ca = file("agent.pem"), "ca: "),
            (&|c| c.token_file = Some(file("agent.key")), "is a private key"),
            (&|c| c.token_file = Some(file("agent.pem")), "contains no token"),
            (&|c| c.token_file = Some(dir.path().to_owned()), "cannot be read"),
            (&|c| c.client_key = Some(file("edge.key")), "edge.key does not belong to it"),
            (&|c| c.client_certificate = Some(file("edge.pem")), "`clientAuth`"),
            (&|c| c.root = "/proc/weir/root".into(), "root: "),
        ];
        for (change, named) in changes {
            let errors = errors_of(change);
            assert!(errors.contains(named), "{named}: {errors}");
        }
        assert_eq!(warnings(&good).len(), 1, "the token was written for all to read");
    }
}
