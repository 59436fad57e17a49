//! Tests against three members of etcd, with mutual TLS.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use weir_runtime::certificates;

use super::super::contract;
use super::super::engine::Engine;
use super::*;
use crate::test_server::TestServer;

/// Longer than a member takes to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The members of a cluster on loopback, and its configuration. `None`: etcd is not installed.
fn start(folder: &Path) -> Option<(Vec<TestServer>, EtcdConfig)> {
    // Addresses that no other process of the tests uses, so that the ports need not be free.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let hosts = [1, 2, 3].map(|member| format!("127.{high}.{low}.{member}"));
    certificates::write(folder, &hosts).unwrap();
    let file = |name: &str| folder.join(name);
    let cluster = hosts.each_ref().map(|host| format!("{host}=http://{host}:2380")).join(",");
    let members = hosts.iter().map(|host| {
        let (client, peer) = (format!("https://{host}:2379"), format!("http://{host}:2380"));
        let mut command = Command::new("etcd");
        command.args(["--name", host, "--initial-cluster", &cluster, "--client-cert-auth"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--cert-file").arg(file("origin.pem")).arg("--key-file").arg(file("origin.key"));
        command.arg("--trusted-ca-file").arg(file("ca.pem")).arg("--data-dir").arg(file(host));
        TestServer::spawn(command, "Debian's package etcd-server brings it")
    });
    let mut members = members.collect::<Option<Vec<_>>>()?;
    for member in &mut members {
        member.wait_for("ready to serve client requests");
    }
    let config = EtcdConfig {
        endpoints: hosts.iter().map(|host| format!("https://{host}:2379")).collect(),
        ca: Some(file("ca.pem")),
        certificate: Some(file("edge-client.pem")),
        key: Some(file("edge-client.key")),
        prefix: "weir/".to_owned(),
        allow_http: false,
    };
    Some((members, config))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_and_a_silent_member_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let Some((mut members, config)) = start(dir.path()) else { return };
    let engine = Arc::new(EtcdEngine::open(&config, PATIENCE).unwrap());
    contract::holds(Engine::Etcd(engine)).await;

    // A new client begins with the first member that it can connect to.
    let engine = EtcdEngine::open(&config, PATIENCE).unwrap();
    let key: RecordKey = "repositories/silent".parse().unwrap();
    let PutOutcome::Done(first) = engine.put(&key, b"first", Expect::Absent).await else { panic!("it is absent") };
    let process = |member: &TestServer| Pid::from_child(&member.child);
    let used = process(&members[engine.client.current()]);
    kill_process(used, Signal::STOP).unwrap();
    waitpid(Some(used), WaitOptions::UNTRACED).unwrap();
    let outcome = engine.put(&key, b"second", Expect::Version(first)).await;
    assert!(matches!(outcome, PutOutcome::Unknown(_)), "it was sent, and not sent again: {outcome:?}");
    // The others may have to elect a leader.
    let read = loop {
        match engine.get(&key).await {
            Ok(read) => break read.unwrap(),
            Err(RecordError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    // That member may pass the write on when it runs again, or have passed it on before; one of both writes wins.
    kill_process(used, Signal::CONT).unwrap();
    let settled = engine.put(&key, b"third", Expect::Version(read.version.clone())).await;
    let last = engine.get(&key).await.unwrap().unwrap();
    match settled {
        PutOutcome::Done(version) => assert_eq!((&last.bytes[..], last.version), (&b"third"[..], version)),
        _ => assert_ne!(last.bytes, "first"),
    }

    members.truncate(1);
    let read = engine.get(&key).await;
    assert!(matches!(read, Err(RecordError::Unavailable { .. })), "a minority knows nothing: {read:?}");
    let written = engine.put(&key, b"fourth", Expect::Absent).await;
    assert!(matches!(written, PutOutcome::Unknown(_)), "{written:?}");
}
