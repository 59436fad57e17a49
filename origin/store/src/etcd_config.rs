//! `[cluster] etcd`: how etcd is reached.

use std::path::PathBuf;

use reqwest::Url;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use weir_runtime::tls;

const MAX_PREFIX_BYTES: usize = 100;

/// How etcd is reached. The files are read again when a connection fails after they changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// URLs of the members, such as `https://etcd-1:2379`. If one does not answer, the next is used.
    pub endpoints: Vec<String>,
    /// Allow `http://` in `endpoints`. Default: `false`.
    #[serde(default)]
    pub allow_http: bool,
    /// PEM file of the authority of etcd's certificates. `https://` needs it.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate; together with `key`.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Prefix of all keys; it must end in `/`. Default: `"weir/"`.
    #[serde(default = "weir")]
    pub prefix: String,
}

fn weir() -> String {
    "weir/".to_owned()
}

impl EtcdConfig {
    /// The paths of files, which are relative to the configuration.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.ca.iter_mut().chain(&mut self.certificate).chain(&mut self.key)
    }

    /// What is wrong with the section, without a look at its files.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut wrong = |what: &str| errors.push(format!("[cluster] etcd.{what}"));
        if self.endpoints.is_empty() {
            wrong("endpoints is empty: name the members, such as \"https://etcd-1:2379\"");
        }
        for endpoint in &self.endpoints {
            // The text is not repeated: somebody may have put a password into it.
            match Url::parse(endpoint).ok().filter(has_only_host) {
                Some(url) if url.scheme() == "http" && !self.allow_http => wrong(
                    "endpoints has an http:// URL, where others can read and change what is sent: use https://, or set \
                     allow_http = true",
                ),
                Some(url) if url.scheme() == "https" && self.ca.is_none() => {
                    wrong("ca is missing: name the file of the authority of etcd's certificates");
                }
                Some(url) if matches!(url.scheme(), "http" | "https") => {}
                _ => wrong("endpoints must be URLs without a path, such as \"https://etcd-1:2379\""),
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            wrong("certificate and key belong together: set both, or none");
        }
        if !self.prefix.ends_with('/') || !self.prefix.is_ascii() || self.prefix.len() > MAX_PREFIX_BYTES {
            wrong(&format!("prefix must end in `/`, in at most {MAX_PREFIX_BYTES} ASCII characters"));
        }
        errors.dedup();
        errors
    }

    /// The files of TLS.
    pub fn files(&self) -> Vec<PathBuf> {
        self.ca.iter().chain(&self.certificate).chain(&self.key).cloned().collect()
    }

    /// Reads the files of TLS, if there is an authority.
    ///
    /// # Errors
    /// A file cannot be used; the message names it.
    pub fn tls(&self) -> Result<Option<ClientConfig>, String> {
        let identity = self.certificate.as_deref().zip(self.key.as_deref());
        let read = self.ca.as_ref().map(|ca| tls::client_config(ca, identity)).transpose();
        read.map_err(|error| format!("[cluster] etcd: {error}"))
    }
}

/// Whether a URL has nothing but its scheme, a host and perhaps a port.
pub fn has_only_host(url: &Url) -> bool {
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    is_bare && url.has_host() && url.username().is_empty() && url.password().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_key_and_says_what_to_do() {
        let good = || EtcdConfig {
            endpoints: vec!["https://etcd-1:2379".to_owned(), "https://etcd-2:2379".to_owned()],
            allow_http: false,
            ca: Some("etcd-ca.pem".into()),
            certificate: None,
            key: None,
            prefix: weir(),
        };
        assert_eq!(good().errors(), [""; 0]);
        let endpoint = |url: &str| EtcdConfig { endpoints: vec![url.to_owned()], ..good() };
        assert_eq!(EtcdConfig { allow_http: true, ca: None, ..endpoint("http://127.0.0.1:2379") }.errors(), [""; 0]);
        for (config, named) in [
            (EtcdConfig { endpoints: Vec::new(), ..good() }, "[cluster] etcd.endpoints is empty"),
            (endpoint("http://etcd-1:2379"), "allow_http = true"),
            (endpoint("https://root:s3cret@etcd-1:2379"), "[cluster] etcd.endpoints must be URLs"),
            (endpoint("etcd-1:2379"), "[cluster] etcd.endpoints must be URLs"),
            (EtcdConfig { ca: None, ..good() }, "[cluster] etcd.ca is missing"),
            (EtcdConfig { key: Some("etcd.key".into()), ..good() }, "[cluster] etcd.certificate and key"),
            (EtcdConfig { prefix: "weir".to_owned(), ..good() }, "[cluster] etcd.prefix must end in `/`"),
        ] {
            let errors = config.errors();
            assert!(errors.len() == 1 && errors[0].contains(named) && !errors[0].contains("s3cret"), "{errors:?}");
        }
    }
}
