//! Signed publications, and the keys that sign them.

use std::process::{Command, Output};

use http_body_util::{BodyExt, Full};
use weir_protocol::access_list::AccessList;
use weir_protocol::freshness::{Freshness, HeartbeatAnswer, SignedFreshness};
use weir_protocol::token::PublicKey;
use weir_runtime::http_client::http2_client;
use weir_runtime::key_pair;

use crate::prelude::*;

/// A new key: its file, and what readers verify with.
pub(crate) fn new_key(home: &Home, name: &str) -> (PathBuf, PublicKey) {
    let file = home.file(name);
    let (key, _) = key_pair::write(&file).unwrap();
    (file, key.public().clone())
}

/// How many keys signed it, once each of `keys` alone is found to verify it.
fn signed_by(descriptor: &Descriptor, keys: &[&PublicKey]) -> usize {
    for key in keys {
        assert_eq!(descriptor.publication_signed_by(key).as_ref(), Some(descriptor.publication()));
    }
    descriptor.envelope().map_or(0, |envelope| envelope.key_ids().count())
}

async fn restarted(home: &Home, node: Node, config: &Config, keys: &[&PathBuf]) -> Node {
    node.stop().await;
    let mut config = config.clone();
    config.signing.keys = keys.iter().map(|key| (*key).clone()).collect();
    home.start(config).await
}

async fn retained(node: &Node, version: &Descriptor) -> Descriptor {
    let answer = node.get(&format!("/v1/services/{SERVICE}/versions/{}", version.publication().digest)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    Descriptor::parse(answer.body).unwrap()
}

#[tokio::test]
async fn signing_keys_are_rotated_while_readers_know_one_of_them() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let ((old_file, old), (new_file, new)) = (new_key(&home, "old.key"), new_key(&home, "new.key"));
    let config = home.config(&upstream.url());
    // Published before there was a key.
    let (node, unsigned) = home.start_published(&upstream).await;
    assert_eq!(signed_by(&unsigned, &[]), 0);

    let node = restarted(&home, node, &config, &[&old_file]).await;
    let first = node.descriptor().await;
    assert_eq!(signed_by(&first, &[&old]), 1);
    assert_eq!(first.publication(), unsigned.publication(), "the publication stays");
    assert_eq!(first.revision(), unsigned.revision() + 1, "edges see that there is something new");
    node.tarball(&first).await;
    assert_eq!(node.metric("weir_origin_signing_keys").await, 1.0);
    assert_eq!(first.publication_signed_by(&new), None);

    // What is published is signed at once.
    upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    let second = node.descriptor().await;
    assert_eq!((signed_by(&second, &[&old]), second.revision()), (1, 1));
    // Both, the new one alone, and a start that changes nothing.
    let node = restarted(&home, node, &config, &[&old_file, &new_file]).await;
    let both = node.descriptor().await;
    assert_eq!((signed_by(&both, &[&old, &new]), both.revision()), (2, second.revision() + 1));
    assert_eq!(both.representations(), second.representations());
    assert_eq!(signed_by(&retained(&node, &first).await, &[&old, &new]), 2, "retained versions too");
    let node = restarted(&home, node, &config, &[&new_file, &old_file]).await;
    assert_eq!(node.descriptor().await.bytes(), both.bytes());
    let node = restarted(&home, node, &config, &[&new_file]).await;
    let last = node.descriptor().await;
    assert_eq!((signed_by(&last, &[&new]), last.revision()), (1, both.revision() + 1));
    assert_eq!(signed_by(&retained(&node, &first).await, &[&new]), 1);
    let node = restarted(&home, node, &config, &[]).await;
    assert_eq!(signed_by(&node.descriptor().await, &[]), 0);
    assert_eq!(node.metric("weir_origin_signing_keys").await, 0.0);
    node.stop().await;
}

