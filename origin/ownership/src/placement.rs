//! Which member should own a repository: weighted rendezvous hashing.

use weir_protocol::name::{NodeName, RepositoryName};

/// The two members with the highest scores for a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// The member that should own the repository.
    pub winner: Option<NodeName>,
    /// The member that takes the repository over if the winner does not.
    pub runner_up: Option<NodeName>,
}

type Scored<'a> = (f64, &'a NodeName);

/// Chooses among members with their weights. Only repositories of a member that leaves, and those that a new member
/// wins, get another winner.
pub fn place<'a>(repository: &RepositoryName, members: impl IntoIterator<Item = (&'a NodeName, u32)>) -> Placement {
    let (mut first, mut second): (Option<Scored<'_>>, Option<Scored<'_>>) = (None, None);
    for (node, weight) in members {
        let scored = (score(repository, node, weight), node);
        if is_better(scored, first) {
            second = first.replace(scored);
        } else if is_better(scored, second) {
            second = Some(scored);
        }
    }
    let name = |scored: Option<Scored<'_>>| scored.map(|(_, node)| node.clone());
    Placement { winner: name(first), runner_up: name(second) }
}

fn is_better((score, node): Scored<'_>, than: Option<Scored<'_>>) -> bool {
    than.is_none_or(|(other, name)| score > other || (score >= other && node < name))
}

/// `-weight / ln(u)`, where `u` between 0 and 1 comes from the BLAKE3 of both names, each behind its length. All members
/// must compute the same, so a change moves repositories in every cluster.
fn score(repository: &RepositoryName, node: &NodeName, weight: u32) -> f64 {
    let mut hasher = blake3::Hasher::new();
    for name in [repository.as_str(), node.as_str()] {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    // 53 bits are exact in an f64; the half keeps `u` away from 0 and 1.
    let u = ((u64::from_le_bytes(first) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -f64::from(weight) / u.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repositories(count: usize) -> Vec<RepositoryName> {
        (0..count).map(|index| format!("repository-{index}").parse().unwrap()).collect()
    }

    fn nodes(count: usize) -> Vec<NodeName> {
        (1..=count).map(|index| format!("origin-{index}").parse().unwrap()).collect()
    }

    fn winner(repository: &RepositoryName, nodes: &[NodeName]) -> NodeName {
        place(repository, nodes.iter().map(|node| (node, 1))).winner.unwrap()
    }

    #[test]
    fn placement_never_changes_between_versions() {
        let nodes = nodes(3);
        let golden: Vec<String> = repositories(8)
            .iter()
            .map(|repository| {
                let Placement { winner, runner_up } =
                    place(repository, [(&nodes[0], 1), (&nodes[1], 1), (&nodes[2], 2)]);
                format!("{} {}", winner.unwrap(), runner_up.unwrap())
            })
            .collect();
        assert_eq!(golden, GOLDEN);
        let score = score(&repositories(1)[0], &nodes[0], 1);
        assert!((score - GOLDEN_SCORE).abs() < 1e-12, "{score:?}");
    }

    #[test]
    fn a_member_more_or_less_moves_what_it_wins_and_nothing_else() {
        let (repositories, nodes) = (repositories(300), nodes(4));
        let mut moved = 0;
        for repository in &repositories {
            let (of_three, of_four) = (winner(repository, &nodes[..3]), winner(repository, &nodes));
            if of_three != of_four {
                assert_eq!(of_four, nodes[3]);
                moved += 1;
            }
        }
        // The way back from four to three moves the same repositories.
        println!("3 -> 4 -> 3 members: {moved} of {} repositories move each time", repositories.len());
        assert!(moved * 10 <= repositories.len() * 3, "{moved}");
        assert!(moved * 10 >= repositories.len() * 2, "{moved}");
    }

    #[test]
    fn the_runner_up_wins_without_the_winner() {
        let nodes = nodes(4);
        for repository in repositories(50) {
            let Placement { winner: first, runner_up } = place(&repository, nodes.iter().map(|node| (node, 1)));
            let others: Vec<_> = nodes.iter().filter(|node| Some(*node) != first.as_ref()).cloned().collect();
            assert_eq!(winner(&repository, &others), runner_up.unwrap());
        }
    }

    #[test]
    fn weights_share_in_proportion_and_ties_go_by_name() {
        let nodes = nodes(3);
        let mut wins = [0; 3];
        for repository in repositories(3000) {
            let placed = place(&repository, nodes.iter().zip([1, 1, 2])).winner;
            wins[nodes.iter().position(|node| Some(node) == placed.as_ref()).unwrap()] += 1;
        }
        assert!(wins[..2].iter().all(|wins| (650..850).contains(wins)) && (1400..1600).contains(&wins[2]), "{wins:?}");
        let repository = &repositories(1)[0];
        let tie = place(repository, nodes.iter().rev().map(|node| (node, 0)));
        assert_eq!(tie, Placement { winner: Some(nodes[0].clone()), runner_up: Some(nodes[1].clone()) });
        assert_eq!(place(repository, []), Placement::default());
    }

    /// The winner and the runner-up of each repository.
    const GOLDEN: [&str; 8] = [
        "origin-3 origin-1",
        "origin-3 origin-2",
        "origin-3 origin-1",
        "origin-1 origin-2",
        "origin-2 origin-3",
        "origin-3 origin-1",
        "origin-1 origin-3",
        "origin-3 origin-2",
    ];
    const GOLDEN_SCORE: f64 = 2.062_843_939_020_634;
}
