use proptest::prelude::*;

use super::*;

fn key(id: &str, byte: u8) -> PublicKey {
    PublicKey::with_id(id.parse().unwrap(), [byte; 32])
}

fn tokens(list: &AccessList, now: UnixSeconds) -> Vec<&str> {
    list.denied_tokens(now).map(TokenId::as_str).collect()
}

#[test]
fn access_lists_round_trip() {
    let mut list = AccessList::default();
    assert_eq!(list.json().get(), r#"{"keys":[],"revoked_keys":[],"denied_tokens":[]}"#);
    list.add_key(key("k1", 1)).unwrap();
    list.revoke_key("k0".parse().unwrap()).unwrap();
    list.deny_token("t1".parse().unwrap(), Some(1_800_000_000)).unwrap();
    list.deny_token("t2".parse().unwrap(), None).unwrap();
    list.deny_agent("cluster-1".parse().unwrap()).unwrap();
    let json = list.json();
    assert_eq!(AccessList::parse(json.get().as_bytes()), Ok(list));
    assert!(json.get().contains(r#"{"jti":"t1","exp":1800000000},{"jti":"t2"}"#), "{json}");
    let newer = r#"{"keys": [], "denied_tokens": [{"jti": "t1", "why": "lost"}], "more": 1}"#;
    assert_eq!(tokens(&AccessList::parse(newer.as_bytes()).unwrap(), 0), ["t1"]);
}

#[test]
fn files_are_read_line_by_line_and_errors_name_the_line() {
    let mut list = AccessList::default();
    let line = key_line(&key("k1", 1));
    list.add_key_file(&format!("# keys of the fleet\n\n{line} # since November\r\n{line}\n")).unwrap();
    assert_eq!(list.keys().collect::<Vec<_>>(), [&key("k1", 1)]);
    assert_eq!(list.add_key_file(&key_line(&key("k1", 2))), Err(AccessListError::TwoKeys("k1".parse().unwrap())));
    let lost = DenyLine::Token("t1".parse().unwrap(), Some(1_800_000_000));
    assert_eq!(lost.to_string(), "token t1 2027-01-15T08:00:00Z");
    list.add_deny_file(&format!("{lost}\ntoken t2 # a laptop\nkey k0\nagent cluster-1\n")).unwrap();
    assert_eq!(list.revoked_keys().map(KeyId::as_str).collect::<Vec<_>>(), ["k0"]);
    assert_eq!(tokens(&list, 1_800_000_000), ["t1", "t2"]);
    assert_eq!(list.denied_agents().map(NodeName::as_str).collect::<Vec<_>>(), ["cluster-1"]);
    assert_eq!(DenyLine::Token("t".parse().unwrap(), Some(u64::MAX)).to_string(), "token t");
    for (text, expected) in [
        ("\nk1", "line 2: expected `<key id> <public key>`"),
        ("k1 short", "line 1: `short` is not an Ed25519 public key"),
        ("k/1 x", "line 1: `k/1` is not the id of a key"),
    ] {
        let error = AccessList::default().add_key_file(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    for (text, expected) in [
        ("t1", "line 1: expected `token <token id> [<end>]`"),
        ("token t1\ntoken t2 tomorrow", "line 2: `tomorrow` is not a time"),
        ("key k/1", "line 1: `k/1` is not the id of a key"),
        ("agent A", "line 1: `A` is not a node name"),
    ] {
        let error = AccessList::default().add_deny_file(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_denial_lasts_until_its_latest_end() {
    let mut list = AccessList::default();
    let id = || "t1".parse().unwrap();
    list.deny_token(id(), Some(100)).unwrap();
    list.deny_token(id(), Some(50)).unwrap();
    assert_eq!(tokens(&list, 100), ["t1"], "the leeway of clocks");
    assert!(tokens(&list, 160).is_empty());
    list.deny_token(id(), None).unwrap();
    list.deny_token(id(), Some(50)).unwrap();
    assert_eq!(tokens(&list, u64::MAX), ["t1"]);
}

#[test]
fn every_kind_is_bounded_and_a_full_list_is_parsed() {
    let mut list = AccessList::default();
    let long = |i: usize| format!("{i:x>64}");
    for i in 0..MAX_KEYS {
        list.add_key(key(&long(i), 1)).unwrap();
    }
    for i in 0..MAX_REVOKED_KEYS {
        list.revoke_key(long(i).parse().unwrap()).unwrap();
    }
    for i in 0..MAX_DENIED_TOKENS {
        list.deny_token(long(i).parse().unwrap(), Some(u64::MAX)).unwrap();
    }
    for i in 0..MAX_DENIED_AGENTS {
        list.deny_agent(format!("{i:x>100}").parse().unwrap()).unwrap();
    }
    let too_many = |result: Result<(), AccessListError>| matches!(result, Err(AccessListError::TooMany { .. }));
    assert!(too_many(list.add_key(key("one-more", 1))));
    assert!(too_many(list.revoke_key("one-more".parse().unwrap())));
    assert!(too_many(list.deny_agent("one-more".parse().unwrap())));
    assert!(too_many(list.deny_token("one-more".parse().unwrap(), None)));
    assert_eq!(AccessList::parse(list.json().get().as_bytes()), Ok(list));
    let long = " ".repeat(MAX_ACCESS_LIST_BYTES + 1);
    assert_eq!(AccessList::parse(long.as_bytes()), Err(AccessListError::TooLarge(long.len())));
}

fn agent(name: &str, ring: &str) -> Agent {
    serde_json::from_value(serde_json::json!({"name": name, "labels": {"ring": ring}})).unwrap()
}

fn fleet(cluster: Option<&str>, revision: u64, documents: &[Agent], file: &[Agent]) -> Fleet {
    let agents = Entries::new(revision, documents.iter().cloned(), file.iter().cloned()).unwrap();
    let fleet = Fleet { agents, ..Fleet::default() };
    cluster.map_or(fleet.clone(), |cluster| fleet.of_cluster(&cluster.parse().unwrap()))
}

/// The labels of all agents that several origins have together.
fn joined(present: &[Fleet], departed: &[Fleet]) -> Vec<String> {
    let (fleet, _) = Fleet::join(present.iter(), departed.iter());
    let ring =
        |agent: &Agent| format!("{}={}", agent.name, agent.labels.iter().map(|(_, value)| value).collect::<String>());
    fleet.agents.iter().map(ring).collect()
}

#[test]
fn agents_assignments_and_issuers_have_exactly_these_bytes() {
    let golden = include_str!("../../golden/agent/access.json").trim_end();
    let list = AccessList::parse(golden.as_bytes()).unwrap();
    assert_eq!(list.json().get(), golden);
    let fleet = list.fleet();
    assert_eq!(fleet.agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["cluster-1", "cluster-2"]);
    let labels = &fleet.agents.get(&"cluster-1".parse().unwrap()).unwrap().labels;
    assert_eq!(labels.iter().collect::<Vec<_>>(), [("ring", "canary")], "the file wins");
    assert_eq!((fleet.assignments.iter().count(), fleet.issuers.iter().count()), (1, 1));
    let later = golden.replacen(r#"{"name""#, r#"{"later":1,"name""#, 1);
    assert_eq!(AccessList::parse(later.as_bytes()), Ok(list));
    for (part, other, expected) in [
        (r#""name":"cluster-2""#, r#""name":"cluster-1""#, "two of the agents have the name `cluster-1`"),
        (r#""agents":"cluster-*","#, "", "assignment `shop-to-all` names no agents"),
    ] {
        let changed = golden.replace(part, other);
        assert_ne!(changed, golden);
        let error = AccessList::parse(changed.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_list_that_is_behind_empties_nothing_and_a_later_one_does() {
    let (one, two) = (agent("a", "1"), agent("a", "2"));
    let of = |revision, documents: &[Agent], file: &[Agent]| fleet(None, revision, documents, file);
    for (first, second, expected) in [
        (of(7, std::slice::from_ref(&one), &[]), of(0, &[], &[]), vec!["a=1"]),
        (of(7, std::slice::from_ref(&one), &[]), of(8, &[], &[]), vec![]),
        (of(7, std::slice::from_ref(&one), &[]), of(8, std::slice::from_ref(&two), &[]), vec!["a=2"]),
        (of(7, &[], std::slice::from_ref(&one)), of(8, &[two], &[]), vec!["a=1"]),
    ] {
        assert_eq!(joined(&[first.clone(), second.clone()], &[]), expected);
        assert_eq!(joined(&[second, first], &[]), expected, "in any order");
    }
    let list = |fleet: Fleet| {
        let mut list = AccessList::default();
        list.set_fleet(fleet);
        list
    };
    let earlier = list(of(7, std::slice::from_ref(&one), &[agent("b", "1")]));
    let mut now = AccessList::default();
    now.keep_newer(&earlier);
    assert_eq!(now.fleet().agents, Entries::new(7, [one], []).unwrap(), "what is no longer in the file is gone");
    assert_eq!(earlier.denials().fleet(), now.fleet());
}

#[test]
fn documents_of_clusters_add_up_and_the_newest_of_each_apply() {
    let (a, b, c) = (agent("a", "1"), agent("b", "1"), agent("c", "1"));
    let of = |cluster, revision, documents: &[&Agent]| {
        fleet(Some(cluster), revision, &documents.iter().copied().cloned().collect::<Vec<_>>(), &[])
    };
    let (x, y) = (of("x", 7, &[&a]), of("y", 20, &[&b]));
    assert_eq!(joined(&[x.clone(), y.clone()], &[]), ["a=1", "b=1"], "a lower revision of another cluster");
    let newer = of("x", 8, &[&c]);
    assert_eq!(joined(&[y.clone(), newer.clone(), x.clone()], &[]), ["b=1", "c=1"], "one of the cluster is behind");
    // Those that have departed have nothing to add but what those that stay have not heard of yet.
    assert_eq!(joined(&[newer.clone(), y.clone()], &[x.clone(), of("z", 30, &[&a])]), ["b=1", "c=1"]);
    assert_eq!(joined(&[x.clone(), y], std::slice::from_ref(&newer)), ["b=1", "c=1"]);
    assert_eq!(joined(&[of("x", 0, &[])], std::slice::from_ref(&x)), ["a=1"], "one that has not read them yet");

    let other = of("y", 20, &[&agent("a", "2"), &b]);
    let (both, conflicts) = Fleet::join([&other, &x].into_iter(), [].iter());
    assert_eq!(joined(&[other, x.clone()], &[]), ["a=1", "b=1"], "the lower id wins");
    assert_eq!(conflicts, ["`a` of the agents"]);
    assert_eq!(both.agents.revision(), 27, "it grows with each change of either");
    // A shield that does not know the one cluster yet takes nothing away.
    assert_eq!(joined(&[both.clone(), x], &[]), ["a=1", "b=1"]);
    // The sum is no revision of either cluster: with one cluster less it is lower, and yet the newer one.
    let mut only_one = newer;
    only_one.keep_newer(&both);
    assert_eq!(joined(&[only_one], &[]), ["c=1"]);
    let mut list = AccessList::default();
    list.set_fleet(both);
    let json = list.json();
    assert!(json.get().contains(r#""agents":{"revision":27,"cluster":""#), "{json}");
    assert_eq!(AccessList::parse(json.get().as_bytes()), Ok(list));
}

#[test]
fn an_origin_that_joins_another_cluster_says_nothing_about_its_earlier_one() {
    let (x, y) = (fleet(Some("x"), 7, &[agent("a", "1")], &[]), fleet(Some("y"), 5, &[agent("b", "1")], &[]));
    let after = |mut now: Fleet, earlier: &Fleet| {
        now.keep_newer(earlier);
        joined(&[now], &[])
    };
    assert_eq!(after(y, &x), ["b=1"]);
    assert_eq!(after(fleet(Some("y"), 0, &[], &[]), &x), ["a=1"], "its store was lost");
    assert_eq!(after(fleet(Some("x"), 6, &[], &[]), &x), ["a=1"], "it is behind");
}

#[test]
fn each_kind_is_bounded() {
    let agents = |count: usize| (0..count).map(|i| agent(&format!("a{i}"), ""));
    assert!(Entries::new(1, agents(Agent::LIMIT), agents(Agent::LIMIT)).is_ok());
    for (documents, file) in [(Agent::LIMIT + 1, 0), (0, Agent::LIMIT + 1)] {
        let error = Entries::new(1, agents(documents), agents(file)).unwrap_err();
        assert_eq!(error.to_string(), "more than 10000 agents");
    }
    let join = |documents: [&[Agent]; 2], files: [&[Agent]; 2]| {
        let both = [fleet(Some("x"), 1, documents[0], files[0]), fleet(Some("y"), 1, documents[1], files[1])];
        AccessList::join([].iter(), Fleet::join(both.iter(), [].iter()).0)
    };
    let (full, other): (Vec<_>, _) = (agents(Agent::LIMIT).collect(), [agent("other", "")]);
    assert_eq!(join([&full; 2], [&full; 2]).unwrap().whole_json().1, [""; 0]);
    assert!(join([&full; 2], [&full, &other]).is_err());
    let (json, left_out) = join([&full, &other], [&full; 2]).unwrap().whole_json();
    let list = AccessList::parse(json.get().as_bytes()).unwrap();
    let agents = &list.fleet().agents;
    assert_eq!((&*left_out, agents.documents().len(), agents.revision()), (&["agents"][..], 0, 0));
    assert_eq!(agents.file().len(), full.len());
}

/// A list of three agents, two of them in one shard, and an issuer.
fn in_shards() -> AccessList {
    let mut names = (0..).map(|number| format!("n{number}")).filter(|name| shard_of(name) == shard_of("a"));
    let agents = [agent("a", "1"), agent(&names.next().unwrap(), "1"), agent("b", "1")];
    let issuer: Issuer = serde_json::from_value(serde_json::json!({ "name": "i", "issuer": "https://i",
        "audience": "weir", "subjects": ["s"], "jwks": { "keys": [{ "kid": "k" }] }, "agent": "a", "services": ["*"] }))
    .unwrap();
    let agents = Entries::of(&Table::new(7, agents, [agent("of-file", "1")]).unwrap());
    let issuers = Entries::of(&Table::new(9, [issuer], []).unwrap());
    let mut list = AccessList::default();
    list.deny_agent("denied".parse().unwrap()).unwrap();
    list.set_fleet(Fleet { agents, issuers, ..Fleet::default() }.of_cluster(&"x".parse().unwrap()));
    list
}

/// What a reader has that gets all shards.
fn read(sent: &AccessList, known: &AccessList) -> (AccessList, usize) {
    let mut list = AccessList::parse(sent.sharded_json().get().as_bytes()).unwrap();
    list.fill_from(known);
    let lacking = list.lacking();
    for digest in &lacking {
        list.add_shard(digest, &sent.fleet().shard_json(digest).unwrap()).unwrap();
    }
    assert!(list.lacking().is_empty());
    (list, lacking.len())
}

#[test]
fn a_reader_of_shards_gets_those_that_it_lacks() {
    let sent = in_shards();
    let (list, fetched) = read(&sent, &AccessList::default());
    assert_eq!((list.json().get(), fetched), (sent.json().get(), 3));
    assert_eq!(list.fleet().agents.revision(), 7);
    let created: Vec<u64> =
        list.fleet().agents.table().shards().iter().flat_map(|shard| shard.created()).map(|it| it.0).collect();
    assert_eq!(created, [7, 7, 7]);

    let mut changed = sent.fleet().agents.table().clone();
    let (index, shard) = changed.changed(&"b".parse().unwrap(), Some(agent("b", "2")), 10);
    changed.set_shard(index, shard);
    let mut later = sent.clone();
    later.set_fleet(Fleet { agents: Entries::of(&changed), ..sent.fleet().clone() });
    let (now, fetched) = read(&later, &list);
    assert_eq!((now.json().get(), fetched), (later.json().get(), 1));
    assert_eq!(now.fleet().agents.table().differing(list.fleet().agents.table()).count(), 2, "as it is and as it was");
    assert_eq!(read(&later, &now).1, 0);
    // A whole list says nothing of creations.
    let whole = AccessList::parse(sent.json().get().as_bytes()).unwrap();
    assert!(whole.fleet().agents.table().shards().iter().flat_map(|shard| shard.created()).all(|it| it.0 == 0));
}

#[test]
fn shards_with_other_bytes_or_of_another_number_are_refused() {
    let sent = in_shards();
    let mut list = AccessList::parse(sent.sharded_json().get().as_bytes()).unwrap();
    let digest = *list.lacking().first().unwrap();
    let error = list.add_shard(&digest, b"[]").unwrap_err();
    assert_eq!(error, AccessListError::Corrupt(digest));
    assert!(list.lacking().contains(&digest));
    for digests in [vec![ObjectDigest::of(b"[]"); SHARDS - 1], vec![ObjectDigest::of(b"[]"); SHARDS + 1]] {
        let json = serde_json::json!({ "agents": { "revision": 1, "shards": digests } }).to_string();
        assert!(matches!(AccessList::parse(json.as_bytes()), Err(AccessListError::Malformed(_))));
    }
}

proptest! {
    #[test]
    fn no_document_panics(
        json in r#"\{("(keys|revoked_keys|denied_tokens)":\[("a"|\{"(kid|jti|x|exp)":("a"|-?[0-9]{1,20})\}|,){0,4}\],?){0,3}\}"#,
        text in "((token|key|#| |t1|2026-11-20T09:30:00Z|\n){0,12}|.{0,60})",
    ) {
        if let Ok(list) = AccessList::parse(json.as_bytes()) {
            prop_assert_eq!(AccessList::parse(list.json().get().as_bytes()), Ok(list));
        }
        let mut list = AccessList::default();
        let _ = list.add_key_file(&text);
        let _ = list.add_deny_file(&text);
        prop_assert_eq!(AccessList::parse(list.json().get().as_bytes()), Ok(list));
    }

    #[test]
    fn deny_lines_round_trip(id in "[A-Za-z0-9._~:-]{1,64}", exp in proptest::option::of(0u64..253_402_300_800)) {
        let line = DenyLine::Token(id.parse().unwrap(), exp);
        let words: Vec<_> = line.to_string().split(' ').map(str::to_owned).collect();
        let mut list = AccessList::default();
        list.add_deny_file(&line.to_string()).unwrap();
        prop_assert_eq!(words.len(), 2 + usize::from(exp.is_some()));
        let mut expected = AccessList::default();
        expected.deny_token(id.parse().unwrap(), exp).unwrap();
        prop_assert_eq!(list, expected);
    }
}

#[test]
fn among_thousands_of_clusters_a_change_costs_digests_and_a_shard() {
    // The size of a key of RSA with 2,048 bits.
    let keys = |n: usize| {
        ["a", "b"].map(|kid| serde_json::json!({ "use": "sig", "kty": "RSA", "kid": format!("{kid}{n}"), "alg": "RS256", "n": "n".repeat(342), "e": "AQAB" }))
    };
    let issuer = |n: usize| -> Issuer {
        serde_json::from_value(
            serde_json::json!({ "name": format!("cluster-{n}"), "issuer": format!("https://kubernetes-{n}.example"),
            "audience": "weir", "subjects": ["system:serviceaccount:weir:agent"], "jwks": { "keys": keys(n) },
            "agent": format!("cluster-{n}"), "services": ["shop-*"] }),
        )
        .unwrap()
    };
    let agents = Table::new(7, (0..20_000).map(|n| agent(&format!("cluster-{n}"), "1")), []).unwrap();
    let issuers = Table::new(7, (0..10_000).map(issuer), []).unwrap();
    let list = |agents: &Table<Agent>, issuers: &Table<Issuer>| {
        let fleet = Fleet { agents: Entries::of(agents), issuers: Entries::of(issuers), ..Fleet::default() };
        let mut list = AccessList::default();
        list.set_fleet(fleet.of_cluster(&"x".parse().unwrap()));
        list
    };
    let bytes = |sent: &AccessList, known: &AccessList| {
        let json = sent.sharded_json();
        let mut list = AccessList::parse(json.get().as_bytes()).unwrap();
        list.fill_from(known);
        let shards: Vec<_> =
            list.lacking().iter().map(|digest| sent.fleet().shard_json(digest).unwrap().len()).collect();
        (json.get().len(), shards.len(), shards.iter().sum::<usize>())
    };
    let before = list(&agents, &issuers);
    let (digests, count, all) = bytes(&before, &AccessList::default());
    println!("all: {digests} bytes of digests, {count} shards, {all} bytes");
    let (mut one_agent, mut one_issuer) = (agents.clone(), issuers.clone());
    let (index, shard) = one_agent.changed(&"cluster-5".parse().unwrap(), Some(agent("cluster-5", "2")), 8);
    one_agent.set_shard(index, shard);
    let changed = Issuer { services: vec!["blog".parse().unwrap()], ..issuer(5) };
    let (index, shard) = one_issuer.changed(&changed.name.clone(), Some(changed), 8);
    one_issuer.set_shard(index, shard);
    for (what, after, most) in
        [("agent", list(&one_agent, &issuers), 40_000), ("issuer", list(&agents, &one_issuer), 250_000)]
    {
        let (digests, count, shard) = bytes(&after, &before);
        println!("one {what}: {digests} bytes of digests, {count} shard of {shard} bytes");
        assert!(digests < 15_000 && count == 1 && shard < most && all > 50 * shard);
    }
}
