//! `weir-edge doctor`: checks what an edge needs, one line each, with what to do. Works beside a running edge.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::Empty;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_protocol::members;
use weir_runtime::doctor::{Finding, Findings, Peer, Report, clock, dns, handshake, tcp};
use weir_runtime::http_client::{http2_client, root_cause};
use weir_runtime::tls;

use crate::check;
use crate::config::{Config, OriginConfig};

/// How long an origin may take for its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Free space below this is a warning.
const LITTLE_SPACE: ByteSize = ByteSize::gib(1);

/// Checks this machine, and each origin and shield of a valid configuration. Takes a few seconds when something does not
/// respond.
pub async fn doctor(config: &Config) -> Report {
    let own = config.clone();
    let machine = spawn_blocking(move || machine(&own)).await.unwrap_or_default();
    let origins = config.origins.iter().map(|origin| ("origin", origin));
    let nodes = origins.chain(config.shields.iter().map(|shield| ("shield", shield)));
    let nodes = join_all(nodes.map(|(role, node)| node_of(role, node))).await;
    Report { findings: machine.into_iter().chain(nodes.into_iter().flatten()).collect() }
}

fn machine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new("this machine");
    findings.files(&check::files(config));
    findings.certificate("that of [tls]", &config.tls.certificate);
    for node in config.origins.iter().chain(&config.shields) {
        findings.certificate(&format!("that for {}", node.url), &node.client_certificate);
    }
    findings.free_space(&config.cache.dir, "is for the cache", LITTLE_SPACE, "the cache has room up to its `disk`");
    findings.found
}

/// An origin or a shield: each check needs those before it.
async fn node_of(role: &str, node: &OriginConfig) -> Vec<Finding> {
    let mut findings = Findings::new(&node.url);
    // A valid configuration has one.
    let Ok(authority) = node.authority() else { return findings.found };
    let (host, port) = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
    let own = match tls::client_config(&node.ca, Some((node.client_certificate.as_path(), node.client_key.as_path()))) {
        Ok(own) => own,
        Err(error) => {
            findings.fail("tls", error.to_string(), "Correct the files that it names.");
            return findings.found;
        }
    };
    let peer = Peer { role, host, key: "`url`", ca: &node.ca, caller: "edge" };
    let Some(addresses) = dns(&mut findings, "`url`", host, port).await else { return findings.found };
    let Some(stream) = tcp(&mut findings, &format!("the {role}"), &addresses).await else { return findings.found };
    if handshake(&mut findings, &peer, own.clone(), stream).await {
        answer(&mut findings, role, own, &node.url).await;
    }
    findings.found
}

/// Whether it takes this edge for one. A server tells only after the handshake that it refuses a certificate.
async fn answer(findings: &mut Findings, role: &str, own: rustls::ClientConfig, url: &str) {
    let client = http2_client::<Empty<Bytes>>(own);
    let path = format!("{}{}", url.trim_end_matches('/'), members::PATH);
    let Ok(request) = Request::get(path).body(Empty::new()) else { return };
    let advice = format!(
        "Let `client_certificate` be one of an edge (spiffe://<trust domain>/edge/<name>), of the authority in `client_ca` of the {role}."
    );
    match timeout(TIMEOUT, client.request(request)).await {
        Err(_) => findings.fail("identity", format!("no answer within {TIMEOUT:?}"), "Its log has the reason."),
        Ok(Err(error)) => findings.fail("identity", root_cause(&error), advice),
        Ok(Ok(answer)) => {
            match answer.status() {
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                    findings.fail("identity", format!("the {role} answers {status}"), advice);
                }
                // Where it is no member of a cluster there is nothing at this path.
                _ => findings.ok("identity", format!("the {role} answers this edge")),
            }
            clock(findings, role, answer.headers(), SystemTime::now());
        }
    }
}
