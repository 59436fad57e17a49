//! Questions about a fleet.

use super::*;

/// Twenty agents with three services; every fourth has a problem.
fn fleet() -> World {
    let mut world = world();
    let of = |i: u64| {
        let problem = i.is_multiple_of(4).then_some("disk");
        agent(&format!("a{i:02}"), "i", 1, &[row("x", i % 3, problem), row("y", 1, None), row("z-1", 1, None)])
    };
    let (one, other): (Vec<_>, Vec<_>) = ((0..10).map(of).collect(), (10..20).map(of).collect());
    world.send(&message("e1", 1, &one)).unwrap();
    world.send(&message("e2", 1, &other)).unwrap();
    world
}

#[test]
fn filters_combine() {
    let world = fleet();
    let glob = |text: &str| Some(text.parse().unwrap());
    let agents = |filter: AgentFilter| RowFilter { agents: filter, ..RowFilter::default() };
    let label = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    for (filter, expected) in [
        (RowFilter::default(), 60),
        (RowFilter { service: glob("z-*"), ..RowFilter::default() }, 20),
        (
            RowFilter {
                problem: Some(ProblemFilter::Kind(weir_protocol::observed::ProblemKind::Disk)),
                ..RowFilter::default()
            },
            5,
        ),
        (RowFilter { problem: Some(ProblemFilter::Any), ..RowFilter::default() }, 5),
        (
            RowFilter {
                phase: Some(weir_protocol::observed::Phase::Waiting),
                service: glob("y"),
                ..RowFilter::default()
            },
            0,
        ),
        (RowFilter { among: Some(["x".parse().unwrap()].into()), ..RowFilter::default() }, 20),
        (agents(AgentFilter { agent: glob("a0*"), ..AgentFilter::default() }), 30),
        (
            agents(AgentFilter {
                edge: Some("e2".parse().unwrap()),
                labels: label("ring", "canary"),
                ..AgentFilter::default()
            }),
            3,
        ),
        (agents(AgentFilter { labels: label("ring", "other"), ..AgentFilter::default() }), 0),
    ] {
        assert_eq!(world.table.rows(&filter, None, (None, 1), world.now).total, expected, "{filter:?}");
    }
    let answer = world.table.agents(
        &AgentFilter { edge: Some("e1".parse().unwrap()), ..AgentFilter::default() },
        (None, 4),
        world.now,
    );
    assert_eq!((answer.total, answer.entries.len(), answer.cursor.as_deref()), (10, 4, Some("a03")));
    assert_eq!((answer.entries[0].services, answer.entries[0].problems), (3, 1));
    let ill = AgentFilter { problem: Some(ProblemFilter::Any), ..AgentFilter::default() };
    assert_eq!(world.table.agents(&ill, (None, 9), world.now).total, 5);
    // Of an operator of some services: what other services have is not told.
    let among = |name: &str| Some([name.parse().unwrap()].into());
    for (filter, expected) in [
        (AgentFilter { among: among("y"), ..AgentFilter::default() }, (20, Some((1, 0)))),
        (AgentFilter { among: among("x"), ..ill.clone() }, (5, Some((1, 1)))),
        (AgentFilter { among: among("y"), ..ill }, (0, None)),
        (AgentFilter { among: among("none"), ..AgentFilter::default() }, (0, None)),
    ] {
        let answer = world.table.agents(&filter, (None, 1), world.now);
        let counts = answer.entries.first().map(|agent| (agent.services, agent.problems));
        assert_eq!((answer.total, counts), expected, "{filter:?}");
    }
}