/// The statements that the origin signs for these services.
pub(crate) async fn statements(home: &Home, node: &Node, services: &[&str]) -> Vec<SignedFreshness> {
    let (certificate, key) = (home.file("edge-client.pem"), home.file("edge-client.key"));
    let client = http2_client(tls::client_config(&home.file("ca.pem"), Some((&certificate, &key))).unwrap());
    let body = json!({ "services": services }).to_string().into_bytes();
    let uri = format!("https://{}/v1/heartbeats", node.running.address());
    let request = http::Request::post(uri).body(Full::new(Bytes::from(body))).unwrap();
    let response = in_time(client.request(request)).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    HeartbeatAnswer::parse(&body).unwrap().services
}

#[tokio::test]
async fn statements_of_freshness_are_signed_on_demand() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let ((old_file, old), (new_file, new)) = (new_key(&home, "old.key"), new_key(&home, "new.key"));
    let (node, _) = home.start_published(&upstream).await;
    assert!(statements(&home, &node, &[SERVICE]).await.is_empty(), "there is no key");
    let node = restarted(&home, node, &home.config(&upstream.url()), &[&old_file, &new_file]).await;
    node.poll().await;
    let current = node.descriptor().await;
    let before = SystemTime::now() - Duration::from_secs(1);
    let [signed] = &statements(&home, &node, &["none", SERVICE]).await[..] else { panic!("one is published") };
    for key in [&old, &new] {
        let read = Freshness::signed_by(&signed.envelope, key).unwrap();
        assert_eq!((read.service.as_str(), read.upstream_unreachable_since), (SERVICE, None));
        assert_eq!((read.generation, read.digest), (current.publication().generation, current.publication().digest));
        assert!(read.time >= before && read.time <= SystemTime::now());
    }
    assert_eq!(node.metric("weir_origin_freshness_statements_total").await, 1.0);

    // Git cannot be reached: what is published stays right, as of then.
    upstream.take_away();
    node.poll().await;
    let [signed] = &statements(&home, &node, &[SERVICE]).await[..] else { panic!("one is published") };
    let read = Freshness::signed_by(&signed.envelope, &old).unwrap();
    assert!(read.upstream_unreachable_since.is_some_and(|since| since >= before && since <= read.time));
    assert_eq!(read.generation, current.publication().generation);
    node.stop().await;
}

fn weir_origin(home: &Home, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
    command.env_remove("WEIR_CONFIG").current_dir(home.file("")).args(arguments).output().unwrap()
}

#[test]
fn the_keys_command_makes_and_prints_keys() {
    let home = Home::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let made: Vec<String> = ["one.key", "two.key"]
        .iter()
        .map(|name| {
            let run = weir_origin(&home, &["keys", "new", name]);
            assert!(run.status.success(), "{run:?}");
            text(&run.stdout)
        })
        .collect();
    let again = weir_origin(&home, &["keys", "new", "one.key"]);
    assert!(!again.status.success() && text(&again.stderr).contains("never overwritten"), "{again:?}");

    let config = |keys: &str| home.write_config(&format!("[signing]\nkeys = [{keys}]\n"));
    config("\"one.key\", \"two.key\"");
    let printed = weir_origin(&home, &["keys", "--config", "origin.toml"]);
    assert_eq!(text(&printed.stdout), made.concat(), "{printed:?}");
    let mut list = AccessList::default();
    list.add_key_file(&text(&printed.stdout)).unwrap();
    assert_eq!(list.keys().count(), 2);

    let refused = |keys: &str, arguments: &[&str], expected: &str| {
        config(keys);
        let run = weir_origin(&home, arguments);
        assert!(!run.status.success() && text(&run.stderr).contains(expected), "{expected}: {run:?}");
    };
    let (keys, check) = (["keys", "--config", "origin.toml"], ["--config", "origin.toml", "--check-config"]);
    refused("", &keys, "does not sign");
    refused("\"one.key\", \"one.key\"", &check, "the same key");
    refused("\"one.key.pub\"", &check, "mode 0644");
    refused("\"none.key\"", &keys, "none.key");
    refused("", &["keys"], "--config");
    refused("", &[], "--config");
    // It would sign, and others could sign with it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o604);
    std::fs::set_permissions(home.file("one.key"), open).unwrap();
    refused("\"one.key\"", &keys, "chmod 600");
    refused("\"one.key\"", &["--config", "origin.toml"], "chmod 600");
}
