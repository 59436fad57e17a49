//! What keeps an agent from starting besides the values of its configuration, found without starting it: `--check-config`.
//!
//! Not looked at are an address that another program listens on, and the contents of the root, which another agent may use.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::identity::Role;
use weir_runtime::secret_file::mode_warning;
use weir_runtime::tls::{self, Purpose};
use weir_runtime::writable_directory;

use crate::config::Config;

/// What opening the files of a configuration comes to, a sentence each.
#[derive(Debug, Default)]
pub struct Findings {
    /// What keeps the agent from starting, or from being let in.
    pub faults: Vec<String>,
    /// What is not there, and may come while it runs.
    pub missing: Vec<String>,
}

/// Looks at the files that a configuration names. Blocks.
#[must_use]
pub fn files(config: &Config) -> Findings {
    let mut found = Findings::default();
    let mut fault = |key: &str, error: &dyn Display| found.faults.push(format!("{key}: {error}"));
    // One that is not named is a fault of the configuration itself.
    if !config.ca.as_os_str().is_empty()
        && let Err(error) = tls::read_roots(&config.ca)
    {
        fault("ca", &error);
    }
    if let Some((certificate, key)) = config.client_certificate.as_deref().zip(config.client_key.as_deref()) {
        let faults = tls::check_pair(certificate, key, Purpose::Client(Role::Agent), SystemTime::now());
        faults.iter().for_each(|error| fault("client_certificate", error));
    }
    if !config.root.as_os_str().is_empty()
        && let Err(error) = writable_directory::check(&config.root)
    {
        fault("root", &error);
    }
    if let Some(file) = config.token_file.as_deref() {
        match token_fault(file) {
            Some(error) => fault("token_file", &error),
            None if !file.exists() => {
                found.missing.push(format!("token_file: {} is not there (yet)", file.display()));
            }
            None => {}
        }
    }
    found
}

/// Why a file that is there holds no token. Says nothing of what it holds.
fn token_fault(file: &Path) -> Option<String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("{} cannot be read: {error}", file.display())),
    };
    let (token, file) = (text.trim(), file.display());
    if token.contains("PRIVATE KEY") {
        return Some(format!("{file} holds a private key: name a token that `weir token issue` made with it"));
    }
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_token).then(|| format!("{file} holds no token: it must be one line, as `weir token issue` writes it"))
}

/// The files of secrets that others can read or change.
#[must_use]
pub fn warnings(config: &Config) -> Vec<String> {
    let secrets = [("client_key", &config.client_key), ("token_file", &config.token_file)];
    secrets.into_iter().filter_map(|(key, file)| mode_warning(key, file.as_deref()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_agent_could_use_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        weir_runtime::certificates::write(dir.path(), &[]).unwrap();
        fs::write(file("token"), "a.b.c\n").unwrap();
        let mut good = Config::new(Vec::new(), file("ca.pem"), file("new/root"));
        good.token_file = Some(file("token"));
        (good.client_certificate, good.client_key) = (Some(file("agent.pem")), Some(file("agent.key")));
        let faults = |change: &dyn Fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            files(&config).faults.join("\n")
        };
        assert_eq!(faults(&|_| {}), "");
        type Change<'a> = &'a dyn Fn(&mut Config);
        let changes: [(Change<'_>, &str); 7] = [
            (&|c| c.ca = file("agent.pem"), "ca: "),
            (&|c| c.token_file = Some(file("agent.key")), "holds a private key"),
            (&|c| c.token_file = Some(file("agent.pem")), "holds no token"),
            (&|c| c.token_file = Some(dir.path().to_owned()), "cannot be read"),
            (&|c| c.client_key = Some(file("edge.key")), "edge.key is not its own"),
            (&|c| c.client_certificate = Some(file("edge.pem")), "`clientAuth`"),
            (&|c| c.root = "/proc/weir/root".into(), "root: "),
        ];
        for (change, named) in changes {
            let told = faults(change);
            assert!(told.contains(named), "{named}: {told}");
        }
        assert_eq!(warnings(&good).len(), 1, "the token was written for all to read");
    }
}
