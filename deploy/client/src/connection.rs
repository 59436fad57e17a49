//! Which origin a command asks, and how it signs in: options, then environment variables, then a context.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::Args;
use reqwest::Url;

use crate::contexts::{Context, Contexts};

/// How a command reaches a hub.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArguments {
    /// The context, if not the one in use
    #[arg(long, env = "WEIR_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    /// The operators' listener of an origin, in place of the context's
    #[arg(long, env = "WEIR_SERVER", value_name = "URL")]
    server: Option<String>,
    /// The authority of its certificate, PEM
    #[arg(long, env = "WEIR_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A file with the operators' token
    #[arg(long, env = "WEIR_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The operators' token
    #[arg(env = "WEIR_TOKEN", hide = true, long = "token", hide_env_values = true)]
    token: Option<String>,
}

/// What a client needs.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: Url,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) token: Option<String>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// The URL of an origin.
pub(crate) fn check_server(server: &str) -> anyhow::Result<Url> {
    let url: Url = server
        .parse()
        .with_context(|| format!("`{server}` is no URL: an origin's is as https://origin-1.example:7401"))?;
    if url.scheme() != "https" || !url.has_host() || url.path() != "/" {
        bail!("`{server}` is not the URL of an origin, which is as https://origin-1.example:7401");
    }
    Ok(url)
}

impl ConnectionArguments {
    pub(crate) fn resolve(&self) -> anyhow::Result<Connection> {
        self.chosen()?.context("no hub is chosen: `weir context add NAME --server URL …`, or --server")
    }

    /// The same; `None`: no hub is chosen.
    pub(crate) fn chosen(&self) -> anyhow::Result<Option<Connection>> {
        let context = match (&self.context, &self.server) {
            // What signs in at one server is not shown to another one.
            (Some(name), Some(server)) => bail!(
                "both the context `{name}` and the server {server} are chosen: leave out --context and WEIR_CONTEXT, or --server and \
                 WEIR_SERVER"
            ),
            (None, Some(server)) => Context { server: server.clone(), ..Context::default() },
            (name, None) => match Contexts::read(&Contexts::file()?)?.find(name.as_deref())? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        if self.token.is_some() && self.token_file.is_some() {
            bail!("both WEIR_TOKEN and a token file are given: leave out one of them");
        }
        let token =
            match (&self.token, self.token_file.as_ref().or(context.token_file.as_ref()), &context.token_command) {
                (Some(token), _, _) => Some(token.clone()),
                (None, Some(file), _) => {
                    let text = std::fs::read_to_string(file);
                    Some(text.with_context(|| format!("cannot read the token in {}", file.display()))?)
                }
                (None, None, Some(command)) => Some(printed_by(command)?),
                (None, None, None) => None,
            };
        Ok(Some(Connection {
            server: check_server(&context.server)?,
            ca: self.ca.clone().or(context.ca),
            token: token.map(|token| token.trim().to_owned()),
            identity: context.certificate.zip(context.key),
        }))
    }
}

fn printed_by(command: &str) -> anyhow::Result<String> {
    let output = Command::new("sh").args(["-c", command]).stdin(Stdio::inherit()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run the command for the token, `{command}`"))?;
    if !output.status.success() {
        bail!("the command for the token failed ({}): `{command}`", output.status);
    }
    String::from_utf8(output.stdout).context("the command for the token printed what is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_url_of_a_server_is_taken() {
        assert!(check_server("https://origin.example:7401").is_ok());
        for wrong in ["origin.example:7401", "http://origin.example", "https://origin.example/v1/services", "7401"] {
            assert!(check_server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_signs_in_at_one_server_is_not_shown_to_another() {
        let both = ConnectionArguments {
            context: Some("stage".to_owned()),
            server: Some("https://prod.example".to_owned()),
            ..ConnectionArguments::default()
        };
        assert!(both.resolve().unwrap_err().to_string().contains("leave out"));
        let alone = ConnectionArguments { context: None, ..both };
        let Connection { token, identity, .. } = alone.resolve().unwrap();
        assert!(token.is_none() && identity.is_none());
    }

    #[test]
    fn a_command_prints_the_token_or_says_why_not() {
        assert_eq!(printed_by("echo one").unwrap(), "one\n");
        assert!(printed_by("exit 3").unwrap_err().to_string().contains("exit status: 3"));
    }
}
