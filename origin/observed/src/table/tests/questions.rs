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
        (RowFilter { problem: Some(weir_protocol::observed::ProblemKind::Disk), ..RowFilter::default() }, 5),
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
    let by = |by| world.table.summary(&by, &RowFilter::default(), Some(&lacks), (None, 2), world.now);
    let counted = |by| by_key(by);
    fn by_key(answer: crate::Answer<crate::Group>) -> Vec<(Option<String>, usize, usize)> {
        answer.entries.into_iter().map(|group| (group.key, group.rows, group.agents)).collect()
    }
    assert_eq!(counted(by(By::Service)), [(Some("x".to_owned()), 14, 14)]);
    assert_eq!(counted(by(By::Problem)), [(None, 10, 10), (Some("disk".to_owned()), 4, 4)]);
    assert_eq!(
        counted(by(By::Label("ring".to_owned()))),
        [(Some("all".to_owned()), 13, 13), (Some("canary".to_owned()), 1, 1)]
    );
    let all = world.table.summary(&By::Agent, &RowFilter::default(), None, (Some(18), 10), world.now);
    assert_eq!((all.total, all.entries.len(), all.entries[0].rows, all.cursor), (60, 2, 3, None));
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
