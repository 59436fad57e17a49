//! Faults, one after the other, as a seed has them.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use fastrand::Rng;

use super::engine::EngineKind;
use super::history::{CutOff, Death};
use super::network::Machine;
use super::recorder::Recorder;
use super::site::{Site, until_ready};

/// Which packets of a link are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    There,
    Back,
    Both,
}

/// What goes wrong. Nodes are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL; it starts again afterwards.
    KillOrigin(usize),
    KillEdge(usize),
    /// SIGSTOP, then SIGCONT.
    PauseOrigin(usize),
    PauseEdge(usize),
    /// Between an origin and all members of the engine.
    CutFromEngine(usize, Lost),
    CutOrigins(usize, usize, Lost),
    /// Between an edge and an origin.
    CutEdge(usize, usize, Lost),
    /// SIGKILL of the engine's leader.
    KillLeader,
    PauseEngine,
    /// No room is left in an origin's `data_dir`.
    FillDisk(usize),
}

/// A fault, after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) pause: Duration,
    pub(crate) fault: Fault,
    pub(crate) lasts: Duration,
}

/// What the steps depend on besides the seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) engine: EngineKind,
    pub(crate) origins: usize,
    pub(crate) edges: usize,
    pub(crate) ttl: Duration,
    /// How often each kind of fault comes.
    pub(crate) rounds: usize,
    /// At least, between two faults.
    pub(crate) pause: Duration,
    pub(crate) engine_away: Duration,
}

/// The steps of a seed: in each round every kind of fault once, in any order.
pub(crate) fn steps(seed: u64, plan: &Plan) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut steps = Vec::new();
    for _ in 0..plan.rounds {
        let (origin, edge) = (rng.usize(..plan.origins), rng.usize(..plan.edges));
        let other = (origin + rng.usize(1..plan.origins)) % plan.origins;
        let mut lost = || [Lost::There, Lost::Back, Lost::Both][rng.usize(..3)];
        let mut round = vec![
            Fault::KillOrigin(origin),
            Fault::PauseOrigin(other),
            Fault::KillEdge(edge),
            Fault::PauseEdge(edge),
            Fault::CutFromEngine(origin, lost()),
            Fault::CutOrigins(origin, other, lost()),
            Fault::CutEdge(edge, origin, lost()),
            Fault::PauseEngine,
            Fault::FillDisk(other),
        ];
        if plan.engine == EngineKind::Etcd {
            round.push(Fault::KillLeader);
        }
        rng.shuffle(&mut round);
        for fault in round {
            let some = Duration::from_millis(rng.u64(..3000));
            let lasts = match fault {
                Fault::KillOrigin(_) | Fault::KillEdge(_) | Fault::KillLeader | Fault::FillDisk(_) => some,
                Fault::PauseEngine => plan.engine_away,
                // Longer than a session.
                _ => plan.ttl + some,
            };
            steps.push(Step { pause: plan.pause + some / 2, fault, lasts });
        }
    }
    steps
}

/// Makes the faults and heals them, and records what the judge needs to know of them.
pub(crate) async fn run(site: &mut Site, recorder: &Recorder, steps: &[Step]) -> anyhow::Result<()> {
    for step in steps {
        tokio::time::sleep(step.pause).await;
        // Until now nothing was wrong besides the last fault.
        let now = recorder.now();
        if let Some(death) = recorder.edit().deaths.last_mut() {
            death.undisturbed_until = death.undisturbed_until.min(now);
        }
        println!("{now:>8.1?} {:?} for {:.1?}", step.fault, step.lasts);
        let leader = begin(site, recorder, step.fault).await?;
        let from = recorder.now();
        tokio::time::sleep(step.lasts).await;
        for origin in cut_off(site, step.fault) {
            recorder.edit().cut_off.push(CutOff { origin, from, until: recorder.now() });
        }
        end(site, step.fault, leader).await?;
        println!("{:>8.1?} healed", recorder.now());
    }
    Ok(())
}

/// The origins that a fault cuts off from the engine.
fn cut_off(site: &Site, fault: Fault) -> Vec<String> {
    match fault {
        Fault::CutFromEngine(origin, _) => vec![site.origins[origin].name.clone()],
        Fault::PauseEngine => site.origins.iter().map(|origin| origin.name.clone()).collect(),
        _ => Vec::new(),
    }
}

