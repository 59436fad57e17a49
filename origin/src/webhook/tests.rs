use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use ring::hmac;

use super::*;

const SECRET: &str = "between us";

fn secret(text: &str) -> Secret {
    Secret::from_file(text.as_bytes()).unwrap()
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pair =
        |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    pairs.iter().map(pair).collect()
}

fn hex_hmac(secret: &str, body: &[u8]) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body);
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headers that each provider sends with a body.
fn signed(provider: Provider, event: &str, secret: &str, body: &[u8]) -> HeaderMap {
    let hex = hex_hmac(secret, body);
    let prefixed = format!("sha256={hex}");
    match provider {
        Provider::Github => headers(&[("X-GitHub-Event", event), ("X-Hub-Signature-256", &prefixed)]),
        Provider::Gitlab => headers(&[("X-Gitlab-Event", event), ("X-Gitlab-Token", secret)]),
        Provider::Gitea => headers(&[("X-Gitea-Event", event), ("X-Gitea-Signature", &hex)]),
        Provider::Bitbucket => headers(&[("X-Event-Key", event), ("X-Hub-Signature", &prefixed)]),
        Provider::Generic => headers(&[("X-Signature", &prefixed)]),
    }
}

fn judge(provider: Provider, headers: &HeaderMap, body: &[u8], follows: &str) -> DeliveryResult {
    let mut delivery = Delivery::begin(provider, headers, &[secret(SECRET)]);
    body.chunks(7).for_each(|part| delivery.push(part));
    delivery.finish(|name| name == Some(follows))
}

macro_rules! payload {
    ($name:literal) => {
        include_bytes!(concat!("payloads/", $name, ".json"))
    };
}

/// Provider, event, body, and the refs that changed.
fn recorded() -> Vec<(Provider, &'static str, &'static [u8], &'static [&'static str])> {
    use Provider::{Bitbucket, Generic, Gitea, Github, Gitlab};
    vec![
        (Github, "push", payload!("github-push"), &["refs/heads/main"]),
        (Github, "push", payload!("github-push-tag"), &["refs/tags/v1.2.0"]),
        (Github, "create", payload!("github-create"), &["refs/tags/v1.2.0"]),
        (Github, "delete", payload!("github-delete"), &["refs/heads/feature/cart"]),
        (Github, "pull_request", payload!("github-pull-request"), &["refs/pull/7/head", "refs/pull/7/merge"]),
        (Gitlab, "Push Hook", payload!("gitlab-push"), &["refs/heads/main"]),
        (Gitlab, "Tag Push Hook", payload!("gitlab-tag-push"), &["refs/tags/v1.2.0"]),
        (
            Gitlab,
            "Merge Request Hook",
            payload!("gitlab-merge-request"),
            &["refs/merge-requests/7/head", "refs/merge-requests/7/merge"],
        ),
        (Gitlab, "System Hook", payload!("gitlab-repository-update"), &["refs/heads/main"]),
        (Gitea, "push", payload!("gitea-push"), &["refs/heads/main"]),
        (Gitea, "create", payload!("gitea-create"), &["refs/tags/v1.2.0"]),
        (Gitea, "pull_request_sync", payload!("github-pull-request"), &["refs/pull/7/head", "refs/pull/7/merge"]),
        (Bitbucket, "repo:push", payload!("bitbucket-cloud-push"), &["refs/heads/main", "refs/heads/main"]),
        (
            Bitbucket,
            "repo:push",
            payload!("bitbucket-cloud-push-tag"),
            &["refs/tags/v1.2.0", "refs/heads/feature/cart"],
        ),
        (Bitbucket, "repo:refs_changed", payload!("bitbucket-server-refs-changed"), &["refs/heads/main"]),
        (
            Bitbucket,
            "pr:from_ref_updated",
            payload!("bitbucket-server-pull-request"),
            &["refs/pull-requests/7/from", "refs/pull-requests/7/merge"],
        ),
        (Generic, "", payload!("generic"), &["refs/heads/main"]),
    ]
}

#[test]
fn a_recorded_push_triggers_polls_of_repositories_that_follow_the_ref_only() {
    for (provider, event, body, refs) in recorded() {
        let headers = signed(provider, event, SECRET, body);
        let refs: Vec<String> = refs.iter().map(|name| (*name).to_owned()).collect();
        for name in &refs {
            let DeliveryResult::TriggerPoll { refs: triggered, revisions } = judge(provider, &headers, body, name)
            else {
                panic!("{provider} {event} triggers no poll");
            };
            assert_eq!(triggered, refs, "{provider} {event}");
            assert!(!revisions.is_empty() || !event.contains("ush"), "{provider} {event} names no revision");
        }
        let nobody = judge(provider, &headers, body, "refs/heads/another");
        assert_eq!(nobody, DeliveryResult::Ignored(Ignored::NotFollowed), "{provider} {event}");
    }
}

