//! The real process, killed at each step of a publication (objects, record, shown) and of garbage collection: each
//! reported publication can be downloaded in full afterwards, and generations only grow.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use weir_protocol::descriptor::Generation;

use crate::node::Edge;
use crate::prelude::*;

const SIGABRT: i32 = 6;

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// The steps, as the program's text has them.
fn steps() -> Vec<String> {
    fn collect(folder: &Path, steps: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, steps);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                let after = text.split("failpoint!(\"").skip(1);
                steps.extend(after.map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }
    let mut steps = Vec::new();
    for folder in ["src", "publish/src", "store/src"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut steps);
    }
    steps.sort();
    assert!(steps.windows(2).all(|two| two[0] != two[1]), "two steps of one name: {steps:?}");
    steps
}

/// A running process.
struct Process {
    child: Child,
    /// `None`: it ended before it listened.
    address: Option<String>,
    log: std::thread::JoinHandle<()>,
}

impl Process {
    fn start(config: &Path, killed_at: Option<&str>) -> Self {
        let step = killed_at.map(|step| ("WEIR_FAILPOINT", step.into()));
        Self::start_with(config, step)
    }

    fn start_with(config: &Path, environment: impl IntoIterator<Item = (&'static str, OsString)>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
        command.arg("--config").arg(config).stderr(Stdio::piped()).env_remove("WEIR_FAILPOINT").envs(environment);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listens = |line: String| Some(line.split_once("\"listen\":\"")?.1.split('"').next()?.to_owned());
        let address = lines.by_ref().find_map(listens);
        // Whoever does not read what a process writes stops it in the end.
        let log = std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, log }
    }

    /// Whether it was killed at its step. Any other end is a fault.
    fn has_ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return false };
        assert_eq!(status.signal(), Some(SIGABRT), "{status}");
        true
    }

    fn kill(mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.log.join().unwrap();
    }
}

/// The publications that a client has received.
#[derive(Default)]
struct Observed {
    highest: Generation,
    versions: BTreeMap<Generation, Descriptor>,
}

impl Observed {
    fn of(&mut self, descriptor: &Descriptor) {
        let generation = descriptor.publication().generation;
        assert!(generation >= self.highest, "a generation went back");
        self.highest = generation;
        if let Some(before) = self.versions.insert(generation, descriptor.clone()) {
            assert_eq!(before.publication(), descriptor.publication(), "one generation, two publications");
            assert!(before.revision() <= descriptor.revision());
        }
    }
}

/// An edge of a process that may be killed at any time.
struct Client(Edge);

impl Client {
    fn of(home: &Home, address: &str) -> Self {
        Self(Edge { client: home.client("edge-client"), origin: address.to_owned() })
    }

    async fn descriptor(&self, path: &str) -> Option<Descriptor> {
        let answer = self.0.try_request(Method::GET, &format!("/v1/services/{SERVICE}{path}"), &[]).await?;
        (answer.status == StatusCode::OK).then(|| Descriptor::parse(answer.body).unwrap())
    }

    async fn current(&self) -> Option<Descriptor> {
        self.descriptor("").await
    }

    async fn is_retained(&self, version: &Descriptor) -> bool {
        self.descriptor(&format!("/versions/{}", version.publication().digest)).await.is_some()
    }

    /// Fetches every representation of a version, and looks at every byte.
    async fn fetch(&self, version: &Descriptor) {
        // Deltas may be there already; they have tests of their own.
        for stored in version.representations().iter().filter(|stored| stored.dictionary.is_none()) {
            let body = self.0.body(version, stored.encoding).await;
            let mut tar = Vec::new();
            match stored.encoding {
                Encoding::Zstd => tar = zstd::decode_all(body.as_slice()).unwrap(),
                _ => _ = flate2::read::MultiGzDecoder::new(body.as_slice()).read_to_end(&mut tar).unwrap(),
            }
            assert_eq!(TarballDigest::of(&tar), version.publication().digest);
        }
    }
}

