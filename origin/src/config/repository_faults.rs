//! What is wrong with a `[[repository]]` that no single key shows, or that its type allows.

use std::time::Duration;

use super::RepositoryConfig;
use super::fault::Fault;
use crate::source::Scheme;

/// Each delivery of a webhook is verified with every one of them.
const MOST_WEBHOOK_SECRETS: usize = 8;

const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

impl RepositoryConfig {
    /// All that is wrong with it.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut faults = self.bounds();
        if self.verify.as_ref().is_some_and(|verify| verify.files().next().is_none()) {
            let detail =
                "it needs `ssh_allowed_signers` or `pgp_keyring`: without keys nothing could ever be published";
            faults.push(Fault::new("verify", detail));
        }
        if let Err(reason) = self.url.address() {
            faults.push(Fault::new("url", reason));
        }
        match self.url.scheme() {
            Some(Scheme::Ssh) => faults.extend(self.faults_for_ssh()),
            Some(scheme) => faults.extend(self.faults_beside_ssh(scheme)),
            None => {}
        }
        faults
    }

    fn bounds(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.webhook_secret_files.len() > MOST_WEBHOOK_SECRETS {
            faults.push(Fault::new("webhook_secret_files", format!("it names more than {MOST_WEBHOOK_SECRETS} files")));
        }
        for (field, value, shortest) in [
            ("poll_interval", self.poll_interval, SHORTEST_INTERVAL),
            ("min_poll_interval", self.min_poll_interval, Duration::ZERO),
            ("stall_timeout", self.stall_timeout, SHORTEST_INTERVAL),
            ("poll_timeout", self.poll_timeout, SHORTEST_INTERVAL),
            ("build_timeout", self.build_timeout, SHORTEST_INTERVAL),
        ] {
            if value < shortest {
                faults.push(Fault::new(field, "it must be at least `1s`"));
            }
            if value > LONGEST_INTERVAL {
                faults.push(Fault::new(field, "it must be at most `366d`"));
            }
        }
        faults
    }

    fn faults_for_ssh(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (field, file, what) in [
            ("ssh_key", &self.ssh_key, "the file of a private key, because no other key is tried"),
            (
                "ssh_known_hosts",
                &self.ssh_known_hosts,
                "a file with the keys of the host, because no other host is trusted",
            ),
        ] {
            if file.is_none() {
                faults.push(Fault::new(field, format!("SSH needs it: {what}")));
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
        faults.extend(for_others.chain(texts).map(|key| Fault::new(key, "it means nothing for SSH: take it away")));
        faults
    }

    fn faults_beside_ssh(&self, scheme: Scheme) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut wrong = |field: &str, detail: &str| faults.push(Fault::new(field, detail));
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
            if file.is_some() {
                wrong(field, "it is for an `url` of SSH");
            }
        }
        if self.token_file.is_some() && self.username.is_some() {
            wrong("token_file", "it and `username` exclude each other");
        }
        if scheme != Scheme::Https {
            let secret = "a password or token is sent over `https://` only, where nobody else can read it: change `url`, \
                          or take it away";
            for (field, is_there, detail) in [
                ("username", self.username.is_some(), secret),
                ("token_file", self.token_file.is_some(), secret),
                ("client_certificate", self.client_certificate.is_some(), "it is shown over `https://` only"),
            ] {
                if is_there {
                    wrong(field, detail);
                }
            }
        }
        if self.client_certificate.is_some()
            && self.proxy.as_ref().is_some_and(|proxy| proxy.scheme() != Some(Scheme::Http))
        {
            let detail = "it would be shown to a `proxy` of `https://` as well: use one of `http://`, through which TLS \
                          goes untouched";
            wrong("client_certificate", detail);
        }
        match &self.proxy {
            Some(_) if !self.url.is_http() => {
                wrong("proxy", "it is for `https://` and `http://` only");
            }
            Some(proxy) => {
                if let Err(reason) = proxy.http() {
                    let address =
                        "it is not an address such as `http://proxy.example:3128`, with `proxy_username` beside it";
                    wrong("proxy", &format!("{address}: {reason}"));
                }
            }
            None if proxy_user => wrong("proxy_username", "it needs `proxy`"),
            None => {}
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(change: impl FnOnce(&mut RepositoryConfig)) -> Vec<String> {
        let mut repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/shop.git");
        change(&mut repository);
        let faults = repository.faults();
        assert!(!format!("{faults:?}").contains("s3cret"), "{faults:?}");
        faults.into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
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
    fn what_belongs_together_is_needed_together_and_what_excludes_itself_is_named() {
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