#[test]
fn a_wrong_signature_or_none_is_refused_before_anything_is_read() {
    for (provider, event, body, refs) in recorded() {
        let follows = refs[0];
        let another = signed(provider, event, "another secret", body);
        assert_eq!(judge(provider, &another, body, follows), DeliveryResult::Refused, "{provider}: another secret");
        let mut unsigned = signed(provider, event, SECRET, body);
        for name in ["x-hub-signature-256", "x-gitlab-token", "x-gitea-signature", "x-hub-signature", "x-signature"] {
            unsigned.remove(name);
        }
        assert_eq!(judge(provider, &unsigned, body, follows), DeliveryResult::Refused, "{provider}: unsigned");
        if provider != Provider::Gitlab {
            let headers = signed(provider, event, SECRET, body);
            let changed = [body, b" "].concat();
            assert_eq!(
                judge(provider, &headers, &changed, follows),
                DeliveryResult::Refused,
                "{provider}: another body"
            );
        }
        let nobody_s = Delivery::begin(provider, &signed(provider, event, SECRET, body), &[]);
        assert_eq!(nobody_s.finish(|_| true), DeliveryResult::Refused, "{provider}: no secret");
    }
}

#[test]
fn the_signature_that_github_documents() {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let headers = headers(&[("X-GitHub-Event", "ping"), ("X-Hub-Signature-256", signature)]);
    let result_of = |secrets: &[Secret]| {
        let mut delivery = Delivery::begin(Provider::Github, &headers, secrets);
        delivery.push(b"Hello, World!");
        delivery.finish(|_| true)
    };
    let right = secret("It's a Secret to Everybody\n");
    let alone = result_of(std::slice::from_ref(&right));
    assert_eq!(alone, DeliveryResult::Ignored(Ignored::Ping), "the line's end in the file does not count");
    assert_eq!(result_of(&[secret("new"), right]), DeliveryResult::Ignored(Ignored::Ping), "any of several");
    assert_eq!(result_of(&[secret("new")]), DeliveryResult::Refused);
}

#[test]
fn gitlab_s_signatures_are_over_id_time_and_body() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let (key, body) = ([7; 32], payload!("gitlab-push"));
    let token = format!("whsec_{}", STANDARD.encode(key));
    let signed = [&b"f5e5f430.1774137600."[..], body].concat();
    let tag = STANDARD.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed));
    let result_of = |id: &str, signatures: &str| {
        let headers = headers(&[
            ("webhook-id", id),
            ("webhook-timestamp", "1774137600"),
            ("webhook-signature", signatures),
            ("X-Gitlab-Token", &token),
        ]);
        let mut delivery = Delivery::begin(Provider::Gitlab, &headers, &[secret(&token)]);
        delivery.push(body);
        delivery.finish(|name| name == Some("refs/heads/main"))
    };
    let triggers = |result| matches!(result, DeliveryResult::TriggerPoll { refs, .. } if refs == ["refs/heads/main"]);
    assert!(triggers(result_of("f5e5f430", &format!("v1,{tag}"))));
    assert!(triggers(result_of("f5e5f430", &format!("v1,AAAA v2,{tag} v1,{tag}"))), "one of several");
    assert_eq!(result_of("another", &format!("v1,{tag}")), DeliveryResult::Refused);
    assert_eq!(result_of("f5e5f430", "v1,AAAA"), DeliveryResult::Refused, "the token next to it does not help");
    assert_eq!(result_of("f5e5f430", ""), DeliveryResult::Refused);
}

#[test]
fn other_events_are_ignored_and_unclear_deliveries_trigger_a_poll() {
    use Provider::{Bitbucket, Gitea, Github, Gitlab};
    let follows = "refs/heads/main";
    let verdict = |provider, event, body: &[u8]| judge(provider, &signed(provider, event, SECRET, body), body, follows);
    assert_eq!(verdict(Github, "ping", payload!("github-ping")), DeliveryResult::Ignored(Ignored::Ping));
    assert_eq!(verdict(Bitbucket, "diagnostics:ping", b"{\"test\": true}"), DeliveryResult::Ignored(Ignored::Ping));
    for (provider, event, body) in [
        (Github, "workflow_run", &b"{}"[..]),
        (Gitea, "issues", b"{}"),
        (Gitlab, "Pipeline Hook", payload!("gitlab-pipeline")),
        (Bitbucket, "pullrequest:created", b"{}"),
    ] {
        assert_eq!(verdict(provider, event, body), DeliveryResult::Ignored(Ignored::OtherEvent), "{provider} {event}");
    }
    let polls = |result| matches!(result, DeliveryResult::TriggerPoll { refs, .. } if refs.is_empty());
    for (provider, event, body) in [
        (Github, "push", &b"payload=%7B%22ref%22%3A%22refs%2Fheads%2Fother%22%7D"[..]),
        (Github, "push", b"{\"ref\": \"other\"}"),
        (Github, "push", b""),
        (Github, "", payload!("github-push")),
        (Gitlab, "Push Hook", b"[]"),
        (Bitbucket, "repo:push", b"{\"push\": {\"changes\": []}}"),
        (Bitbucket, "mirror:repo_synchronized", payload!("bitbucket-server-synchronized")),
    ] {
        assert!(polls(verdict(provider, event, body)), "{provider} {event}");
    }
}

