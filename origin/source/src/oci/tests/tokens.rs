//! Tokens, and what demands them.

use super::*;

#[test]
fn a_token_is_requested_once_and_again_when_it_is_no_longer_accepted() {
    let digest = Sha256::of(b"manifest");
    let tagged = response("200 OK", &digest_header(&digest), "");
    let script = vec![
        demands("/token?account=x"),
        ok(TOKEN),
        tagged.clone(),
        tagged.clone(),
        demands("/token"),
        ok(&TOKEN.replace("t1", "t2")),
        tagged,
        demands("/token"),
        ok(TOKEN),
        demands("/token"),
    ];
    with_registry(10, script, |registry, name, requests| {
        assert_eq!(registry.resolve(name, "v1").unwrap(), (digest, None));
        let first = requests.recv().unwrap();
        assert!(
            first.starts_with("head /v2/acme/shop/manifests/v1 http") && !first.contains("authorization"),
            "{first}"
        );
        assert!(first.contains("oci.image.index.v1+json") && first.contains("docker.distribution.manifest.v2+json"));
        let token = requests.recv().unwrap();
        let query = "get /token?account=x&scope=repository%3aacme%2fshop%3apull&service=r http";
        assert!(token.starts_with(query), "{token}");
        assert!(requests.recv().unwrap().contains("\r\nauthorization: bearer t1\r\n"));
        assert_eq!(registry.resolve(name, "v1").unwrap(), (digest, None));
        assert!(requests.recv().unwrap().contains("\r\nauthorization: bearer t1\r\n"), "one request");
        assert_eq!(registry.resolve(name, "v1").unwrap(), (digest, None));
        assert!(requests.iter().nth(2).unwrap().contains("\r\nauthorization: bearer t2\r\n"));
        let refused = message(registry.resolve(name, "v1"));
        assert!(
            refused.starts_with("[authenticate] ") && refused.contains("refuses access to `acme/shop`"),
            "{refused}"
        );
        assert_eq!(requests.try_iter().count(), 3, "one exchange for each request");
    });
}

#[test]
fn a_token_service_is_followed_within_the_egress_policy_alone() {
    for (realm, reason) in [
        (
            "http://10.0.0.1/token",
            "the registry asks for a token of `10.0.0.1`, which is not followed: the host `10.0.0.1` has no",
        ),
        ("http://169.254.169.254/", "has no public address"),
        ("file:///etc/passwd", "which is not followed: it is neither https nor http"),
        ("http://me:s3cret@auth.example/", "its URL contains a user name or a password"),
        ("http://[", "which is not followed: its `Location` cannot be parsed"),
    ] {
        let shown = with_registry(10, vec![demands(realm)], |registry, name, _| message(registry.resolve(name, "v1")));
        assert!(shown.starts_with("[authenticate] ") && shown.contains(reason), "{realm}: {shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    for (answer, reason) in [
        (ok("{}"), "[authenticate] the upstream denies access: the token service `127.0.0.1` answers without a token"),
        (ok(&format!("{{\"token\":\"{}\"}}", "x".repeat(64 << 10))), "answers with more than 65536 bytes"),
        (response("302 x", "location: /other\r\n", ""), "redirects, which is not followed"),
        (response("401 x", "", ""), "gives no token for `acme/shop` without credentials"),
        (response("503 x", "retry-after: 7\r\n", ""), "[list] the token service `127.0.0.1` answered 503"),
        (response("404 x", "", ""), "[list] the token service `127.0.0.1` answered 404"),
    ] {
        let script = vec![demands("/token"), answer];
        let shown = with_registry(10, script, |registry, name, _| message(registry.resolve(name, "v1")));
        assert!(shown.contains(reason), "{shown}");
    }
    for (challenge, reason) in [
        ("www-authenticate: Basic realm=\"x\"\r\n", "it requires credentials, but none are configured"),
        ("www-authenticate: Digest realm=\"x\"\r\n", "in a way that is not supported"),
        ("", "in a way that is not supported"),
    ] {
        let script = vec![response("401 x", challenge, "")];
        let shown = with_registry(10, script, |registry, name, _| message(registry.resolve(name, "v1")));
        assert!(shown.contains(reason), "{shown}");
    }
}

#[test]
fn a_token_that_is_refused_is_not_kept() {
    let tagged = response("200 OK", &digest_header(&Sha256::of(b"manifest")), "");
    let refused = || response("403 x", "", "");
    let exchange = |answer: String| [demands("/token"), ok(TOKEN), answer];
    let script = [exchange(refused()), exchange(tagged.clone())].concat();
    with_registry(10, [script, vec![refused(), tagged]].concat(), |registry, name, requests| {
        assert!(message(registry.resolve(name, "v1")).contains("is refused by the registry: it answered 403"));
        registry.resolve(name, "v1").unwrap();
        assert!(registry.resolve(name, "v1").is_err());
        registry.resolve(name, "v1").unwrap();
        let has_token = requests.try_iter().map(|it| it.contains("\r\nauthorization: bearer t1\r\n"));
        let expected = [false, false, true, false, false, true, true, false];
        assert_eq!(has_token.collect::<Vec<_>>(), expected, "a new token after each refusal");
    });
}