/// What `attempt` gives in the end.
async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn config(home: &Home, upstream: &Upstream) -> std::path::PathBuf {
    home.write_config(&format!(
        "[retention]\nversions = 2\nbytes = \"10MiB\"\ngc_grace_period = \"8s\"\n\
         [[repository]]\nname = \"shop\"\nurl = \"{}\"\npoll_interval = \"1s\"\n\
         [[service]]\nname = \"{SERVICE}\"\nrepository = \"shop\"\nfolder = \"deploy\"\ngzip = true\n",
        upstream.url()
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_step_loses_no_reported_publication_and_no_generation() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let config = config(&home, &upstream);
    let mut observed = Observed::default();
    // More than one frame, so that there is a manifest; and what nothing refers to any more, for garbage collection.
    let noise = |number: usize| {
        let mut bytes = vec![0; 1_100_000];
        blake3::Hasher::new().update(&number.to_be_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    };
    // Each version shares this with the one before.
    upstream.push("deploy/a-steady-file", &[noise(200), noise(201)].concat());
    let settle = async |observed: &mut Observed, commit: &str| {
        let process = Process::start(&config, None);
        let client = Client::of(&home, process.address.as_ref().expect("it starts"));
        // From the first moment on.
        if observed.highest > 0 {
            observed.of(&client.current().await.expect("what was published is served at once"));
        }
        for version in observed.versions.values().rev().take(3) {
            if client.is_retained(version).await {
                client.fetch(version).await;
            }
        }
        until("the commit is published", async || {
            let current = client.current().await?;
            observed.of(&current);
            (commit_of(&current) == commit).then_some(())
        })
        .await;
        observed.of(&client.current().await.unwrap());
        client.fetch(&observed.versions[&observed.highest]).await;
        process.kill();
    };
    let mut commit = String::new();
    for number in 0..long_or(4, 2) {
        commit = upstream.push("deploy/noise", &noise(number));
        settle(&mut observed, &commit).await;
    }
    for (number, step) in steps().into_iter().step_by(long_or(1, 3)).enumerate() {
        let pushed = upstream.push("deploy/noise", &noise(100 + number));
        let mut process = Process::start(&config, Some(&step));
        if let Some(address) = process.address.clone() {
            let client = Client::of(&home, &address);
            until(&step, async || {
                if let Some(current) = client.current().await {
                    observed.of(&current);
                }
                process.has_ended().then_some(())
            })
            .await;
        } else {
            until(&step, async || process.has_ended().then_some(())).await;
        }
        process.kill();
        commit = pushed;
        settle(&mut observed, &commit).await;
    }
    assert_eq!(commit_of(&observed.versions[&observed.highest]), commit);
}

/// They would run alongside those of the next process. The git program hangs here, whatever becomes of those it talks to, and
/// so does what it has started.
#[test]
fn no_git_process_outlives_a_killed_origin() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (config, programs, pipe) = (config(&home, &upstream), home.file("programs"), home.file("pipe"));
    std::fs::create_dir(&programs).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let git = programs.join("git");
    let script = format!(
        "#!/bin/sh\nPATH=${{PATH#*:}}\ncase \"$*\" in *upload-pack*) exec 5>'{}'; echo x >&5; sleep 300 & sleep 300; esac\n\
         exec git \"$@\"\n",
        pipe.display()
    );
    std::fs::write(&git, script).unwrap();
    std::fs::set_permissions(&git, PermissionsExt::from_mode(0o755)).unwrap();
    let path =
        std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let process = Process::start_with(&config, [("PATH", path.unwrap())]);
    let mut alive = std::fs::File::open(&pipe).unwrap();
    alive.read_exact(&mut [0; 2]).unwrap();
    process.kill();
    // Both hold the other end.
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || ends.send(alive.read(&mut [0]).unwrap()));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(0));
}
