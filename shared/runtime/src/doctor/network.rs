//! Another node: its name, its port, its certificate and its clock. Each check needs those before it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use weir_protocol::token::CLOCK_LEEWAY;

use super::Findings;
use crate::tls;

/// How long each step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// A certificate that ends before this is a warning.
pub(super) const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// A difference of clocks that headers, which have whole seconds, cannot hide.
const SMALL_SKEW: Duration = Duration::from_secs(2);

/// The node that is called, as messages name it.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// What it is: `edge`.
    pub role: &'a str,
    /// Its host in the configuration.
    pub host: &'a str,
    /// The key that names it: `` `edges` ``.
    pub key: &'a str,
    /// The authority of its certificate.
    pub ca: &'a Path,
    /// What calls it: `agent`.
    pub caller: &'a str,
}

/// Finds the addresses of a name. `key`: where the configuration has it.
pub async fn dns(findings: &mut Findings, key: &str, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
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
pub async fn tcp(findings: &mut Findings, server: &str, addresses: &[SocketAddr]) -> Option<TcpStream> {
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

/// A TLS handshake; returns whether it succeeded.
pub async fn handshake(findings: &mut Findings, peer: &Peer<'_>, mut tls: ClientConfig, stream: TcpStream) -> bool {
    let Peer { role, host, caller, .. } = peer;
    let connect = async {
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from((*host).to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    };
    match timeout(STEP_TIMEOUT, connect).await {
        Err(_) => {
            let message = format!("no TLS handshake within {STEP_TIMEOUT:?}");
            let advice = format!("Check that no proxy stands in between, and that the port is the {role}'s.");
            findings.fail("tls", message, advice);
        }
        Ok(Err(error)) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            findings.fail("tls", error.to_string(), advice(cause, peer));
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
                findings.warn(
                    "tls",
                    message,
                    format!("Renew the {role}'s certificate: {caller}s refuse it after that."),
                );
            } else {
                findings.ok("tls", message);
            }
            return true;
        }
    }
    false
}

/// What to do about a failed handshake.
fn advice(cause: Option<&rustls::Error>, peer: &Peer<'_>) -> String {
    use CertificateError as C;
    let Peer { role, host, key, caller, .. } = peer;
    match cause {
        Some(rustls::Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature)) => peer.ca_advice(),
        Some(rustls::Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. })) => {
            format!("Issue a certificate for `{host}`, or use a name of the certificate in {key}.")
        }
        Some(rustls::Error::InvalidCertificate(
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. },
        )) => format!("Renew the {role}'s certificate, or correct the clock of this machine."),
        Some(rustls::Error::AlertReceived(_)) => {
            format!(
                "The {role} refuses this {caller}'s certificate: check `client_certificate`, and `client_ca` of the {role}."
            )
        }
        Some(rustls::Error::InvalidCertificate(_)) => {
            format!("{} Or renew the {role}'s certificate.", peer.ca_advice())
        }
        _ => format!("Check that the port is that of the {role}'s `listen`, and that no proxy opens TLS."),
    }
}

impl Peer<'_> {
    /// What to do when its certificate is not of the authority.
    pub fn ca_advice(&self) -> String {
        let (ca, role) = (self.ca.display(), self.role);
        format!(
            "Let `ca` ({ca}) name the certificate of the authority that signed the {role}'s certificate: not that certificate \
             itself, and no other authority."
        )
    }
}

/// Compares this machine's clock with that of a response, which came at `now`.
pub fn clock(findings: &mut Findings, role: &str, headers: &HeaderMap, now: SystemTime) {
    let advice = "Let a time service (chrony, systemd-timesyncd) set the clock of both machines.";
    match skew(headers, now) {
        None => findings.warn("clock", format!("the {role}'s answer has no date"), advice),
        Some((skew, _)) if skew <= SMALL_SKEW => findings.ok("clock", format!("within two seconds of the {role}'s")),
        Some((skew, ahead)) => {
            let seconds = skew.as_secs();
            let message = format!("{seconds} s {} the {role}'s", if ahead { "ahead of" } else { "behind" });
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
            clock(&mut findings, "edge", &headers, now);
            let finding = &findings.found[0];
            assert!(finding.verdict == verdict && finding.message.contains(named), "{finding:?}");
        }
    }
}
