//! What nobody follows never stops what is followed: an agent gets each push beside refs and commits that are broken at
//! random.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::{GitRepository, git_command};
use weir_loadtest::processes::{PATIENCE, until};
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

const PUSHES: usize = 5;

/// A person as a commit names one.
const SOMEBODY: &str = "a <a@b> 1700000000 +0000";

/// Objects and refs of a bare repository, written without the checks of a push.
struct Objects<'a>(&'a Path);

impl Objects<'_> {
    /// Stores an object, and returns its id.
    fn put(&self, kind: &str, bytes: &[u8]) -> anyhow::Result<String> {
        let mut command = git_command(self.0);
        command.args(["hash-object", "-t", kind, "--literally", "-w", "--stdin"]);
        let mut git = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        git.stdin.take().context("stdin is piped")?.write_all(bytes)?;
        let output = git.wait_with_output()?;
        ensure!(output.status.success(), "git hash-object failed");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn tree(&self, blob: &str) -> anyhow::Result<String> {
        let id: Vec<u8> =
            (0..blob.len()).step_by(2).map(|at| u8::from_str_radix(&blob[at..at + 2], 16)).collect::<Result<_, _>>()?;
        self.put("tree", &[b"100644 app.yaml\0", &id[..]].concat())
    }

    fn commit(&self, tree: &str, parent: Option<&str>, by: &str) -> anyhow::Result<String> {
        let parent = parent.map(|parent| format!("parent {parent}\n")).unwrap_or_default();
        self.put("commit", format!("tree {tree}\n{parent}author {by}\ncommitter {by}\n\nx\n").as_bytes())
    }

    fn set(&self, name: &str, id: &str) -> anyhow::Result<()> {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().context("a ref has a folder")?)?;
        Ok(fs::write(path, format!("{id}\n"))?)
    }

    /// Adds a broken ref, or one of a broken commit. `salt` makes each different.
    fn break_one(&self, kind: usize, salt: u64) -> anyhow::Result<()> {
        let missing = format!("{salt:040x}");
        let good = self.tree(&self.put("blob", salt.to_string().as_bytes())?)?;
        let (name, id) = match kind {
            0 => ("heads/HEAD".to_owned(), self.commit(&good, None, SOMEBODY)?),
            1 => ("tags/HEAD".to_owned(), self.commit(&good, None, SOMEBODY)?),
            2 => (format!("heads/no-name-{salt}"), self.commit(&good, None, "")?),
            3 => (format!("heads/no-mail-{salt}"), self.commit(&good, None, "somebody yesterday")?),
            4 => (format!("heads/no-tree-{salt}"), self.commit(&missing, None, SOMEBODY)?),
            5 => (format!("heads/no-parent-{salt}"), self.commit(&good, Some(&missing), SOMEBODY)?),
            6 => (format!("heads/no-file-{salt}"), self.commit(&self.tree(&missing)?, None, SOMEBODY)?),
            7 => (format!("heads/no-commit-{salt}"), self.put("commit", format!("nothing {salt}\n").as_bytes())?),
            8 => (format!("tags/no-tag-{salt}"), self.put("tag", format!("nothing {salt}\n").as_bytes())?),
            9 => (format!("heads/missing-{salt}"), missing),
            _ => (format!("heads/{}", "x".repeat(252)), self.commit(&good, None, SOMEBODY)?),
        };
        self.set(&format!("refs/{name}"), &id)
    }
}

const KINDS: usize = 11;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_each_push_beside_broken_refs() -> anyhow::Result<()> {
    let seed = std::env::var("WEIR_BROKEN_REFS_SEED").map_or(Ok(fastrand::u64(..)), |seed| seed.parse())?;
    println!("WEIR_BROKEN_REFS_SEED={seed} repeats this run");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir()?;
    let upstream = GitRepository::create(dir.path(), "shop")?;
    upstream.write("app.yaml", "0")?;
    let mut tip = upstream.commit_and_push("zero")?;

    let mut repository = RepositoryConfig::new("shop".parse()?, upstream.bare().to_str().context("UTF-8")?);
    repository.min_poll_interval = Duration::from_millis(100);
    let mut service = ServiceConfig::new("shop".parse()?, "shop".parse()?);
    service.followed_ref = "main".parse()?;
    let plan = Plan { repositories: vec![repository], services: vec![service], agents: 1, ..Plan::default() };
    let cluster = Cluster::start(plan).await?;
    let current = cluster.current(0, &"shop".parse()?).join("app.yaml");
    let until_at = async |push: usize| {
        let has_arrived = || fs::read_to_string(&current).is_ok_and(|text| text == push.to_string());
        until(&format!("push {push} is at the agent"), async || has_arrived()).await
    };
    until_at(0).await?;

    let objects = Objects(upstream.bare());
    for push in 1..=PUSHES {
        for _ in 0..random.usize(1..4) {
            objects.break_one(random.usize(..KINDS), random.u64(1..))?;
        }
        let tree = objects.tree(&objects.put("blob", push.to_string().as_bytes())?)?;
        tip = objects.commit(&tree, Some(&tip), SOMEBODY)?;
        objects.set("refs/heads/main", &tip)?;
        cluster.origin.trigger_poll(&"shop".parse()?);
        until_at(push).await?;
    }
    assert!(cluster.drain(PATIENCE).await);
    Ok(())
}
