//! What keeps an edge from starting besides its configuration's own sense, found without starting it: `--check-config`.
//!
//! Not looked at are addresses that somebody else listens on, and what stands in the cache's directory, which another edge
//! may be using.

use std::time::SystemTime;

use weir_runtime::access_files::AccessFiles;
use weir_runtime::directory_to_be::can_be_a_directory;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::tls;

use crate::config::Config;
use crate::origin_client::Clients;
use crate::reload::TlsMaterial;

/// What is wrong with the files that a configuration names, the first fault of each table. Blocks.
#[must_use]
pub fn faults(config: &Config) -> Vec<String> {
    let now = SystemTime::now();
    let access = AccessFiles { keys: config.auth.keys.clone(), deny: config.auth.deny.clone() };
    let token = config.admin.operator_token_file.as_deref().filter(|_| config.admin_listen.is_some());
    let certificate = TlsMaterial::of(config).and_then(|_| tls::check_end(&config.tls.certificate, now));
    let mut checked: Vec<(String, anyhow::Result<()>)> = vec![
        ("[tls]".to_owned(), certificate.map_err(Into::into)),
        ("[auth]".to_owned(), access.read().map(drop).map_err(Into::into)),
        ("[admin]".to_owned(), token.map_or(Ok(()), |file| OperatorToken::open(file).map(drop).map_err(Into::into))),
        ("[cache] dir".to_owned(), can_be_a_directory(&config.cache.dir).map_err(anyhow::Error::msg)),
    ];
    checked.extend(config.origins.iter().map(|origin| {
        let called = Clients::read(origin).and_then(|_| Ok(tls::check_end(&origin.client_certificate, now)?));
        (format!("[[origin]] {}", origin.url), called)
    }));
    let faults = checked.into_iter().filter_map(|(table, result)| Some((table, result.err()?)));
    faults.map(|(table, error)| format!("{table}: {error:#}")).collect()
}
