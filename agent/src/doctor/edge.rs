//! One edge: each check needs those before it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use weir_protocol::token::CLOCK_LEEWAY;
use weir_runtime::tls;

use super::{Finding, Findings, identity};
use crate::config::{Config, EdgeUrl, HttpMode};
use crate::edge_client::{Edges, RequestError};
use crate::metrics::Metrics;

/// How long each step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// A certificate that ends before this is a warning.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// A difference of clocks that headers, which have whole seconds, cannot hide.
const SMALL_SKEW: Duration = Duration::from_secs(2);

pub(super) async fn check(url: &EdgeUrl, config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new(url.to_string());
    // Each check below needs it, and would blame something else.
    if let Err(error) = tls::read_roots(&config.ca) {
        findings.fail("tls", error.to_string(), ca_advice(&config.ca.display().to_string()));
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
        // Over UDP the same certificate is refused, which says nothing about UDP.
        if handshake(&mut findings, url, config, stream).await {
            udp(&mut findings, url, config).await;
            identity_and_clock(&mut findings, url, config).await;
        }
    }
    findings.found
}

async fn dns(findings: &mut Findings, key: &str, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let advice = format!("Correct {key}, or this machine's resolver (/etc/resolv.conf).");
    match timeout(STEP_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Err(_) => findings.fail("dns", format!("{host} does not resolve within {STEP_TIMEOUT:?}"), advice),
        Ok(Err(error)) => findings.fail("dns", format!("{host} does not resolve: {error}"), advice),
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.collect();
            let shown: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
            findings.ok("dns", shown.join(", "));
            return Some(addresses);
        }
    }
    None
}

/// Connects to each address of `server`; returns a connection.
async fn tcp(findings: &mut Findings, server: &str, addresses: &[SocketAddr]) -> Option<TcpStream> {
    let (mut reached, mut failed) = (None, Vec::new());
    for address in addresses {
        match timeout(STEP_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => reached = Some(stream),
            Ok(Err(error)) => failed.push(format!("{address}: {error}")),
            Err(_) => failed.push(format!("{address}: no answer within {STEP_TIMEOUT:?}")),
        }
    }
    let port = addresses.first().map_or(0, SocketAddr::port);
    let advice = format!("Check that {server} listens there, and that firewalls let TCP port {port} pass.");
    match (&reached, failed.is_empty()) {
        (Some(_), true) => findings.ok("tcp", format!("port {port} accepts connections")),
        (Some(_), false) => findings.warn("tcp", failed.join("; "), advice),
        (None, _) => findings.fail("tcp", failed.join("; "), advice),
    }
    reached
}

async fn udp(findings: &mut Findings, url: &EdgeUrl, config: &Config) {
    if let Some(reason) = config.no_http3() {
        return findings.ok("udp", format!("not used: {reason}"));
    }
    let result = match client(url, config, HttpMode::H3) {
        Ok(client) => match client.first().handshake().await {
            // UDP passes.
            Err(error @ RequestError::Certificate(_)) => {
                return findings.fail("udp", error.to_string(), ca_advice(&config.ca.display().to_string()));
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

/// A TLS handshake; returns whether it succeeded.
async fn handshake(findings: &mut Findings, url: &EdgeUrl, config: &Config, stream: TcpStream) -> bool {
    let connect = async {
        let identity = config.client_certificate.as_deref().zip(config.client_key.as_deref());
        let mut tls = tls::client_config(&config.ca, identity).map_err(std::io::Error::other)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(url.host().to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    };
    match timeout(STEP_TIMEOUT, connect).await {
        Err(_) => {
            let message = format!("no TLS handshake within {STEP_TIMEOUT:?}");
            findings.fail("tls", message, "Check that no proxy stands in between, and that the port is the edge's.");
        }
        Ok(Err(error)) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            findings.fail("tls", error.to_string(), advice(cause, url, &config.ca.display().to_string()));
        }
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let ends = chain.iter().filter_map(tls::ends).min();
            let now = SystemTime::now();
            let Some(ends) = ends else {
                findings.ok("tls", "the certificate is accepted");
                return true;
            };
            let message =
                format!("the certificate is accepted, and ends on {}", humantime::format_rfc3339_seconds(ends));
            if ends < now + SOON {
                findings.warn("tls", message, "Renew the edge's certificate: agents refuse it after that.");
            } else {
                findings.ok("tls", message);
            }
            return true;
        }
    }
    false
}

/// What to do about a failed handshake.
fn advice(cause: Option<&rustls::Error>, url: &EdgeUrl, ca: &str) -> String {
    use CertificateError as C;
    match cause {
        Some(rustls::Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature)) => ca_advice(ca),
        Some(rustls::Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. })) => {
            format!("Issue a certificate for `{}`, or use a name of the certificate in `edges`.", url.host())
        }
        Some(rustls::Error::InvalidCertificate(
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
        )) => "Renew the edge's certificate, or correct the clock of this machine.".to_owned(),
        Some(rustls::Error::AlertReceived(_)) => {
            "The edge refuses this agent's certificate: check `client_certificate`, and `client_ca` of the edge."
                .to_owned()
        }
        Some(rustls::Error::InvalidCertificate(_)) => format!("{} Or renew the edge's certificate.", ca_advice(ca)),
        _ => "Check that the port is that of the edge's `listen`, and that no proxy opens TLS.".to_owned(),
    }
}

