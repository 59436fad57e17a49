//! Lists of tags.

use super::*;

#[test]
fn all_pages_of_tags_are_read_or_none() {
    let page = |next: &str, tags: &str| {
        let link = format!("link: <http://internal/v2/other?{next}>; rel=\"next\"\r\n");
        response("200 OK", if next.is_empty() { "" } else { &link }, &format!("{{\"name\":\"x\",\"tags\":{tags}}}"))
    };
    let script = vec![page("last=b", r#"["a","b"]"#), page("last=c", r#"["c","-x","a/b"]"#), page("", "null")];
    with_registry(5, script, |registry, name, requests| {
        assert_eq!(registry.tags(name).unwrap(), ["a", "b", "c"]);
        let paths: Vec<_> = requests.try_iter().map(|it| it.split(' ').nth(1).unwrap().to_owned()).collect();
        let path = "/v2/acme/shop/tags/list";
        assert_eq!(paths, [format!("{path}?n=1000"), format!("{path}?last=b"), format!("{path}?last=c")]);
    });
    let expected = "[list] the repository has more than `[upstreams] max_tags` = 2 tags: raise it, or follow a tag";
    with_registry(2, vec![page("last=b", r#"["a","b"]"#), page("last=c", r#"["c"]"#)], |registry, name, _| {
        assert!(message(registry.tags(name)).starts_with(expected));
    });
    with_registry(2, vec![page("", r#"["a","/","/"]"#)], |registry, name, _| {
        assert!(message(registry.tags(name)).starts_with(expected), "what is no tag counts as well");
    });
    let long = ok(&format!(r#"{{"tags":["a"],"manifest":"{}"}}"#, "x".repeat(5 << 20)));
    with_registry(6 << 10, vec![long.clone()], |registry, name, _| assert_eq!(registry.tags(name).unwrap(), ["a"]));
    with_registry(5, vec![long], |registry, name, _| {
        let shown = message(registry.tags(name));
        assert!(
            shown.contains("a page has more than 4194304 bytes, the bound with `[upstreams] max_tags` = 5: raise it"),
            "{shown}"
        );
    });
    let lost = response("200 OK", "link: </x>; rel=\"next\"\r\n", r#"{"tags":["a"]}"#);
    with_registry(10, vec![lost; 2], |registry, name, _| {
        assert!(message(registry.tags(name)).contains("its `Link` to the next page cannot be used"));
    });
    with_registry(10, vec![page("a=1", "[]"), page("a=2", "[]"), page("a=1", "[]")], |registry, name, _| {
        assert!(message(registry.tags(name)).contains("the list of tags does not end"));
    });
    let endless = (0..=1000).map(|number| page(&format!("last={number}"), "[]")).collect();
    with_registry(10, endless, |registry, name, requests| {
        assert!(message(registry.tags(name)).contains("the list of tags does not end"));
        assert_eq!(requests.try_iter().count(), 1000);
    });
    with_registry(10, vec![ok("<html>"), response("404 x", "", "")], |registry, name, _| {
        assert!(message(registry.tags(name)).contains("[list] `tags/list` cannot be read"));
        assert!(matches!(registry.tags(name), Err(RegistryError::NotFound(_))));
    });
}

#[test]
fn a_list_of_tags_that_fails_stops_only_what_follows_a_range() {
    let layer = Sha256::of(b"layer");
    let (manifest, head) = one_layer(&layer);
    let refused = response("405 x", "", "");
    let of_list = |tags: &String| vec![tags.clone(); if *tags == refused { 2 } else { 1 }];
    for (tags, reason) in [
        (ok(r#"{"tags":["a","b","c"]}"#), "[list] the repository has more than `[upstreams] max_tags` = 2 tags"),
        (ok("<html>"), "[list] `tags/list` cannot be read: "),
        (response("403 x", "", ""), "[authenticate] the upstream denies access: the registry refuses access to"),
        (response("404 x", "", ""), "[authenticate] the upstream denies access: the registry refuses access to"),
        (refused.clone(), "[list] listing the upstream's versions failed: `acme/shop` is refused by the"),
        (response("500 x", "", ""), "[list] the upstream answered 500"),
    ] {
        let script = [of_list(&tags), vec![head.clone(), ok(&manifest)]].concat();
        with_registry(2, script, |registry, name, _| {
            let found = list(&Artifacts::default(), registry, name, &["semver:^1", "v1"]).unwrap();
            assert!(found[0].as_ref().unwrap_err().starts_with(reason), "{found:?}");
            assert_eq!(found[1], Ok(layer));
        });
        with_registry(2, of_list(&tags), |registry, name, _| {
            let error = list(&Artifacts::default(), registry, name, &["semver:^1", "semver:^2"]).unwrap_err();
            assert!(format!("[{}] {error}", error.step()).starts_with(reason), "{error}");
        });
    }
    for status in ["429 x", "503 x"] {
        with_registry(2, vec![response(status, "retry-after: 7\r\n", "")], |registry, name, _| {
            let error = list(&Artifacts::default(), registry, name, &["semver:^1", "v1"]).unwrap_err();
            assert_eq!(error.retry_after().map(|pause| pause.as_secs()), Some(7), "{error}");
        });
    }
}

/// Lists the tags at a registry that sends these responses. Returns the queries, too.
fn list_tags(script: Vec<String>) -> (Result<Vec<String>, String>, Vec<String>) {
    with_registry(5000, script, |registry, name, requests| {
        let tags = registry.tags(name).map_err(|error| message(Err::<(), _>(error)));
        let query = |request: String| {
            let target = request.split(' ').nth(1).unwrap().to_owned();
            target.split_once('?').map_or_else(String::new, |(_, query)| query.to_owned())
        };
        (tags, requests.try_iter().map(query).collect())
    })
}

fn page(link: &str, tags: &[String]) -> String {
    let link = if link.is_empty() { String::new() } else { format!("link: <{link}>; rel=\"next\"\r\n") };
    response("200 OK", &link, &json!({ "tags": tags }).to_string())
}

#[test]
fn a_full_page_without_a_link_is_not_known_to_be_the_last() {
    let tags: Vec<String> = (0..1201).map(|number| format!("t{number:04}")).collect();
    let [all, first, rest, none] = [&tags[..], &tags[..1000], &tags[1000..], &[]].map(|tags| page("", tags));
    let linked = page("/x?last=t0200", &tags[..201]);
    let [n, last] = ["n=1000", "n=1000&last=t0999"];
    for (script, expected, queries) in [
        (vec![first.clone(), rest], &tags[..], &[n, last][..]),
        (vec![first.clone(), none], &tags[..1000], &[n, last]),
        (vec![linked, page("", &tags[201..])], &tags, &[n, "last=t0200"]),
        // One that ignores all parameters, and one that ignores the second.
        (vec![all.clone(); 2], &tags, &[n, "n=1000&last=t1200"]),
        (vec![first.clone(), first, all.clone(), all], &tags, &[n, last, "", "last=t1200"]),
    ] {
        let (found, requested) = list_tags(script);
        assert_eq!(requested, queries);
        assert_eq!(found.unwrap(), expected);
    }
}

#[test]
fn a_link_that_does_not_say_which_page_is_next_is_followed_by_the_last_tag() {
    let tags = ["a", "b", "c"].map(str::to_owned);
    for link in ["/v2/acme/shop/tags/list", "http://[?a=1"] {
        let script = vec![page(link, &tags[..2]), page(link, &tags[2..]), page(link, &[])];
        let (found, requested) = list_tags(script);
        assert_eq!(found.unwrap(), tags);
        assert_eq!(requested, ["n=1000", "n=1000&last=b", "n=1000&last=c"]);
    }
}

#[test]
fn a_registry_that_refuses_a_number_of_tags_is_asked_without_one() {
    let tags = ["a", "b"].map(str::to_owned);
    let (found, requested) = list_tags(vec![response("400 x", "", ""), page("", &tags)]);
    assert_eq!((found.unwrap(), requested), (tags.to_vec(), vec!["n=1000".to_owned(), String::new()]));
    let (found, _) = list_tags(vec![response("400 x", "", ""); 2]);
    assert!(found.unwrap_err().contains("is refused by the registry: it answered 400"));
}

#[test]
fn what_is_null_among_the_tags_is_left_out() {
    let (found, _) = list_tags(vec![ok(r#"{"name":null,"tags":["a",null,"b"]}"#)]);
    assert_eq!(found.unwrap(), ["a", "b"]);
}
