//! What a cluster without faults asks of its record store. `docs/performance.md` has the table.

use std::time::Duration;

use super::calm::started;
use super::engine::Counts;
use super::{Plan, is_nightly};
use crate::Timing;

const HOUR: Duration = Duration::from_secs(3600);

/// Public prices of a request to S3, in millionths of a dollar.
const PUT_OR_LIST: f64 = 5.0;
const GET: f64 = 0.4;

/// The requests of an hour, once everything has an owner.
fn hour(nodes: usize, repositories: usize, pushes_a_minute: u32) -> Counts {
    let publish_every = match pushes_a_minute {
        0 => Duration::ZERO,
        pushes => Duration::from_secs(60) * repositories as u32 / pushes,
    };
    let timing = Timing::new(Duration::from_secs(30));
    let mut world = started(Plan { timing, nodes, spares: 0, repositories, publish_every, services: 0, mutant: None });
    world.run_for(Duration::from_secs(1300));
    world.check_owners();
    world.engine.counts = Counts::default();
    world.run_for(HOUR);
    world.engine.counts
}

#[test]
fn requests_grow_with_nodes_and_pushes_and_hardly_with_repositories() {
    println!("| origins | repositories | pushes a minute | PUT | GET | LIST | dollars a month (S3) | etcd |");
    println!("|---|---|---|---|---|---|---|---|");
    let many = if is_nightly() { 10_000 } else { 1_000 };
    for (nodes, repositories, pushes) in [(3, 100, 0), (3, 100, 10), (10, many, 0), (10, many, 10)] {
        let Counts { node_puts, node_gets, node_lists, repository_puts, repository_gets, repository_lists } =
            hour(nodes, repositories, pushes);
        let (puts, gets, lists) =
            (node_puts + repository_puts, node_gets + repository_gets, node_lists + repository_lists);
        let dollars = ((puts + lists) as f64 * PUT_OR_LIST + gets as f64 * GET) * 730.0 / 1e6;
        // One range has the records of all nodes.
        let etcd = puts + lists + repository_gets;
        println!("| {nodes} | {repositories} | {pushes} | {puts} | {gets} | {lists} | {dollars:.1} | {etcd} |");
        let (nodes, pushed) = (nodes as u64, u64::from(pushes) * 60);
        assert!(node_puts <= nodes * 361 && node_lists <= nodes * 721 && node_gets <= nodes * nodes * 361);
        assert!(repository_puts <= pushed * 6 / 5, "{repository_puts}");
        // The winner or the runner-up reads what was published since the last listing.
        assert!(repository_gets <= 2 * pushed * 6 / 5, "{repository_gets}");
    }
}
