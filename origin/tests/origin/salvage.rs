//! One bad page of the database of publications: what stands on all the others is kept by `fsck --mend`, and what is lost
//! is named.

use std::fs;
use std::path::PathBuf;

use weir_origin::config::Config;
use weir_origin::fsck::{self, Fault, Found, Options, Outcome, Report};
use weir_origin::versions::Asked;
use weir_shared::descriptor::Descriptor;

use crate::node::{Home, Node, SERVICE, service};
use crate::upstream::Upstream;

const PAGE: usize = 4096;

/// A stopped origin that is pinned to the first of two versions.
struct Stopped {
    home: Home,
    upstream: Upstream,
    config: Config,
    /// What is current: the first version again.
    pinned: Descriptor,
    /// What was current before.
    other: Descriptor,
}

impl Stopped {
    /// `floor`: the clock was ahead once.
    async fn new(floor: u64) -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let mut config = home.config(&upstream.url());
        config.generation_floor = floor;
        let node = home.start(config.clone()).await;
        let first = node.published(|_| true).await;
        upstream.push("deploy/more", b"more\n");
        node.poll().await;
        let other = node.descriptor().await;
        let digest = first.publication().digest;
        node.running.versions().roll_back(&service(), &digest, Asked::default()).await.unwrap();
        let pinned = node.descriptor().await;
        node.stop().await;
        config.generation_floor = 0;
        Self { home, upstream, config, pinned, other }
    }

    fn state(&self) -> PathBuf {
        self.home.data_dir().join("state.redb")
    }

    /// Changes the pages that hold these bytes; there are some.
    fn spoil(&self, bytes: &[u8], spoil: impl Fn(&mut [u8], usize)) {
        let mut file = fs::read(self.state()).unwrap();
        let mut spoiled = 0;
        for page in file.chunks_mut(PAGE) {
            if let Some(at) = page.windows(bytes.len()).position(|window| window == bytes) {
                spoil(page, at);
                spoiled += 1;
            }
        }
        assert!(spoiled > 0);
        fs::write(self.state(), file).unwrap();
    }

    fn mend(&self) -> (Report, Found) {
        let report = fsck::run(&self.config, Options { mend: true, threads: 1 }, &|_| ()).unwrap();
        let found = report.found.iter().find(|found| found.fault == Fault::Database).cloned();
        (report, found.expect("it is damaged"))
    }

    async fn start(&self) -> Node {
        let after = fsck::run(&self.config, Options { mend: false, threads: 1 }, &|_| ()).unwrap();
        assert_eq!(after.exit_code(), 0, "{after:?}");
        self.home.start(self.config.clone()).await
    }
}

/// Takes a page away as a whole.
fn noise(page: &mut [u8], _: usize) {
    page.fill(0xff);
}

#[tokio::test]
async fn a_bad_page_of_histories_costs_no_pin_and_no_version() {
    let stopped = Stopped::new(0).await;
    stopped.spoil(b"\"why\":\"", noise);
    let (report, found) = stopped.mend();
    assert_eq!((found.outcome, report.exit_code()), (Outcome::Lost, 4), "{report:?}");
    let remark = found.remark.unwrap();
    for said in [
        "set aside as state.redb.damaged;",
        "all 1 pins",
        "all 1 last generations",
        "all 1 current versions",
        "all 1 superseded versions",
        "not all entries of histories could be read (unreadable, if there are any: shop-prod)",
    ] {
        assert!(remark.contains(said), "{said}: {remark}");
    }
    stopped.upstream.push("deploy/even-more", b"more\n");
    let node = stopped.start().await;
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), stopped.pinned.bytes(), "it is where it was, and stays there");
    assert_eq!(node.status().await["services"][0]["condition"], "pinned");
    for version in [&stopped.pinned, &stopped.other] {
        node.tarball(version).await;
    }
    let digest = stopped.other.publication().digest;
    node.running.versions().roll_back(&service(), &digest, Asked::default()).await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn one_bit_of_an_entry_costs_that_entry_alone() {
    let stopped = Stopped::new(0).await;
    stopped.spoil(b"\"why\":\"rolled-back\"", |page, at| page[at + 7] ^= 1);
    let (_, found) = stopped.mend();
    let (remark, generation) = (found.remark.unwrap(), stopped.pinned.publication().generation);
    assert!(remark.contains(&format!("(wrong: {SERVICE} at {generation})")), "{remark}");
    let node = stopped.start().await;
    let page = node.running.versions().history(&service(), None, 10).await.unwrap();
    assert_eq!(page.publications.len(), 2, "{page:?}");
    assert_eq!(node.descriptor().await.bytes(), stopped.pinned.bytes());
    node.stop().await;
}

#[tokio::test]
async fn a_version_that_is_not_what_it_states_is_not_taken_over() {
    let stopped = Stopped::new(0).await;
    let hex = stopped.pinned.publication().sha256.to_string();
    stopped.spoil(hex.as_bytes(), |page, at| page[at + 9] = if page[at + 9] == b'0' { b'1' } else { b'0' });
    let (_, found) = stopped.mend();
    let remark = found.remark.unwrap();
    assert!(remark.contains(" 0 current versions") && remark.contains("all 1 pins"), "{remark}");
    let node = stopped.start().await;
    let again = node.published(|_| true).await;
    assert!(again.publication().generation > stopped.pinned.publication().generation);
    assert_eq!(node.status().await["services"][0]["condition"], "pinned", "to what could be published");
    node.stop().await;
}

#[tokio::test]
async fn a_lost_generation_is_not_given_out_again_even_when_the_clock_was_ahead() {
    let stopped = Stopped::new(9_000_000_000_000).await;
    let generation = stopped.pinned.publication().generation;
    stopped.spoil(&generation.to_le_bytes(), |page, at| {
        // The last generation stands at the end of its page's only row, and entries of histories in the midst of theirs.
        if !page.windows(6).any(|window| window == b"\"why\":") {
            noise(page, at);
        }
    });
    stopped.spoil(b"\"representations\"", noise);
    let (_, found) = stopped.mend();
    let remark = found.remark.unwrap();
    assert!(remark.contains(" 0 last generations") && remark.contains(" 0 current versions"), "{remark}");
    let node = stopped.start().await;
    let again = node.published(|_| true).await;
    assert!(again.publication().generation > generation, "{again:?}");
    node.stop().await;
}

#[tokio::test]
async fn no_database_that_was_set_aside_is_written_over() {
    let stopped = Stopped::new(0).await;
    let aside = |number: usize| match number {
        1 => stopped.state().with_extension("redb.damaged"),
        _ => stopped.state().with_extension(format!("redb.damaged-{number}")),
    };
    for number in 1..=9 {
        fs::write(aside(number), number.to_string()).unwrap();
    }
    stopped.spoil(b"\"why\":\"", noise);
    let refused = fsck::run(&stopped.config, Options { mend: true, threads: 1 }, &|_| ()).unwrap_err();
    assert!(format!("{refused:#}").contains("remove those that nobody needs"), "{refused:#}");
    assert!((1..=9).all(|number| fs::read(aside(number)).unwrap() == number.to_string().as_bytes()));
    fs::remove_file(aside(4)).unwrap();
    let (_, found) = stopped.mend();
    assert!(found.remark.unwrap().contains("set aside as state.redb.damaged-4;"));
    assert!(fs::metadata(aside(4)).unwrap().len() > 1000);
    stopped.start().await.stop().await;
}
