//! Whether an edge knows this agent, and which services it has for it.

use std::time::SystemTime;

use http::{HeaderMap, Method, StatusCode};
use weir_protocol::batch_poll::{BatchPoll, MAX_BATCH_BYTES};
use weir_protocol::route::Route;
use weir_runtime::doctor::Findings;

use crate::config::{Config, ServiceList};
use crate::edge_client::{Edge, RequestError, Response, TarballRequest};
use crate::fetch::problem_detail;
use crate::selection::Selection;

/// The headers of an answer, and when they came.
type Answered = Option<(HeaderMap, SystemTime)>;

/// Why the edge answers no further question.
struct Refused {
    message: String,
    advice: String,
}

/// Asks for each service that the configuration names, and for the list of those that it does not. Returns the headers of
/// the first answer.
pub(super) async fn check(findings: &mut Findings, edge: &Edge, config: &Config) -> Answered {
    let mut answered = None;
    let checks = async {
        named(findings, edge, config, &mut answered).await?;
        offered(findings, edge, config, &mut answered).await
    };
    if let Err(Refused { message, advice }) = checks.await {
        findings.fail("identity", message, advice);
    }
    answered
}

async fn named(findings: &mut Findings, edge: &Edge, config: &Config, answered: &mut Answered) -> Result<(), Refused> {
    let services: Vec<_> = config.named().collect();
    let mut unseen = Vec::new();
    for service in &services {
        // A response to HEAD has no body, and the reason of a refusal is in the body.
        let request = |method| TarballRequest {
            service,
            method,
            version: None,
            if_none_match: None,
            no_cache: false,
            timeout: config.request_timeout,
            avoid_http3: true,
            dictionary: None,
            range: None,
            request_id: None,
        };
        let response = edge.send(&request(Method::HEAD)).await.map_err(|error| no_response(&error))?;
        answered.get_or_insert_with(|| (response.headers.clone(), SystemTime::now()));
        match response.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let response = edge.send(&request(Method::GET)).await.unwrap_or(response);
                return Err(refused(response, config).await);
            }
            StatusCode::NOT_FOUND => unseen.push(service.as_str()),
            _ => {}
        }
    }
    match (services.len(), unseen.is_empty()) {
        (0, _) => {}
        (count, true) => findings.ok("identity", format!("the edge answers for {count} of {count} services")),
        (_, false) => {
            let message = format!("the edge has no service for this agent with the name {}", unseen.join(", "));
            let advice =
                "Correct the names, define the services at the origin, or let the agent's token or rule name them.";
            findings.warn("identity", message, advice);
        }
    }
    Ok(())
}

/// Asks for what is assigned, or matches a pattern.
async fn offered(
    findings: &mut Findings,
    edge: &Edge,
    config: &Config,
    answered: &mut Answered,
) -> Result<(), Refused> {
    if !config.is_dynamic() {
        return Ok(());
    }
    let Some(selection) = Selection::of(config) else {
        findings.fail("services", "there are too many services for one request", "Use patterns that match more.");
        return Ok(());
    };
    let target = selection.target(&Route::AgentServices, None);
    let mut response =
        edge.get(&target, None, config.request_timeout, None).await.map_err(|error| no_response(&error))?;
    answered.get_or_insert_with(|| (response.headers.clone(), SystemTime::now()));
    match response.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(refused(response, config).await),
        StatusCode::NOT_FOUND => {
            let message = "the edge does not know who this agent is, or is too old to say which services it has";
            return Err(Refused { message: message.to_owned(), advice: credentials(config) });
        }
        status => {
            let message = format!("{status}: {}", reason(response).await);
            findings.warn("services", message, "Try again later. The edge's log has the reason.");
            return Ok(());
        }
    }
    let bytes = response.body.read(MAX_BATCH_BYTES).await.map_err(|error| no_response(&error))?.unwrap_or_default();
    let rows = match BatchPoll::parse(&bytes) {
        Ok(rows) => rows,
        Err(error) => {
            findings.fail("services", error.to_string(), "Check that the port is that of the edge's `listen`.");
            return Ok(());
        }
    };
    let taken = rows.services().iter().filter(|row| selection.takes(&row.service)).count();
    let count = rows.services().len();
    let how = if config.list == ServiceList::Assigned { "are assigned to this agent" } else { "match" };
    let message = format!("{count} services {how}, and it follows {taken} of them");
    if taken > 0 {
        findings.ok("services", message);
    } else {
        let advice = match config.list {
            ServiceList::Assigned => {
                "Assign services to this agent's name or labels, and let its token or rule open them."
            }
            ServiceList::Listed => "Correct the patterns, or let the agent's token or rule open such services.",
        };
        findings.warn("services", message, format!("{advice} `allow` limits what it follows."));
    }
    Ok(())
}

fn no_response(error: &RequestError) -> Refused {
    let advice = match error {
        RequestError::Certificate(_) => {
            "Check that `ca` is the authority of the edge's certificate, and `client_certificate` with `client_ca` of the edge."
        }
        RequestError::Token(_) => "Correct `token_file`: one line, as `weir token issue` writes it.",
        _ => "The edge's log has the reason.",
    };
    Refused { message: error.to_string(), advice: advice.to_owned() }
}

async fn refused(response: Response, config: &Config) -> Refused {
    let status = response.status;
    Refused { message: format!("{status}: {}", reason(response).await), advice: credentials(config) }
}

async fn reason(response: Response) -> String {
    let detail = problem_detail(&response.headers, response.body).await;
    detail.unwrap_or_else(|| "the edge gives no reason".to_owned())
}

fn credentials(config: &Config) -> String {
    match &config.token_file {
        Some(file) => format!("Put a token that the edge accepts into {}.", file.display()),
        None if config.client_certificate.is_some() => {
            "Set `[auth] client_ca` of the edge, which certificates need in both of its modes.".to_owned()
        }
        None => "Set `token_file`, or `client_certificate` and `client_key`.".to_owned(),
    }
}
