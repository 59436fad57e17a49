//! Validates a `[[repository]]`: bounds, and keys that depend on each other.

use std::time::Duration;

use weir_model::ValidationError;

use super::RepositoryConfig;
use crate::Scheme;

/// The most webhook secrets. Each delivery is verified with every one.
const MAX_WEBHOOK_SECRETS: usize = 8;

/// The most keys of cosign. Each signature is verified with every one.
const MAX_COSIGN_KEYS: usize = 8;

const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

impl RepositoryConfig {
    /// All validation errors.
    pub fn errors(&self) -> Vec<ValidationError> {
        let mut errors = self.bounds();
        errors.extend(self.errors_of_verify());
        let others = [
            ("verify.mode", self.verify.as_ref().is_some_and(|verify| verify.mode.is_some())),
            ("insecure", self.insecure),
            ("layer", self.layer.is_some()),
            ("platform", self.platform.is_some()),
        ];
        let others = others.into_iter().filter_map(|(key, is_there)| is_there.then_some(key));
        let refused = others.chain(self.files().map(|(key, _)| key)).filter(|key| !self.kind.has(key));
        errors.extend(refused.map(|key| ValidationError::new(key, self.kind.refused())));
        if self.insecure && self.kind.has("insecure") && self.url.is_http() {
            errors.push(ValidationError::new("insecure", "it is for `oci://` URLs: remove it"));
        }
        if let Some(reason) = self.kind.refused_url(&self.url) {
            errors.push(ValidationError::new("url", reason));
            return errors;
        }
        if let Err(reason) = self.url.address() {
            errors.push(ValidationError::new("url", reason));
        }
        match self.url.scheme() {
            Some(Scheme::Ssh) => errors.extend(self.errors_for_ssh()),
            Some(scheme) => errors.extend(self.errors_without_ssh(scheme)),
            None => {}
        }
        errors
    }

    fn bounds(&self) -> Vec<ValidationError> {
        let mut errors = Vec::new();
        if self.webhook_secret_files.len() > MAX_WEBHOOK_SECRETS {
            errors.push(ValidationError::new(
                "webhook_secret_files",
                format!("it must name at most {MAX_WEBHOOK_SECRETS} files"),
            ));
        }
        for (field, value, shortest) in [
            ("poll_interval", self.poll_interval, SHORTEST_INTERVAL),
            ("min_poll_interval", self.min_poll_interval, Duration::ZERO),
            ("step_back_after", self.step_back_after, Duration::ZERO),
            ("stall_timeout", self.stall_timeout, SHORTEST_INTERVAL),
            ("poll_timeout", self.poll_timeout, SHORTEST_INTERVAL),
            ("build_timeout", self.build_timeout, SHORTEST_INTERVAL),
        ] {
            if value < shortest {
                errors.push(ValidationError::new(field, "it must be at least `1s`"));
            }
            if value > LONGEST_INTERVAL {
                errors.push(ValidationError::new(field, "it must be at most `366d`"));
            }
        }
        errors
    }

    fn errors_of_verify(&self) -> Option<ValidationError> {
        let verify = self.verify.as_ref()?;
        let is_of_kind = |key: &str| self.kind.has(&format!("verify.{key}"));
        let has = |key: &str| is_of_kind(key) && (key != "cosign_keys" || !self.url.is_http());
        if verify.files().next().is_none() {
            let keys = ["ssh_allowed_signers", "pgp_keyring", "cosign_keys"].into_iter().filter(|key| has(key));
            let keys: Vec<String> = keys.map(|key| format!("`{key}`")).collect();
            let detail = format!("it needs {}: without keys nothing can be published", keys.join(" or "));
            return Some(ValidationError::new("verify", detail));
        }
        if verify.cosign_keys.len() > MAX_COSIGN_KEYS {
            let detail = format!("it must name at most {MAX_COSIGN_KEYS} files");
            return Some(ValidationError::new("verify.cosign_keys", detail));
        }
        if !verify.cosign_keys.is_empty() && is_of_kind("cosign_keys") {
            let detail = match (has("cosign_keys"), verify.pgp_keyring.is_some() && has("pgp_keyring")) {
                (false, _) => Some("it is for `oci://` URLs: remove it"),
                (true, true) => Some("it cannot be used together with `pgp_keyring`"),
                (true, false) => None,
            };
            return detail.map(|detail| ValidationError::new("verify.cosign_keys", detail));
        }
        let is_missing = has("mode") && verify.mode.is_none();
        is_missing.then(|| ValidationError::new("verify.mode", "it must be `commit`, `tag` or `either`"))
    }