/// What to do when the edge's certificate is not of the authority.
fn ca_advice(ca: &str) -> String {
    format!(
        "Let `ca` ({ca}) name the certificate of the authority that signed the edge's certificate: not that certificate itself, \
         and no other authority."
    )
}

async fn identity_and_clock(findings: &mut Findings, url: &EdgeUrl, config: &Config) {
    let client = match client(url, config, HttpMode::H2) {
        Ok(client) => client,
        Err(error) => return findings.fail("identity", format!("{error:#}"), "Correct the files that it names."),
    };
    if let Some((headers, at)) = identity::check(findings, client.first(), config).await {
        report_clock(findings, skew(&headers, at));
    }
}

fn report_clock(findings: &mut Findings, skew: Option<(Duration, bool)>) {
    let advice = "Let a time service (chrony, systemd-timesyncd) set the clock of both machines.";
    match skew {
        None => findings.warn("clock", "the edge's answer has no date", advice),
        Some((skew, _)) if skew <= SMALL_SKEW => findings.ok("clock", "within two seconds of the edge's"),
        Some((skew, ahead)) => {
            let seconds = skew.as_secs();
            let message = format!("{seconds} s {} the edge's", if ahead { "ahead of" } else { "behind" });
            if skew < CLOCK_LEEWAY {
                findings.warn("clock", message, advice);
            } else {
                findings.fail(
                    "clock",
                    format!("{message}: tokens and certificates seem expired or not valid yet"),
                    advice,
                );
            }
        }
    }
}

/// The difference of this machine's clock to that of a response, and whether it is ahead.
fn skew(headers: &HeaderMap, now: SystemTime) -> Option<(Duration, bool)> {
    let date = httpdate::parse_http_date(headers.get(header::DATE)?.to_str().ok()?).ok()?;
    Some(now.duration_since(date).map_or_else(|behind| (behind.duration(), false), |ahead| (ahead, true)))
}

/// A client of this edge alone.
fn client(url: &EdgeUrl, config: &Config, http: HttpMode) -> anyhow::Result<Edges> {
    let metrics = Metrics::register(&prometheus::Registry::new(), false)?;
    Edges::new(&Config { edges: vec![url.clone()], http, ..config.clone() }, &metrics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn the_clock_is_judged_by_the_leeway_of_tokens() {
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut headers = HeaderMap::new();
        assert_eq!(skew(&headers, date), None);
        headers.insert(header::DATE, httpdate::fmt_http_date(date).parse().unwrap());
        for (now, verdict, named) in [
            (date + Duration::from_millis(1500), Verdict::Ok, "two seconds"),
            (date + Duration::from_secs(10), Verdict::Warn, "10 s ahead of"),
            (date - Duration::from_secs(10), Verdict::Warn, "10 s behind"),
            (date - CLOCK_LEEWAY, Verdict::Fail, "60 s behind"),
        ] {
            let mut findings = Findings::new("edge");
            report_clock(&mut findings, skew(&headers, now));
            let finding = &findings.found[0];
            assert!(finding.verdict == verdict && finding.message.contains(named), "{finding:?}");
        }
    }
}