#[test]
fn a_body_too_long_to_parse_is_verified_and_triggers_a_poll() {
    let mut body = b"{\"ref\": \"refs/heads/other\", \"commits\": \"".to_vec();
    body.resize(MAX_PARSED_BYTES + 100, b'x');
    body.extend_from_slice(b"\"}");
    let headers = signed(Provider::Github, "push", SECRET, &body);
    let mut delivery = Delivery::begin(Provider::Github, &headers, &[secret(SECRET)]);
    body.chunks(100_000).for_each(|part| delivery.push(part));
    assert!(delivery.body.len() <= MAX_PARSED_BYTES);
    assert_eq!(delivery.finish(|_| false), DeliveryResult::TriggerPoll { refs: Vec::new(), revisions: Vec::new() });
    body.push(b' ');
    assert_eq!(judge(Provider::Github, &headers, &body, ""), DeliveryResult::Refused);
}

#[test]
fn a_secret_never_shows_and_an_empty_file_is_none() {
    assert!(!format!("{:?}", secret("hidden")).contains("hidden"));
    assert!(Secret::from_file(b" \n").is_none() && Secret::from_file(b"").is_none());
}

proptest! {
    #[test]
    fn random_signatures_are_refused_without_a_panic(
        provider in prop::sample::select(vec!["github", "gitlab", "gitea", "bitbucket", "generic"]),
        event in "[a-z:_]{0,20}",
        claimed in "(sha256=)?[0-9a-fA-F]{0,66}|v1,[A-Za-z0-9+/=]{0,60}|[ -~]{0,40}",
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let provider: Provider = provider.parse().unwrap();
        let headers = headers(&[
            ("x-github-event", &event), ("x-event-key", &event), ("x-gitea-event", &event),
            ("x-hub-signature-256", &claimed), ("x-hub-signature", &claimed), ("x-gitea-signature", &claimed),
            ("x-signature", &claimed), ("x-gitlab-token", &claimed),
        ]);
        prop_assert_eq!(judge(provider, &headers, &body, "refs/heads/main"), DeliveryResult::Refused);
    }

    #[test]
    fn a_signed_delivery_triggers_full_refs_only(
        provider in prop::sample::select(vec!["github", "gitlab", "gitea", "bitbucket", "generic"]),
        event in prop::sample::select(vec![
            "push", "create", "delete", "pull_request", "repo:push", "repo:refs_changed", "mirror:repo_synchronized",
            "pr:opened", "ping", "",
        ]),
        body in "[\\[\\]{}:,\"0-9 ]{0,40}|\\{\"(ref|object_kind|push|changes)\": ?(\"[ -~]{0,20}\"|[0-9]{1,30}|null|\\[\\])\\}",
    ) {
        let provider: Provider = provider.parse().unwrap();
        let headers = signed(provider, event, SECRET, body.as_bytes());
        match judge(provider, &headers, body.as_bytes(), "refs/heads/main") {
            DeliveryResult::TriggerPoll { refs, .. } => prop_assert!(refs.iter().all(|name| name.starts_with("refs/"))),
            DeliveryResult::Ignored(_) => {}
            DeliveryResult::Refused => prop_assert!(false, "it is signed"),
        }
    }
}

/// A registry and a Helm repository change without a ref that moves.
#[test]
fn any_event_but_a_ping_polls_what_has_no_refs() {
    let judge = |provider, event, body: &[u8]| {
        let mut delivery = Delivery::begin(provider, &signed(provider, event, SECRET, body), &[secret(SECRET)]);
        delivery.push(body);
        delivery.finish(|_| true)
    };
    let polls = DeliveryResult::TriggerPoll { refs: Vec::new(), revisions: Vec::new() };
    for event in ["package", "registry_package", "release", "page_build"] {
        assert_eq!(judge(Provider::Github, event, b"{}"), polls, "{event}");
    }
    assert_eq!(judge(Provider::Gitea, "package", b"{}"), polls);
    assert_eq!(judge(Provider::Gitlab, "Release Hook", br#"{"object_kind": "release"}"#), polls);
    assert_eq!(judge(Provider::Github, "ping", b"{}"), DeliveryResult::Ignored(Ignored::Ping));
}

#[test]
fn who_cannot_sign_sends_the_secret() {
    let judge = |pairs: &[(&str, &str)]| {
        Delivery::begin(Provider::Generic, &headers(pairs), &[secret(SECRET)]).finish(|_| true)
    };
    assert_eq!(
        judge(&[("X-Webhook-Token", SECRET)]),
        DeliveryResult::TriggerPoll { refs: Vec::new(), revisions: Vec::new() }
    );
    assert_eq!(judge(&[("X-Webhook-Token", "another")]), DeliveryResult::Refused);
    let wrong = hex_hmac("another", b"");
    assert_eq!(judge(&[("X-Webhook-Token", SECRET), ("X-Signature", &wrong)]), DeliveryResult::Refused);
}
