//! The user name and password that the configuration names: never a helper, never a prompt.

use gix::credentials::helper::Action;
use gix::credentials::protocol::Outcome;
use gix::error::ErrorExt;
use gix::sec::identity::Account;

use super::Upstream;

/// Why no credentials were given to an upstream that asks for some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error("it asks for a user name and a password, and none are configured (`username`, `password_file`)")]
    NotConfigured,
    #[error("the password file cannot be read: {0}")]
    PasswordFile(String),
    #[error("it was redirected to another host, which is not given the password")]
    OtherHost,
    #[error("it does not accept the configured user name and password")]
    Refused,
}

/// Answers what a transport asks of a credential helper.
pub(super) fn answer(upstream: &Upstream, action: Action) -> gix::Result<Option<Outcome>> {
    match action {
        Action::Get(context) => {
            let asks = context.url.as_ref().and_then(|url| origin_of(url));
            let account = account(upstream, asks.as_deref()).map_err(ErrorExt::raise)?;
            Ok(Some(Outcome { identity: account, next: context.into() }))
        }
        Action::Store(_) => Ok(None),
        Action::Erase(_) => Err(CredentialsError::Refused.raise()),
    }
}

/// The account for whoever asks, if that is the upstream itself.
fn account(upstream: &Upstream, asks: Option<&str>) -> Result<Account, CredentialsError> {
    let (Some(username), Some(password_file)) = (&upstream.username, &upstream.password_file) else {
        return Err(CredentialsError::NotConfigured);
    };
    if asks.is_none() || asks != origin_of(upstream.url.as_bytes()).as_deref() {
        return Err(CredentialsError::OtherHost);
    }
    let password = std::fs::read_to_string(password_file).map_err(|e| CredentialsError::PasswordFile(e.to_string()))?;
    let password = password.trim_end().to_owned();
    Ok(Account { username: username.clone(), password, oauth_refresh_token: None })
}

/// Scheme, host and port: what a password belongs to.
fn origin_of(url: &[u8]) -> Option<String> {
    let url = gix::url::parse(url).ok()?;
    Some(format!("{}://{}:{}", url.scheme, url.host()?.to_ascii_lowercase(), url.port_or_default()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(password: &str) -> (tempfile::TempDir, Upstream) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, password).unwrap();
        let mut upstream = Upstream::new("https://Git.example/a.git");
        upstream.username = Some("ci".to_owned());
        upstream.password_file = Some(file);
        (dir, upstream)
    }

    fn ask(upstream: &Upstream, url: &str) -> Result<String, CredentialsError> {
        let asks = origin_of(url.as_bytes());
        account(upstream, asks.as_deref()).map(|account| format!("{}:{}", account.username, account.password))
    }

    #[test]
    fn the_password_is_read_each_time_without_its_line_end() {
        let (dir, upstream) = upstream("s3cret\n");
        assert_eq!(ask(&upstream, "https://git.example/a.git").unwrap(), "ci:s3cret");
        std::fs::write(dir.path().join("password"), "rotated").unwrap();
        assert_eq!(ask(&upstream, "https://git.example:443/a.git").unwrap(), "ci:rotated");
    }

    #[test]
    fn no_other_host_port_or_scheme_gets_the_password() {
        let (_dir, upstream) = upstream("s3cret");
        for url in
            ["https://evil.example/a.git", "https://git.example:444/a.git", "http://git.example/a.git", "nonsense"]
        {
            assert_eq!(ask(&upstream, url), Err(CredentialsError::OtherHost), "{url}");
        }
    }

    #[test]
    fn without_configuration_there_is_a_clear_error() {
        let error = ask(&Upstream::new("https://git.example/a"), "https://git.example/a").unwrap_err();
        assert!(error.to_string().contains("none are configured"), "{error}");
        let (dir, upstream) = upstream("");
        std::fs::remove_file(dir.path().join("password")).unwrap();
        let error = ask(&upstream, "https://git.example/a").unwrap_err();
        assert!(matches!(error, CredentialsError::PasswordFile(_)));
        assert!(!error.to_string().contains("/"), "no path: {error}");
    }
}
