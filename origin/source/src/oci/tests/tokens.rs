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
        assert_eq!(requests.try_iter().count(), 4, "one exchange for each request");
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
        let script = vec![response("401 x", challenge, ""); 2];
        let shown = with_registry(10, script, |registry, name, _| message(registry.resolve(name, "v1")));
        assert!(shown.contains(reason), "{shown}");
    }
}

#[test]
fn a_registry_that_the_index_names_chooses_no_request_to_the_upstream() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "known").unwrap();
    let mut upstream = Upstream::new("https://charts.example/stable");
    upstream.config.token_file = Some(token);
    let (other, _requests) = server(vec![demands("https://charts.example/any?path")]);
    let tokens = Tokens::new(IntCounter::new("tokens", "tokens").unwrap());
    with_client(&upstream, |client| {
        let registry = Registry::new(client, &tokens, other.join("/").unwrap());
        let shown = message(registry.resolve(&"acme/shop".parse().unwrap(), "v1"));
        let expected = "asks for a token of `https://charts.example`, which is not followed: another host leads back";
        assert!(shown.contains(expected), "{shown}");
    });
}

/// The lines of requests, with the tokens that they have.
fn lines(requests: &Receiver<String>) -> Vec<String> {
    let line = |request: String| {
        let token = request.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
        let target = request.split('?').next().unwrap().split(" http").next().unwrap();
        [target.replace("/v2/acme/shop/", "").as_str(), token.unwrap_or_default()].join(" ").trim_end().to_owned()
    };
    requests.try_iter().map(line).collect()
}

#[test]
fn a_refusal_of_a_kept_token_makes_one_try_with_a_new_one() {
    let tagged = response("200 OK", &digest_header(&Sha256::of(b"manifest")), "");
    let [first, second] = [ok(TOKEN), ok(&TOKEN.replace("t1", "t2"))];
    for status in ["400 x", "401 x", "403 x", "412 x"] {
        let refused = || response(status, "", "");
        let script = vec![demands("/token"), first.clone(), tagged.clone(), refused(), second.clone(), tagged.clone()];
        let again = vec![refused(), first.clone(), refused(), refused()];
        with_registry(10, [script, again].concat(), |registry, name, requests| {
            registry.resolve(name, "v1").unwrap();
            requests.try_iter().for_each(drop);
            registry.resolve(name, "v1").unwrap();
            let head = "head manifests/v1";
            assert_eq!(lines(requests), [&format!("{head} t1"), "get /token", &format!("{head} t2")], "{status}");
            registry.resolve(name, "v1").unwrap_err();
            let expected = [&format!("{head} t2"), "get /token", &format!("{head} t1"), "get manifests/v1 t1"];
            assert_eq!(lines(requests), expected, "{status}");
        });
    }
    for status in ["404 x", "408 x", "429 x", "500 x"] {
        let script = vec![demands("/token"), first.clone(), tagged.clone(), response(status, "", ""), second.clone()];
        with_registry(10, script, |registry, name, requests| {
            registry.resolve(name, "v1").unwrap();
            requests.try_iter().for_each(drop);
            let _ = registry.resolve(name, "v1");
            assert!(!lines(requests).contains(&"get /token".to_owned()), "{status}");
        });
    }
}

#[test]
fn a_refused_number_of_tags_or_a_refused_head_needs_no_new_token() {
    let (tags, refused) = (ok(r#"{"tags":["v1"]}"#), response("400 x", "", ""));
    let script = vec![demands("/token"), ok(TOKEN), refused.clone(), tags.clone(), refused, tags];
    with_registry(10, script, |registry, name, requests| {
        registry.tags(name).unwrap();
        requests.try_iter().for_each(drop);
        assert_eq!(registry.tags(name).unwrap(), ["v1"]);
        assert_eq!(lines(requests), ["get tags/list t1", "get tags/list t1"]);
    });
    let script = vec![demands("/token"), ok(TOKEN), ok(MANIFEST), response("405 x", "", ""), ok(MANIFEST)];
    with_registry(10, script, |registry, name, requests| {
        registry.manifest_by_tag(name, "v1").unwrap();
        requests.try_iter().for_each(drop);
        registry.resolve(name, "v1").unwrap();
        assert_eq!(lines(requests), ["head manifests/v1 t1", "get manifests/v1 t1"]);
    });
}

#[test]
fn tokens_of_several_scopes_are_kept() {
    let demands = |scope: &str| {
        let challenge = format!("bearer realm=\"/token\",scope=\"repository:acme/shop:{scope}\"");
        response("401 x", &format!("www-authenticate: {challenge}\r\n"), "")
    };
    let tagged = response("200 OK", &digest_header(&Sha256::of(b"manifest")), "");
    let (tags, second) = (ok(r#"{"tags":["v1"]}"#), ok(&TOKEN.replace("t1", "t2")));
    let script = vec![demands("metadata_read"), ok(TOKEN), tags.clone(), demands("pull"), second, tagged.clone()];
    with_registry(10, [script, vec![tags, tagged.clone(), tagged]].concat(), |registry, name, requests| {
        for expected in [
            &[
                "get tags/list",
                "get /token",
                "get tags/list t1",
                "head manifests/v1 t1",
                "get /token",
                "head manifests/v1 t2",
            ][..],
            &["get tags/list t1", "head manifests/v1 t2"],
        ] {
            registry.tags(name).unwrap();
            registry.resolve(name, "v1").unwrap();
            assert_eq!(lines(requests), expected);
        }
        // Another kind of request has the last one.
        registry.blob(name, &Sha256::of(b"layer")).unwrap();
        assert_eq!(lines(requests), [format!("get blobs/sha256:{} t2", Sha256::of(b"layer"))]);
    });
}