#[test]
fn rows_that_lack_a_generation_are_counted_apart_from_unknown_ones() {
    let world = fleet();
    let lacks = |service: &ServiceName, release: Option<&Release>| match (service.as_str(), release) {
        ("x", Some(release)) if release.generation < 2 => Verdict::Lacks,
        ("x", _) => Verdict::Has,
        ("y", _) => Verdict::Unknown,
        _ => Verdict::Has,
    };
    let answer = world.table.rows(&RowFilter::default(), Some(&lacks), (None, 100), world.now);
    assert_eq!((answer.total, answer.entries.len(), answer.unknown), (14, 14, 20));
    assert_eq!(answer.unknown_gone, 0);
    // Names of clusters that are gone stay for a month: nobody waits for their rows.
    let period = crate::bounds::AGENT_GONE_AFTER;
    let late = Now { monotonic: world.now.monotonic + period, wall: world.now.wall + period };
    let gone = world.table.rows(&RowFilter::default(), Some(&lacks), (None, 100), late);
    assert_eq!((gone.total, gone.unknown, gone.unknown_gone), (14, 20, 20));
    let gone = world.table.summary((&By::Service, None), &RowFilter::default(), Some(&lacks), (None, 2), late);
    assert_eq!((gone.total, gone.unknown, gone.unknown_gone), (14, 20, 20));
    // Of a pinned service nobody asks which of its rows are gone.
    let pinned = |service: &ServiceName, release: Option<&Release>| match lacks(service, release) {
        Verdict::Unknown => Verdict::Pinned,
        verdict => verdict,
    };
    for (now, gone, expected) in [(world.now, 0, 20), (late, 20, 0)] {
        let answer = world.table.rows(&RowFilter::default(), Some(&pinned), (None, 100), now);
        assert_eq!((answer.unknown, answer.unknown_gone, answer.unknown_pinned), (20, gone, expected));
    }
    let by = |by| world.table.summary((&by, None), &RowFilter::default(), Some(&lacks), (None, 2), world.now);
    let counted = |by| by_key(by);
    fn by_key(answer: crate::Answer<crate::Group>) -> Vec<(Option<String>, usize, usize)> {
        let one = |key| if let Key::One(one) = key { one } else { unreachable!("one key") };
        answer.entries.into_iter().map(|group| (one(group.key), group.rows, group.agents)).collect()
    }
    assert_eq!(counted(by(By::Service)), [(Some("x".to_owned()), 14, 14)]);
    assert_eq!(counted(by(By::Problem)), [(None, 10, 10), (Some("disk".to_owned()), 4, 4)]);
    assert_eq!(
        counted(by(By::Label("ring".to_owned()))),
        [(Some("all".to_owned()), 13, 13), (Some("canary".to_owned()), 1, 1)]
    );
    let all = world.table.summary((&By::Agent, None), &RowFilter::default(), None, (Some(18), 10), world.now);
    assert_eq!((all.total, all.entries.len(), all.entries[0].rows, all.cursor), (60, 2, 3, None));
}