    fn errors_for_ssh(&self) -> Vec<ValidationError> {
        let mut errors = Vec::new();
        for (field, file, what) in [
            ("ssh_key", &self.ssh_key, "the file of a private key, because no other key is tried"),
            (
                "ssh_known_hosts",
                &self.ssh_known_hosts,
                "a file with the keys of the host, because no other host is trusted",
            ),
        ] {
            if file.is_none() {
                errors.push(ValidationError::new(field, format!("SSH needs it: {what}")));
            }
        }
        let for_others = self.files().map(|(key, _)| key);
        let for_others = for_others.filter(|key| !key.starts_with("ssh_") && !key.starts_with("verify."));
        let texts = [
            ("username", self.username.is_some()),
            ("proxy", self.proxy.is_some()),
            ("proxy_username", self.proxy_username.is_some()),
        ];
        let texts = texts.into_iter().filter_map(|(key, is_there)| is_there.then_some(key));
        errors.extend(
            for_others.chain(texts).map(|key| ValidationError::new(key, "it has no meaning for SSH: remove it")),
        );
        errors
    }

    fn errors_without_ssh(&self, scheme: Scheme) -> Vec<ValidationError> {
        let mut errors = Vec::new();
        let mut wrong = |field: &str, detail: &str| errors.push(ValidationError::new(field, detail));
        let proxy_user = self.proxy_username.is_some();
        for ((one, is_one), (other, is_other)) in [
            (("username", self.username.is_some()), ("password_file", self.password_file.is_some())),
            (("client_certificate", self.client_certificate.is_some()), ("client_key", self.client_key.is_some())),
            (("proxy_username", proxy_user), ("proxy_password_file", self.proxy_password_file.is_some())),
        ] {
            match (is_one, is_other) {
                (true, false) => wrong(one, &format!("it needs `{other}`")),
                (false, true) => wrong(other, &format!("it needs `{one}`")),
                _ => {}
            }
        }
        for (field, file) in [("ssh_key", &self.ssh_key), ("ssh_known_hosts", &self.ssh_known_hosts)] {
            if file.is_some() && self.kind.has(field) {
                wrong(field, "it needs an SSH `url`");
            }
        }
        if self.token_file.is_some() && self.username.is_some() {
            wrong("token_file", "it cannot be used together with `username`");
        }
        if scheme != Scheme::Https && (scheme != Scheme::Oci || self.insecure) {
            let secret = if self.insecure {
                "a password or token is sent over HTTPS only, where nobody else can read it: remove `insecure`, or this"
            } else {
                "a password or token is sent over `https://` only, where nobody else can read it: change `url`, or remove it"
            };
            for (field, is_there, detail) in [
                ("username", self.username.is_some(), secret),
                ("token_file", self.token_file.is_some(), secret),
                ("client_certificate", self.client_certificate.is_some(), "it needs an `https://` URL"),
            ] {
                if is_there {
                    wrong(field, detail);
                }
            }
        }
        if self.client_certificate.is_some()
            && self.proxy.as_ref().is_some_and(|proxy| proxy.scheme() != Some(Scheme::Http))
        {
            let detail = "an `https://` proxy would receive it as well: use an `http://` proxy, which forwards TLS \
                          unchanged";
            wrong("client_certificate", detail);
        }
        match &self.proxy {
            Some(_) if !self.url.is_http() && scheme != Scheme::Oci => {
                wrong("proxy", "it needs an `https://` or `http://` URL");
            }
            Some(proxy) => {
                if let Err(reason) = proxy.http() {
                    let address =
                        "it must be a URL such as `http://proxy.example:3128`, with the user in `proxy_username`";
                    wrong("proxy", &format!("{address}: {reason}"));
                }
            }
            None if proxy_user => wrong("proxy_username", "it needs `proxy`"),
            None => {}
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::SourceKind;

    fn fields(change: impl FnOnce(&mut RepositoryConfig)) -> Vec<String> {
        let mut repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        change(&mut repository);
        let errors = repository.errors();
        assert!(!format!("{errors:?}").contains("s3cret"), "{errors:?}");
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn all_errors_are_reported_together() {
        assert!(fields(|_| ()).is_empty());
        let many = fields(|it| {
            it.url = "http://me:s3cret@git.example/x".into();
            it.poll_interval = Duration::ZERO;
            it.build_timeout = Duration::MAX;
            it.username = Some("ci".to_owned());
            it.token_file = Some("t".into());
            it.ssh_key = Some("k".into());
            it.proxy = Some("proxy:3128".into());
        });
        let expected = ["poll_interval", "build_timeout", "url", "username", "ssh_key", "token_file", "username"];
        assert_eq!(many[..7], expected);
        assert_eq!(many[7..], ["token_file", "proxy"]);
        let ssh = fields(|it| {
            it.url = "git@git.example:x".into();
            it.ca = Some("ca".into());
            it.proxy = Some("http://p:1".into());
        });
        assert_eq!(ssh, ["ssh_key", "ssh_known_hosts", "ca", "proxy"]);
        for url in ["", "https://git.example\\@evil.example/x", "https://0x7f.1/x", "http://me@git.example/x"] {
            assert_eq!(fields(|it| it.url = url.into()), ["url"], "{url}");
        }
        for url in
            ["ftp://git.example/x", "svn://git.example/x", "ext::sh -c id", "https://git.example/x?private_token=t"]
        {
            assert_eq!(fields(|it| it.url = url.into()), ["url"], "{url}");
        }
        for proxy in ["socks5://p:1", "http://me:s3cret@p:1", "http://p\\@q:1", "p:1"] {
            assert_eq!(fields(|it| it.proxy = Some(proxy.into())), ["proxy"], "{proxy}");
        }
    }

    #[test]
    fn a_key_without_a_meaning_for_the_kind_is_refused_by_name() {
        let helm = |it: &mut RepositoryConfig| it.kind = SourceKind::Helm;
        assert!(fields(helm).is_empty());
        let of_git = fields(|it| {
            helm(it);
            (it.ssh_key, it.ssh_known_hosts) = (Some("k".into()), Some("h".into()));
            it.verify = serde_json::from_str(r#"{"mode": "tag", "pgp_keyring": "k"}"#).unwrap();
        });
        assert_eq!(of_git, ["verify.mode", "ssh_key", "ssh_known_hosts"]);
        for (verify, wrong) in [
            (r#"{"pgp_keyring": "k"}"#, &[][..]),
            (r#"{"pgp_keyring": "k", "ssh_allowed_signers": "s"}"#, &["verify.ssh_allowed_signers"]),
            ("{}", &["verify"]),
            (r#"{"mode": "tag"}"#, &["verify", "verify.mode"]),
        ] {
            let found = fields(|it| {
                helm(it);
                it.verify = serde_json::from_str(verify).unwrap();
            });
            assert_eq!(found, wrong, "{verify}");
        }
        for (verify, wrong) in [
            (json!({ "cosign_keys": ["k"] }), &[][..]),
            (json!({ "cosign_keys": [] }), &["verify"]),
            (json!({ "cosign_keys": vec!["k"; 9] }), &["verify.cosign_keys"]),
            (
                json!({ "cosign_keys": ["k"], "pgp_keyring": "k", "mode": "tag" }),
                &["verify.mode", "verify.pgp_keyring"],
            ),
        ] {
            let found = fields(|it| {
                (it.kind, it.url) = (SourceKind::Oci, "oci://r.example/acme/shop".into());
                it.verify = serde_json::from_value(verify.clone()).unwrap();
            });
            assert_eq!(found, wrong, "{verify}");
        }
        for (url, verify, wrong) in [
            ("oci://r.example/charts", r#"{"cosign_keys": ["k"]}"#, &[][..]),
            ("oci://r.example/charts", r#"{"pgp_keyring": "k"}"#, &[]),
            ("oci://r.example/charts", r#"{"pgp_keyring": "k", "cosign_keys": ["k"]}"#, &["verify.cosign_keys"]),
            ("https://charts.example", r#"{"cosign_keys": ["k"]}"#, &["verify.cosign_keys"]),
        ] {
            let found = fields(|it| {
                (it.kind, it.url) = (SourceKind::Helm, url.into());
                it.verify = serde_json::from_str(verify).unwrap();
            });
            assert_eq!(found, wrong, "{url} {verify}");
        }
        let of_registries = fields(|it| {
            it.verify = serde_json::from_str(r#"{"mode": "tag", "pgp_keyring": "k", "cosign_keys": ["k"]}"#).unwrap();
        });
        assert_eq!(of_registries, ["verify.cosign_keys"]);
        let without_mode = fields(|it| it.verify = serde_json::from_str(r#"{"pgp_keyring": "k"}"#).unwrap());
        assert_eq!(without_mode, ["verify.mode"]);
        for url in ["git@git.example:x", "/srv/charts", "file:///srv/charts", ""] {
            let wrong = fields(|it| {
                helm(it);
                it.url = url.into();
            });
            assert_eq!(wrong, ["url"], "{url}");
        }
    }

    #[test]
    fn charts_may_be_in_a_registry() {
        let helm = |url: &str, insecure: bool| {
            fields(|it| (it.kind, it.url, it.insecure) = (SourceKind::Helm, url.into(), insecure))
        };
        for (url, insecure) in [("oci://r.example/charts", false), ("oci://localhost:5000", true)] {
            assert!(helm(url, insecure).is_empty(), "{url}");
        }
        assert_eq!(helm("http://charts.example", true), ["insecure"]);
        assert_eq!(helm("https://charts.example/stable/index.yaml", false), ["url"]);
        assert_eq!(helm("oci://r.example/charts:v1", false), ["url"]);
    }

    #[test]
    fn an_artifact_has_the_keys_of_registries_and_an_insecure_one_no_credentials() {
        let oci = |url: &str, more: &dyn Fn(&mut RepositoryConfig)| {
            fields(|it| {
                (it.kind, it.url) = (SourceKind::Oci, url.into());
                more(it);
            })
        };
        let url = "oci://r.example/acme/shop";
        let with_credentials = |it: &mut RepositoryConfig| {
            (it.username, it.password_file, it.ca) = (Some("robot".into()), Some("p".into()), Some("ca".into()));
            it.layer = Some(serde_json::from_str(r#"{"media_type": "a/b", "operation": "copy"}"#).unwrap());
            it.platform = Some("linux/arm/v7".parse().unwrap());
            it.proxy = Some("http://proxy.example:3128".into());
        };
        assert!(oci(url, &with_credentials).is_empty());
        assert!(oci(url, &|it| it.insecure = true).is_empty());
        let insecure = |it: &mut RepositoryConfig| {
            with_credentials(it);
            it.insecure = true;
        };
        assert_eq!(oci(url, &insecure), ["username"]);
        let of_git = |it: &mut RepositoryConfig| it.ssh_key = Some("k".into());
        assert_eq!(oci(url, &of_git), ["ssh_key"]);
        for url in ["oci://r.example/shop:v1", "oci://r.example", "https://r.example/shop", "r.example/shop", ""] {
            assert_eq!(oci(url, &|_| {}), ["url"], "{url}");
        }
        let of_oci = fields(|it| {
            (it.insecure, it.platform) = (true, Some("linux/amd64".parse().unwrap()));
            it.layer = Some(serde_json::from_str("{}").unwrap());
        });
        assert_eq!(of_oci, ["insecure", "layer", "platform"], "for `kind = \"git\"`");
        assert_eq!(fields(|it| it.url = url.into()), ["url"], "for `kind = \"git\"`");
    }

    #[test]
    fn keys_that_need_or_exclude_each_other_are_reported() {
        let set = |it: &mut RepositoryConfig, keys: &[&str]| {
            let mut value = serde_json::to_value(&*it).unwrap();
            keys.iter().for_each(|key| value[*key] = "x".into());
            *it = serde_json::from_value(value).unwrap();
        };
        for (keys, wrong) in [
            (&["username"][..], &["username"][..]),
            (&["password_file"], &["password_file"]),
            (&["client_key"], &["client_key"]),
            (&["username", "password_file", "token_file"], &["token_file"]),
            (&["proxy_username", "proxy_password_file"], &["proxy_username"]),
            (&["ssh_known_hosts"], &["ssh_known_hosts"]),
        ] {
            assert_eq!(fields(|it| set(it, keys)), wrong, "{keys:?}");
        }
        let through_tls = fields(|it| {
            set(it, &["client_certificate", "client_key"]);
            it.proxy = Some("https://proxy.example:3129".into());
        });
        assert_eq!(through_tls, ["client_certificate"]);
        for (url, wrong) in [
            ("http://git.example/x", &["username"][..]),
            ("git://git.example/x", &["username"]),
            ("/srv/x", &["username"]),
            ("ssh://git:s3cret@git.example/x", &["url", "ssh_key", "ssh_known_hosts", "password_file", "username"]),
        ] {
            let with_password = |it: &mut RepositoryConfig| {
                set(it, &["username", "password_file"]);
                it.url = url.into();
            };
            assert_eq!(fields(with_password), wrong, "{url}");
        }
    }
}
