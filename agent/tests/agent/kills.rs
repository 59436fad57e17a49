//! SIGKILL of an agent's process at each step from the download to the end of a switch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use http::Method;

use crate::agent_under_test::{World, shop};
use crate::edge::{Fault, FramesFault, PATIENCE, TestEdge};
use crate::tarball::Written;

/// Enough that unpacking and removing a release can be seen.
const FILES: usize = 500;

/// How often a step may be over before it is seen.
const MAX_MISSED: usize = 30;

/// The same in every version, and enough that only the frames before it are fetched.
const BALLAST: &str = "z";

/// Every file says of which version it is, so that a mixture shows.
fn version(number: usize) -> Vec<u8> {
    let mut ballast = vec![0; 3 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut ballast);
    let file = |tar: Written, file| tar.file(format!("{file:03}"), format!("{number}/{file:03}"));
    (0..FILES).fold(Written::default(), file).file(BALLAST, &ballast).finish()
}

/// What `current` has: one version, whole.
fn release(world: &World) -> usize {
    let current = fs::canonicalize(world.service_dir().join("current")).expect("there is always a release");
    let mut files: Vec<_> = fs::read_dir(&current).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), FILES + 1, "{} is not whole", current.display());
    files.retain(|file| file != BALLAST);
    let text = |name: &Path| fs::read_to_string(current.join(name)).unwrap();
    let number = text(Path::new("000")).strip_suffix("/000").expect("a version").to_owned();
    files.sort();
    for file in files {
        assert_eq!(text(Path::new(&file)), format!("{number}/{}", file.to_str().unwrap()));
    }
    number.parse().unwrap()
}

/// A process that is killed at the end.
struct Agent(Child);

impl Agent {
    fn start(world: &World) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-agent"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.arg("--config").arg(world.path().join("agent.toml")).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("the agent was built"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it was killed");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Fetch,
    FetchFrames,
    Unpack,
    Check,
    Switch,
    Hook,
    Prune,
}

/// A world whose hooks wait while a file of their name is there, and say that they have begun.
struct Scene {
    world: World,
    edge: TestEdge,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new();
        let edge = world.edge().await;
        edge.answers.cut_frames(256 << 10);
        let wait = |name: &str| {
            let at = world.path().join(name).display().to_string();
            format!("touch {at}.begun; while [ -e {at}.hold ]; do sleep 0.01; done")
        };
        let toml = format!(
            "edges = ['{}']\nca = 'ca.pem'\nroot = 'root'\nkeep_releases = 1\n\
             [[service]]\nname = 'shop'\ncheck = '{}'\nexec = '{}; cat 000 >> {}'\n",
            edge.url(),
            wait("check"),
            wait("hook"),
            world.path().join("log").display()
        );
        fs::write(world.path().join("agent.toml"), toml).unwrap();
        Self { world, edge }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.path().join(name)
    }

    fn has_release_like(&self, suffix: &str) -> bool {
        self.world.releases().iter().any(|name| name.ends_with(suffix))
    }

    /// Starts an agent, and kills it at a step on the way to a version. `false`: that was over before it was seen.
    fn kill_at(&self, step: Step, number: usize) -> bool {
        let held = match step {
            Step::Check | Step::Switch => Some("check"),
            Step::Hook => Some("hook"),
            Step::Fetch | Step::FetchFrames | Step::Unpack | Step::Prune => None,
        };
        for name in ["check.begun", "hook.begun"] {
            let _ = fs::remove_file(self.path(name));
        }
        if let Some(name) = held {
            fs::write(self.path(&format!("{name}.hold")), "").unwrap();
        }
        if step == Step::Fetch {
            self.edge.answers.fail_always(Fault::Stall);
        }
        if step == Step::FetchFrames {
            self.edge.answers.fail_frames(FramesFault::InRange(Fault::Stall));
        }
        self.edge.answers.forget();
        let agent = Agent::start(&self.world);
        let begun = |name: &str| self.path(name).exists();
        let is_hit = self.until(|| match step {
            Step::Fetch => self.edge.answers.seen().iter().any(|seen| seen.method == Method::GET).then_some(true),
            Step::FetchFrames => {
                self.edge.answers.seen().iter().any(|seen| seen.headers.contains_key("range")).then_some(true)
            }
            Step::Unpack if begun("check.begun") => Some(false),
            Step::Unpack => self.has_release_like(".partial").then_some(true),
            Step::Check | Step::Switch => begun("check.begun").then_some(true),
            Step::Hook => begun("hook.begun").then_some(true),
            Step::Prune
                if fs::read_to_string(self.path("log")).is_ok_and(|log| log.ends_with(&format!("{number}/000"))) =>
            {
                Some(false)
            }
            Step::Prune => self.has_release_like(".removed").then_some(true),
        });
        let is_hit = is_hit && {
            if step == Step::Switch {
                let before = self.world.current();
                fs::remove_file(self.path("check.hold")).unwrap();
                let link = self.world.service_dir().join(".current.new");
                self.until(|| (link.is_symlink() || self.world.current() != before).then_some(true))
            } else {
                true
            }
        };
        drop(agent);
        self.edge.answers.fail_always(None);
        self.edge.answers.fail_frames(None);
        for name in ["check.hold", "hook.hold"] {
            let _ = fs::remove_file(self.path(name));
        }
        is_hit
    }

    /// Looks without a pause: a step may be short.
    fn until(&self, mut found: impl FnMut() -> Option<bool>) -> bool {
        let started = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "the agent does not get there: {:?}", self.world.releases());
            std::thread::yield_now();
        }
    }

    /// The next agent gets there, runs the hook for it, and leaves nothing behind.
    fn finish(&self, number: usize) {
        let agent = Agent::start(&self.world);
        let log = format!("{number}/000");
        self.until(|| fs::read_to_string(self.path("log")).is_ok_and(|ran| ran.ends_with(&log)).then_some(true));
        assert_eq!(release(&self.world), number);
        // The hook has ended, and what is not needed was removed.
        let incoming = self.world.service_dir().join("incoming");
        let is_tidy = || {
            let is_release = |name: &String| !name.starts_with('.');
            fs::read_dir(&incoming).unwrap().count() == 0 && self.world.releases().iter().all(is_release)
        };
        self.until(|| is_tidy().then_some(true));
        drop(agent);
        self.world.assert_no_leftovers();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_each_step_leaves_one_whole_release() {
    let scene = Scene::new().await;
    scene.edge.answers.publish(&shop(), version(0));
    scene.finish(0);
    let mut number = 0;
    for step in [Step::Fetch, Step::FetchFrames, Step::Unpack, Step::Check, Step::Switch, Step::Hook, Step::Prune] {
        let mut missed = 0;
        loop {
            number += 1;
            scene.edge.answers.publish(&shop(), version(number));
            let is_hit = scene.kill_at(step, number);
            let found = release(&scene.world);
            let may_be = match step {
                Step::Fetch | Step::FetchFrames | Step::Unpack | Step::Check => {
                    number - 1..=number - usize::from(is_hit)
                }
                Step::Switch => number - 1..=number,
                Step::Hook | Step::Prune => number..=number,
            };
            assert!(may_be.contains(&found), "{step:?}: {found} of {number}");
            scene.finish(number);
            if is_hit {
                break;
            }
            missed += 1;
            assert!(missed < MAX_MISSED, "no kill fell into {step:?}");
        }
    }
}
