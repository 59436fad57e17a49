//! Clients of registries that others wrote pull from an edge.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use tokio::process::Command;
use weir_protocol::token::SigningKey;

use crate::access::{Guarded, claims};
use crate::oci_attached::signed;
use crate::site::Site;
use crate::test_origin::{FRAME, Tarball};

/// Runs a client in a folder that has the authority of the edge. `None`: there is none. Otherwise what it writes, or its error.
async fn run(name: &str, folder: &Path, arguments: &[&str]) -> Option<Result<Vec<u8>, String>> {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(folder).env("HOME", folder).env_remove("DOCKER_CONFIG");
    let Ok(ran) = command.env("SSL_CERT_FILE", folder.join("ca.pem")).output().await else {
        assert!(std::env::var_os("WEIR_NIGHTLY").is_none(), "there is no {name}");
        eprintln!("SKIPPED: there is no {name}, which `.ci/nightly` downloads");
        return None;
    };
    let error = || format!("{name} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Some(if ran.status.success() { Ok(ran.stdout) } else { Err(error()) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oras_and_crane_pull_with_tokens_while_the_origin_is_down() {
    let guarded = Guarded::start().await;
    let (site, dir) = (&guarded.site, guarded.site.pki());
    let (first, second) = (Tarball::random(3, 2 * FRAME).and_oci(), Tarball::random(4, 5000).and_oci());
    let forms = [&first, &second].map(|tarball| tarball.form().unwrap());
    let bearer = guarded.bearer(&claims("one", &["shop*"]));
    let token = bearer.strip_prefix("Bearer ").unwrap();
    let edge = site.edge().address().to_string();
    let name = format!("{edge}/weir/shop");
    let latest = format!("{name}:latest");
    let Some(_) = run("oras", dir, &["version"]).await else { return };
    let login = ["auth", "login", &edge, "--username", "anyone", "--password", token];
    let Some(refused) = run("crane", dir, &["manifest", &latest]).await else { return };
    assert!(refused.unwrap_err().contains("UNAUTHORIZED"));
    run("crane", dir, &login).await.unwrap().unwrap();
    let copy = async |from: &str, to: &str| {
        let layout = format!("{to}:pulled");
        let login = ["--from-username", "anyone", "--from-password", token, "--from-ca-file", "ca.pem"];
        run("oras", dir, &[&["copy", "--to-oci-layout", from, &layout], &login[..]].concat()).await.unwrap().unwrap();
    };
    for (generation, tarball) in [(8, &first), (9, &second)] {
        site.origin.publish("shop", generation, 1, tarball);
        let digest = format!("{name}@sha256:{}", tarball.form().unwrap().sha256);
        copy(&digest, &format!("pulled-{generation}")).await;
    }
    site.settled().await;
    site.origin.go_down().await;
    for (form, tarball) in forms.iter().zip([&first, &second]) {
        let digest = format!("{name}@sha256:{}", form.sha256);
        assert_eq!(run("crane", dir, &["manifest", &digest]).await.unwrap().unwrap(), form.manifest.as_bytes());
        let layer = format!("{name}@sha256:{}", form.blobs[0].sha256);
        assert!(run("crane", dir, &["blob", &layer]).await.unwrap().unwrap() == tarball.layer());
        copy(&digest, "again").await;
        let pulled = dir.join("again/blobs/sha256").join(form.blobs[0].sha256.to_string());
        assert!(fs::read(pulled).unwrap() == tarball.layer());
    }
    let tags = String::from_utf8(run("crane", dir, &["ls", &name]).await.unwrap().unwrap()).unwrap();
    assert_eq!(tags, "c00000000000\nlatest\n");
    let digest = run("crane", dir, &["digest", &latest]).await.unwrap().unwrap();
    let digest = String::from_utf8(digest).unwrap();
    assert!(forms.iter().any(|form| digest.trim() == format!("sha256:{}", form.sha256)), "{digest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cosign_accepts_what_the_origin_signed_while_it_is_down() {
    let (site, tarball) = (Site::start().await, Tarball::random(3, 5000).and_oci());
    let [(key, _), (other, _)] = [(); 2].map(|()| SigningKey::generate().unwrap());
    for (name, key) in [("weir.pub", &key), ("other.pub", &other)] {
        // As OpenSSL writes it: `openssl pkey -pubout`.
        let bytes = URL_SAFE_NO_PAD.decode(key.public().encoded()).unwrap();
        let der = [&STANDARD.decode("MCowBQYDK2VwAyEA").unwrap()[..], &bytes].concat();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        fs::write(site.pki().join(name), pem).unwrap();
    }
    site.origin.put("shop", &tarball, signed(&tarball, key));
    let latest = format!("{}/weir/shop:latest", site.edge().address());
    let verify = async |key: &str, form: &[&str]| {
        let arguments = [&["verify", "--insecure-ignore-tlog=true", "--key", key], form, &[&*latest]].concat();
        run("cosign", site.pki(), &arguments).await
    };
    let Some(verified) = verify("weir.pub", &[]).await else { return };
    verified.unwrap();
    site.settled().await;
    site.origin.go_down().await;
    let digest = format!("\"sha256:{}\"", tarball.form().unwrap().sha256);
    for form in [&[][..], &["--new-bundle-format=false"]] {
        let verified = String::from_utf8(verify("weir.pub", form).await.unwrap().unwrap()).unwrap();
        assert!(verified.contains(&digest), "{form:?}: {verified}");
        verify("other.pub", form).await.unwrap().unwrap_err();
    }
}
