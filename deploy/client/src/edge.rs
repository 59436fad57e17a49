//! What an edge says itself, at its admin listener: what its cache has of a service, and when it heard an agent.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use reqwest::{StatusCode, Url};
use serde_json::Value;

use crate::connection::Connection;
use crate::http::{Client, Query, Refused, is_absent};
use crate::kind::segment;
use crate::text::{Clock, revision, text};

/// An edge to ask, besides the hub.
#[derive(Debug, Args)]
pub(crate) struct EdgeArguments {
    /// Also ask an edge itself: the URL of its `admin_listen`, such as http://127.0.0.1:7491
    #[arg(long, value_name = "URL")]
    edge: Option<String>,
    /// A file with the token of that edge's operators, which it wants beyond loopback. That of the hub is never sent to it
    #[arg(long, value_name = "FILE", requires = "edge")]
    edge_token_file: Option<PathBuf>,
}

/// What an edge has answered; null where it knows nothing.
pub(crate) struct Answers {
    url: String,
    service: Value,
    agent: Value,
}

impl EdgeArguments {
    /// `None`: no edge is to be asked.
    pub(crate) async fn ask(&self, ca: Option<PathBuf>, agent: &str, service: &str) -> anyhow::Result<Option<Answers>> {
        let Some(url) = &self.edge else { return Ok(None) };
        let server = url.parse::<Url>().ok().filter(|url| url.has_host() && url.path() == "/");
        let Some(server) = server.filter(|url| matches!(url.scheme(), "http" | "https")) else {
            bail!("`{url}` is not the URL of the admin listener of an edge, which is as http://127.0.0.1:7491");
        };
        let token = self.edge_token_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file);
            text.with_context(|| format!("cannot read the token in {}", file.display()))
        });
        let token = token.transpose()?.map(|token| token.trim().to_owned());
        let client = Client::of(Connection { server, ca, token, identity: None })?;
        let known = |answer: anyhow::Result<Value>| match answer {
            Err(error) if is_absent(&error) => Ok(Value::Null),
            Err(error) if wants_token(&error) => {
                bail!("the edge {url} wants the token of its operators: --edge-token-file FILE")
            }
            answer => answer.with_context(|| format!("the edge {url}")),
        };
        let query: Query = vec![("service", segment(service)?.to_owned())];
        Ok(Some(Answers {
            service: known(client.get("/v1/explain", &query).await)?,
            agent: known(client.get(&format!("/v1/agents/{}", segment(agent)?), &Query::new()).await)?,
            url: url.clone(),
        }))
    }
}

fn wants_token(error: &anyhow::Error) -> bool {
    let wants = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    error.downcast_ref::<Refused>().is_some_and(|refused| wants.contains(&refused.status))
}

impl Answers {
    /// `published`: what the hub has published.
    pub(crate) fn lines(&self, published: &Value, clock: Clock) -> Vec<String> {
        let Self { url, service, agent } = self;
        let mut lines = match service {
            Value::Null => vec![format!("{url} knows nothing of the service")],
            found => {
                let has = if found["held"] == true { revision(found) } else { "nothing".to_owned() };
                let mut lines =
                    vec![format!("{url} has {has}, {}: {}", text(&found["freshness"]), text(&found["why"]))];
                if found["held"] == true && found["digest"] != published["digest"] {
                    lines.push(format!("the hub has published {}", revision(published)));
                }
                if let Some(reason) = found["last_failure"].as_str() {
                    let at = clock.ago(&found["last_failed_at"]);
                    lines.push(format!("its last query of an origin failed {at}: {reason}"));
                }
                if found["refused_generation"].is_number() {
                    lines.push("an origin offers it an older generation, which it refuses".to_owned());
                }
                lines
            }
        };
        lines.push(match agent["heard_at"].is_string() {
            true => format!("it heard the agent {}", clock.ago(&agent["heard_at"])),
            false => "it has not heard the agent within a day".to_owned(),
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_edge_that_is_behind_says_so_and_when_it_heard_the_agent() {
        let at = "2026-01-02T03:04:05Z";
        let behind = Answers {
            url: "http://127.0.0.1:7491".to_owned(),
            service: json!({
                "held": true, "version": "1.1.0", "digest": "b3-0", "freshness": "expired", "why": "the origin is down; the cached version is served",
                "last_failure": "connection refused", "last_failed_at": at, "refused_generation": null,
            }),
            agent: json!({"heard_at": at}),
        };
        let published = json!({"version": "1.2.0", "digest": "b3-1"});
        let expected = "\
http://127.0.0.1:7491 has 1.1.0, expired: the origin is down; the cached version is served
the hub has published 1.2.0
its last query of an origin failed 2026-01-02T03:04:05Z: connection refused
it heard the agent 2026-01-02T03:04:05Z";
        assert_eq!(behind.lines(&published, Clock::new(true)).join("\n"), expected);
        let nothing = Answers { service: Value::Null, agent: Value::Null, ..behind };
        let said = nothing.lines(&published, Clock::new(true));
        assert!(said[0].ends_with("knows nothing of the service") && said[1].contains("not heard"), "{said:?}");
    }
}