/// Begins a fault. Returns the member of the engine that was killed.
async fn begin(site: &mut Site, recorder: &Recorder, fault: Fault) -> anyhow::Result<Option<usize>> {
    if let Fault::KillOrigin(origin) | Fault::PauseOrigin(origin) = fault {
        let (origin, at) = (site.origins[origin].name.clone(), recorder.now());
        recorder.edit().deaths.push(Death { origin, at, undisturbed_until: Duration::MAX });
    }
    match fault {
        Fault::KillOrigin(origin) => site.origins[origin].node.kill()?,
        Fault::KillEdge(edge) => site.edges[edge].node.kill()?,
        Fault::PauseOrigin(origin) => site.origins[origin].node.pause(true)?,
        Fault::PauseEdge(edge) => site.edges[edge].node.pause(true)?,
        Fault::KillLeader => {
            let leader = site.engine.leader().await;
            if let Some(leader) = leader {
                site.engine.members[leader].kill()?;
            }
            return Ok(leader);
        }
        Fault::PauseEngine => site.engine.pause(true)?,
        Fault::FillDisk(origin) => fill(site, origin)?,
        _ => cut(site, fault, true)?,
    }
    Ok(None)
}

async fn end(site: &mut Site, fault: Fault, leader: Option<usize>) -> anyhow::Result<()> {
    match fault {
        Fault::KillOrigin(origin) => site.origins[origin].node.start().await,
        Fault::KillEdge(edge) => {
            site.edges[edge].node.start().await?;
            // Agents need two edges at any time.
            until_ready(&site.edges[edge].node).await
        }
        Fault::PauseOrigin(origin) => site.origins[origin].node.pause(false),
        Fault::PauseEdge(edge) => site.edges[edge].node.pause(false),
        Fault::KillLeader => leader.map_or(Ok(()), |leader| site.engine.members[leader].start()),
        Fault::PauseEngine => site.engine.pause(false),
        Fault::FillDisk(origin) => Ok(fs::remove_file(filler(site, origin))?),
        _ => cut(site, fault, false),
    }
}

fn cut(site: &Site, fault: Fault, on: bool) -> anyhow::Result<()> {
    let link = |a: &Machine, b: &Machine, lost: Lost| {
        if lost != Lost::Back {
            a.cut(b, on)?;
        }
        if lost != Lost::There {
            b.cut(a, on)?;
        }
        anyhow::Ok(())
    };
    let origin = |index: usize| &site.origins[index].machine;
    match fault {
        Fault::CutFromEngine(from, lost) => {
            site.engine.members.iter().try_for_each(|member| link(origin(from), &member.machine, lost))
        }
        Fault::CutOrigins(a, b, lost) => link(origin(a), origin(b), lost),
        Fault::CutEdge(edge, to, lost) => link(&site.edges[edge].machine, origin(to), lost),
        _ => Ok(()),
    }
}

fn filler(site: &Site, origin: usize) -> std::path::PathBuf {
    site.path(&format!("{}-data", site.origins[origin].name)).join("filler")
}

/// Writes a file until there is no room.
fn fill(site: &Site, origin: usize) -> anyhow::Result<()> {
    let mut file = File::create(filler(site, origin))?;
    for size in [1 << 20, 1 << 10, 1] {
        let part = vec![0; size];
        while file.write_all(&part).is_ok() {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_every_kind_of_fault_in_each_round() {
        let plan = Plan {
            engine: EngineKind::Etcd,
            origins: 3,
            edges: 3,
            ttl: Duration::from_secs(3),
            rounds: 2,
            pause: Duration::from_secs(1),
            engine_away: Duration::from_secs(10),
        };
        let kinds = |steps: &[Step]| {
            let kinds = steps.iter().map(|step| format!("{:?}", step.fault).split('(').next().map(str::to_owned));
            kinds.collect::<std::collections::BTreeSet<_>>().len()
        };
        for seed in 0..100 {
            let steps = steps(seed, &plan);
            assert_eq!((steps.len(), kinds(&steps[..10]), kinds(&steps[10..])), (20, 10, 10));
            assert_eq!(steps, super::steps(seed, &plan), "it replays");
            let origins_differ = |step: &Step| !matches!(step.fault, Fault::CutOrigins(a, b, _) if a == b);
            assert!(steps.iter().all(origins_differ));
        }
    }
}
