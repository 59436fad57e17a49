//! What keeps an agent from starting besides its configuration's own sense, found without starting it: `--check-config`.
//!
//! Not looked at are an address that somebody else listens on, and what stands in the root, which another agent may be
//! using.

use std::fmt::Display;
use std::time::SystemTime;

use weir_runtime::directory_to_be::can_be_a_directory;
use weir_runtime::tls;

use crate::config::Config;

/// What opening the files of a configuration comes to, a sentence each.
#[derive(Debug, Default)]
pub struct Findings {
    /// What keeps the agent from starting.
    pub faults: Vec<String>,
    /// What is not there, and may come while it runs.
    pub missing: Vec<String>,
}

/// Looks at the files that a configuration names. Blocks.
#[must_use]
pub fn files(config: &Config) -> Findings {
    let mut found = Findings::default();
    let mut good = found.fault("ca", tls::read_roots(&config.ca).map(drop));
    let identity = config.client_certificate.as_deref().zip(config.client_key.as_deref());
    if let Some((certificate, key)) = identity {
        good &= found.fault("client_certificate", tls::read_certificates(certificate, "a certificate").map(drop));
        good &= found.fault("client_key", tls::read_key(key).map(drop));
        if good {
            found.fault("client_certificate", tls::check_end(certificate, SystemTime::now()));
        }
    }
    // Each by itself first: what is wrong with one file is no reason not to look at the next.
    if good {
        found.fault("client_certificate", tls::client_config(&config.ca, identity).map(drop));
    }
    if let Some(token) = config.token_file.as_deref().filter(|token| !token.exists()) {
        found.missing.push(format!("token_file: {} is not there (yet)", token.display()));
    }
    found.fault("root", can_be_a_directory(&config.root));
    found
}

impl Findings {
    /// True when there is no fault.
    fn fault(&mut self, called: &str, result: Result<(), impl Display>) -> bool {
        let fault = result.err().map(|error| format!("{called}: {error}"));
        let good = fault.is_none();
        self.faults.extend(fault);
        good
    }
}