/// What a row says of hooks, and what a question by each release of it answers.
#[test]
fn a_row_lacks_what_its_hooks_have_not_applied() {
    let mut world = world();
    let release = |generation: u64, since: &str| {
        let digest = TarballDigest::of(&generation.to_be_bytes());
        json!({"digest": digest, "generation": generation, "revision_id": null, "since": since})
    };
    let (early, late) = (release(1, "2026-11-20T09:30:00Z"), release(2, "2026-11-20T09:36:59Z"));
    let of = |current: &Value, hook: &str| with(row("x", 1, None), json!({"current": current, "hook": hook}));
    let rows = [
        with(of(&late, "failed"), json!({"applied": early})),
        with(of(&late, "failed"), json!({"applied": null})),
        with(of(&late, "succeeded"), json!({"applied": late})),
        // Of agents that say nothing.
        of(&late, "none"),
        of(&late, "failed"),
        of(&early, "failed"),
        // It has gone back.
        with(of(&early, "failed"), json!({"applied": late})),
    ];
    let agents = (0..).zip(&rows).map(|(i, row)| agent(&format!("a{i}"), "i", 1, std::slice::from_ref(row)));
    world.send(&message("e1", 1, &agents.collect::<Vec<_>>())).unwrap();
    let lacks = |_: &ServiceName, release: Option<&Release>| match release {
        Some(release) if release.generation >= 2 => Verdict::Has,
        _ => Verdict::Lacks,
    };
    for (lacks_by, lacking, unknown) in
        [(LacksBy::Applied, &["a0", "a1", "a5", "a6"][..], 1), (LacksBy::Current, &["a5", "a6"], 0)]
    {
        let filter = RowFilter { lacks_by, ..RowFilter::default() };
        let answer = world.table.rows(&filter, Some(&lacks), (None, 9), world.now);
        let names: Vec<_> = answer.entries.iter().map(|view| view.agent.as_str()).collect();
        assert_eq!((names.as_slice(), answer.unknown), (lacking, unknown), "{lacks_by:?}");
    }
    let all = world.table.rows(&RowFilter::default(), None, (None, 9), world.now).entries;
    let applied: Vec<_> = all.iter().map(|view| serde_json::to_value(&view.row).unwrap()["applied"].clone()).collect();
    assert_eq!(applied, [early, Value::Null, late.clone(), late.clone(), Value::Null, Value::Null, late]);

    let summary = |by: &By, and_by| {
        let answer = world.table.summary((by, and_by), &RowFilter::default(), None, (None, 9), world.now);
        let key = |group: crate::Group| (serde_json::to_value(group.key).unwrap(), group.rows);
        answer.entries.into_iter().map(key).collect::<Vec<_>>()
    };
    let by_time = [(Value::Null, 3), (json!("2026-11-20T09:35:00Z"), 3), (json!("2026-11-20T09:30:00Z"), 1)];
    assert_eq!(summary(&By::Since(5), None), by_time);
    let both = [(json!(["x", "current"]), 7)];
    assert_eq!(summary(&By::Service, Some(&By::Phase)), both);
    let of_agents = summary(&By::Agent, Some(&By::Since(60)));
    assert!(of_agents.len() == 7 && of_agents.contains(&(json!(["a0", "2026-11-20T09:00:00Z"]), 1)), "{of_agents:?}");
}

proptest! {
    #[test]
    fn pages_hold_everything_once_and_in_order(limit in 1_usize..9) {
        let world = fleet();
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = world.table.rows(&RowFilter::default(), None, (cursor.as_deref(), limit), world.now);
            prop_assert!(page.entries.len() <= limit);
            seen.extend(page.entries.into_iter().map(|view| (view.agent, view.row.service)));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        prop_assert!(seen.len() == 60 && seen.is_sorted());
        prop_assert!(seen.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn what_agents_run_of_one_service_is_read_in_place() {
    let mut world = fleet();
    let known =
        LastSeen { at: world.now.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 60, deleted: false };
    let names = Names { agents: [("b".parse().unwrap(), known)].into(), ..Names::default() };
    world.table.learn(&names, world.now);
    world.send(&message("e2", 2, &[agent("c", "i", 1, &[row("y", 1, None)])])).unwrap();
    world.pass(30);
    let service = "x".parse().unwrap();
    let agents: Vec<_> = world.table.of_service(&service, world.now).collect();
    let (fleet, others) = agents.split_at(20);
    for (at, of) in fleet.iter().enumerate() {
        let row = of.row.unwrap();
        assert_eq!(row.current.map(|current| current.generation), Some(at as u64 % 3));
        assert_eq!((row.desired, row.problem.is_some()), (row.current, at % 4 == 0));
        assert_eq!((of.is_live, of.heard_ago), (true, Duration::from_secs(30)));
    }
    let followed = others.iter().map(|of| (of.agent.as_str(), of.labels.is_some(), of.row.is_some()));
    let expected = [("b", false, false), ("c", true, false)];
    assert_eq!(followed.collect::<Vec<_>>(), expected, "a name without rows, and an agent that does not follow it");
}
