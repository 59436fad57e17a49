//! `weir-origin doctor`: checks what an origin needs, one line each, with what to do. Works beside a running origin.
//!
//! Not checked: certificates of upstreams and the credentials for them. Polls do, and `weir get repositories` shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytesize::ByteSize;
use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_protocol::name::RepositoryName;
use weir_runtime::doctor::{Finding, Findings, Report, dns, tcp};

use crate::config::Config;

/// How long the store may take.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Free space below this is a warning.
const LITTLE_SPACE: ByteSize = ByteSize::gib(1);

/// Hosts that are checked at a time.
const AT_ONCE: usize = 16;

/// Checks this machine, the store, and the hosts of the upstreams of a valid configuration. Takes some seconds when something
/// does not respond.
pub async fn doctor(config: &Config) -> Report {
    let own = config.clone();
    let machine = spawn_blocking(move || machine(&own)).await.unwrap_or_default();
    let store = Box::pin(store(config)).await;
    let hosts = hosts(config);
    let hosts = hosts.iter().map(|((host, port), of)| upstream(host, *port, of));
    let upstreams: Vec<_> = stream::iter(hosts).buffered(AT_ONCE).collect().await;
    Report { findings: [machine, store].into_iter().chain(upstreams).flatten().collect() }
}

fn machine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new("this machine");
    findings.files(&config.check_files());
    findings.certificate("that of [tls]", &config.tls.certificate);
    let of_operators = config.operator_api.tls(&config.tls);
    if config.operator_listen.is_some() && of_operators != config.tls {
        findings.certificate("that of [operator_api]", &of_operators.certificate);
    }
    let (little, purpose) =
        (LITTLE_SPACE.max(config.limits.min_free), "mirrors and builds fit: below `min_free` they stop");
    findings.free_space(&config.data_dir, "is the `data_dir`", little, purpose);
    findings.found
}

/// Whether the records can be read, and what operators have defined there.
async fn store(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new("the store");
    let advice = "Correct [store] or [cluster], its credentials, or what stands in between.";
    match timeout(STORE_TIMEOUT, crate::stored_documents(config)).await {
        Err(_) => findings.fail("store", format!("no answer within {STORE_TIMEOUT:?}"), advice),
        Ok(Err(error)) => findings.fail("store", format!("{error:#}"), advice),
        Ok(Ok(stored)) => {
            findings.ok("store", "its records can be read");
            for (object, reason) in stored.refused {
                let message = format!("{object}: the operators' definition is invalid in this version: {reason}");
                findings.warn("definitions", message, "`weir apply` a better one.");
            }
            for (service, repository) in stored.without_repository {
                let message = format!("{repository}, the repository of the service {service}, is not defined");
                findings.warn("definitions", message, "Define it, or delete the service.");
            }
        }
    }
    findings.found
}

/// The hosts that polls connect to, each with the first repository that needs it.
fn hosts(config: &Config) -> BTreeMap<(String, u16), RepositoryName> {
    let mut hosts = BTreeMap::new();
    for repository in &config.repositories {
        // The name of an upstream behind a proxy is the proxy's affair.
        let endpoint = repository.proxy.as_ref().unwrap_or(&repository.url);
        if let (Some(host), Some(port)) = (endpoint.host(), endpoint.port()) {
            hosts.entry((host.to_owned(), port)).or_insert_with(|| repository.name.clone());
        }
    }
    hosts
}

async fn upstream(host: &str, port: u16, of: &RepositoryName) -> Vec<Finding> {
    let mut findings = Findings::new(format!("{host} port {port}, for the repository {of}"));
    if let Some(addresses) = dns(&mut findings, "its `url` or `proxy`", host, port).await {
        tcp(&mut findings, "the server", &addresses).await;
    }
    findings.found
}
