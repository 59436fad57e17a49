//! One edge: each check needs those before it.

use weir_runtime::doctor::{Finding, Findings, Peer, clock, dns, handshake, tcp};
use weir_runtime::tls;

use super::identity;
use crate::config::{Config, EdgeUrl, HttpMode};
use crate::edge_client::{Edges, RequestError};
use crate::metrics::Metrics;

pub(super) async fn check(url: &EdgeUrl, config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new(url.to_string());
    let peer = peer_of(url, config);
    // Each check below needs it, and would blame something else.
    if let Err(error) = tls::read_roots(&config.ca) {
        findings.fail("tls", error.to_string(), peer.ca_advice());
        return findings.found;
    }
    if let Some(proxy) = &config.proxy {
        // Only the proxy knows the edge's name, and reaches its port.
        findings.ok("proxy", format!("requests go through {proxy}: its name and port are checked"));
        if let Some(addresses) = dns(&mut findings, "`proxy`", proxy.host(), proxy.port()).await
            && tcp(&mut findings, "a proxy", &addresses).await.is_some()
        {
            udp(&mut findings, url, config).await;
            identity_and_clock(&mut findings, url, config).await;
        }
        return findings.found;
    }
    if let Some(addresses) = dns(&mut findings, "`edges`", url.host(), url.port()).await {
        // At once: an edge closes a connection that says nothing, and the check of UDP may take longer than that.
        let Some(stream) = tcp(&mut findings, "an edge", &addresses).await else {
            udp(&mut findings, url, config).await;
            return findings.found;
        };
        let identity = config.client_certificate.as_deref().zip(config.client_key.as_deref());
        let own = match tls::client_config(&config.ca, identity) {
            Ok(own) => own,
            Err(error) => {
                findings.fail("tls", error.to_string(), "Correct the files that it names.");
                return findings.found;
            }
        };
        // Over UDP the same certificate is refused, which says nothing about UDP.
        if handshake(&mut findings, &peer, own, stream).await {
            udp(&mut findings, url, config).await;
            identity_and_clock(&mut findings, url, config).await;
        }
    }
    findings.found
}

fn peer_of<'a>(url: &'a EdgeUrl, config: &'a Config) -> Peer<'a> {
    Peer { role: "edge", host: url.host(), key: "`edges`", ca: &config.ca, caller: "agent" }
}

async fn udp(findings: &mut Findings, url: &EdgeUrl, config: &Config) {
    if let Some(reason) = config.no_http3() {
        return findings.ok("udp", format!("not used: {reason}"));
    }
    let result = match client(url, config, HttpMode::H3) {
        Ok(client) => match client.first().handshake().await {
            // UDP passes.
            Err(error @ RequestError::Certificate(_)) => {
                return findings.fail("udp", error.to_string(), peer_of(url, config).ca_advice());
            }
            done => done.map_err(|error| error.to_string()),
        },
        Err(error) => Err(format!("{error:#}")),
    };
    let Err(error) = result else { return findings.ok("udp", "a QUIC handshake succeeds: HTTP/3 is used") };
    let advice = format!("Let UDP port {} pass in both directions.", url.port());
    match config.http {
        HttpMode::H3 => findings.fail("udp", error, format!("{advice} Or set `http = \"auto\"`.")),
        _ => findings.warn("udp", error, format!("{advice} Until then the agent uses HTTP/2.")),
    }
}

async fn identity_and_clock(findings: &mut Findings, url: &EdgeUrl, config: &Config) {
    let client = match client(url, config, HttpMode::H2) {
        Ok(client) => client,
        Err(error) => return findings.fail("identity", format!("{error:#}"), "Correct the files that it names."),
    };
    if let Some((headers, at)) = identity::check(findings, client.first(), config).await {
        clock(findings, "edge", &headers, at);
    }
}

/// A client of this edge alone.
fn client(url: &EdgeUrl, config: &Config, http: HttpMode) -> anyhow::Result<Edges> {
    let metrics = Metrics::register(&prometheus::Registry::new(), false)?;
    Edges::new(&Config { edges: vec![url.clone()], http, ..config.clone() }, &metrics)
}
