//! What keeps an edge from starting besides its configuration's own sense, found without starting it: `--check-config`.
//!
//! Not looked at are addresses that somebody else listens on, and what stands in the cache's directory, which another edge
//! may be using.

use std::fmt::Display;
use std::time::SystemTime;

use weir_shared::process::access_files::AccessFiles;
use weir_shared::process::directory_to_be::can_be_a_directory;
use weir_shared::process::operator_token::OperatorToken;
use weir_shared::process::tls;

use crate::config::Config;
use crate::origin_client::Clients;
use crate::reload::Handshakes;

/// All that is wrong with the files that a configuration names, a sentence each. Blocks.
#[must_use]
pub fn faults(config: &Config) -> Vec<String> {
    let mut found = Faults::default();
    let certificate = tls::read_certificates(&config.tls.certificate, "a certificate").map(drop);
    let mut good = found.note("[tls]", certificate);
    good &= found.note("[tls]", tls::read_key(&config.tls.key).map(drop));
    if let Some(ca) = &config.auth.client_ca {
        good &= found.note("[auth] client_ca", tls::read_roots(ca).map(drop));
    }
    // Each by itself first: what is wrong with one file is no reason not to look at the next.
    if good {
        found.note("[tls]", Handshakes::of(config).map(drop));
        found.note("[tls]", tls::check_end(&config.tls.certificate, SystemTime::now()));
    }
    for origin in &config.origins {
        let called = format!("[[origin]] {}", origin.url);
        let certificate = tls::read_certificates(&origin.client_certificate, "a certificate").map(drop);
        let mut good = found.note(&called, tls::read_roots(&origin.ca).map(drop));
        good &= found.note(&called, certificate);
        good &= found.note(&called, tls::read_key(&origin.client_key).map(drop));
        if good {
            found.note(&called, Clients::read(origin).map(drop).map_err(|error| format!("{error:#}")));
            found.note(&called, tls::check_end(&origin.client_certificate, SystemTime::now()));
        }
    }
    let mut good = true;
    for key in &config.auth.keys {
        let alone = AccessFiles { keys: vec![key.clone()], deny: None };
        good &= found.note("[auth]", alone.read().map(drop));
    }
    good &= found.note("[auth]", AccessFiles { keys: Vec::new(), deny: config.auth.deny.clone() }.read().map(drop));
    if good {
        let all = AccessFiles { keys: config.auth.keys.clone(), deny: config.auth.deny.clone() };
        found.note("[auth]", all.read().map(drop));
    }
    if let Some(file) = config.admin.operator_token_file.as_deref().filter(|_| config.admin_listen.is_some()) {
        found.note("[admin]", OperatorToken::open(file).map(drop));
    }
    found.note("[cache] dir", can_be_a_directory(&config.cache.dir));
    found.0
}

#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    /// True when there is none.
    fn note(&mut self, called: &str, result: Result<(), impl Display>) -> bool {
        let fault = result.err().map(|error| format!("{called}: {error}"));
        let good = fault.is_none();
        self.0.extend(fault);
        good
    }
}
