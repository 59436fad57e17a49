//! One bad page of the database of publications: what stands on all the others is kept by `fsck --mend`, and what is lost
//! is named.

use std::fs;
use std::path::PathBuf;

use weir_origin::config::Config;
use weir_origin::fsck::{self, Fault, Found, Options, Outcome, Report};
use weir_origin::versions::Asked;
use weir_shared::descriptor::Descriptor;
use weir_shared::process::key_pair;

use crate::node::{Home, Node, SERVICE, blob_of, service};
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
    /// The database as it would be had the process been killed.
    killed: Vec<u8>,
}

impl Stopped {
    /// `floor`: the clock was ahead once.
    async fn new(floor: u64) -> Self {
        let home = Home::new();
        Self::of(home, |config| config.generation_floor = floor).await
    }

    async fn signed() -> Self {
        let home = Home::new();
        let key = home.file("signing.key");
        key_pair::write(&key).unwrap();
        Self::of(home, |config| config.signing.keys = vec![key]).await
    }

    async fn of(home: Home, configure: impl FnOnce(&mut Config)) -> Self {
        let upstream = Upstream::small();
        let mut config = home.config(&upstream.url());
        configure(&mut config);
        let node = home.start(config.clone()).await;
        let first = node.published(|_| true).await;
        upstream.push("deploy/more", b"more\n");
        node.poll().await;
        let other = node.descriptor().await;
        let digest = first.publication().digest;
        node.running.versions().roll_back(&service(), &digest, Asked::default()).await.unwrap();
        let pinned = node.descriptor().await;
        let killed = fs::read(home.data_dir().join("state.redb")).unwrap();
        node.stop().await;
        config.generation_floor = 0;
        Self { home, upstream, config, pinned, other, killed }
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

    /// Changes the page of what is current, where these bytes stand.
    fn spoil_current(&self, bytes: &[u8], spoil: impl Fn(&mut [u8])) {
        self.spoil(bytes, |page, at| {
            if page.windows(17).any(|window| window == b"\"representations\"") {
                spoil(&mut page[at..at + bytes.len()]);
            }
        });
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

/// What is current is not taken over, and what is published anew is above everything that was read.
async fn is_published_anew(stopped: &Stopped) {
    let (_, found) = stopped.mend();
    let remark = found.remark.unwrap();
    assert!(remark.contains(" 0 current versions") && remark.contains("all 1 pins"), "{remark}");
    assert!(remark.contains(&format!("the pin holds what is published next, which need not be the same: {SERVICE}")));
    let node = stopped.start().await;
    let again = node.published(|_| true).await;
    assert!(again.publication().generation > stopped.pinned.publication().generation, "{again:?}");
    node.tarball(&again).await;
    node.stop().await;
}

fn other_digit(digit: &mut u8) {
    *digit = if *digit == b'0' { b'1' } else { b'0' };
}

#[tokio::test]
async fn a_generation_that_has_become_lower_is_not_believed() {
    let stopped = Stopped::new(0).await;
    let generation = format!("\"generation\":{}", stopped.pinned.publication().generation);
    stopped.spoil_current(generation.as_bytes(), |found| other_digit(&mut found[14]));
    is_published_anew(&stopped).await;
}

#[tokio::test]
async fn a_commit_that_has_become_another_is_not_believed() {
    let stopped = Stopped::new(0).await;
    let commit = format!("\"commit\":\"{}\"", stopped.pinned.publication().commit);
    stopped.spoil_current(commit.as_bytes(), |found| other_digit(&mut found[15]));
    is_published_anew(&stopped).await;
}

#[tokio::test]
async fn what_does_not_bear_its_signatures_is_not_signed_anew() {
    let stopped = Stopped::signed().await;
    let text = String::from_utf8(stopped.pinned.bytes().to_vec()).unwrap();
    let (_, signature) = text.split_once("\"sig\":\"").unwrap();
    stopped.spoil_current(&signature.as_bytes()[..20], |found| found[10] = if found[10] == b'A' { b'B' } else { b'A' });
    let (_, found) = stopped.mend();
    let remark = found.remark.unwrap();
    assert!(remark.contains(" 0 current versions"), "{remark}");
    let node = stopped.start().await;
    assert!(node.published(|_| true).await.publication().generation > stopped.pinned.publication().generation);
    node.stop().await;
}

#[tokio::test]
async fn a_version_whose_blob_is_lost_as_well_is_kept_and_the_blob_made_again() {
    let stopped = Stopped::new(0).await;
    for version in [&stopped.pinned, &stopped.other] {
        fs::remove_file(stopped.home.blob(&blob_of(version))).unwrap();
    }
    stopped.spoil(b"\"why\":\"", noise);
    stopped.upstream.push("deploy/even-more", b"more\n");
    let (_, found) = stopped.mend();
    let remark = found.remark.unwrap();
    assert!(remark.contains("all 1 current versions, all 1 superseded versions"), "{remark}");
    let node = stopped.start().await;
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), stopped.pinned.bytes(), "what was pinned, and not where its ref is");
    for version in [&stopped.pinned, &stopped.other] {
        node.tarball(version).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_bad_page_of_the_database_s_own_costs_nothing_and_neither_does_a_kill() {
    for was_killed in [false, true] {
        let stopped = Stopped::new(0).await;
        let mut file = if was_killed { stopped.killed.clone() } else { fs::read(stopped.state()).unwrap() };
        // Where what the database knows of its free pages begins: said by the slot of the last commit.
        let slot = 64 + 128 * usize::from(file[9] & 1);
        let page = u64::from_le_bytes(*file[slot + 40..].first_chunk().unwrap()) & 0xf_ffff;
        noise(&mut file[PAGE * (page as usize + 1)..][..PAGE], 0);
        fs::write(stopped.state(), file).unwrap();
        let (report, found) = stopped.mend();
        assert_eq!((found.outcome, report.exit_code()), (Outcome::Mended, 1), "{report:?}");
        let node = stopped.start().await;
        node.poll().await;
        assert_eq!(node.descriptor().await.bytes(), stopped.pinned.bytes());
        assert_eq!(node.status().await["services"][0]["condition"], "pinned");
        assert_eq!(node.running.versions().history(&service(), None, 10).await.unwrap().publications.len(), 3);
        node.stop().await;
    }
}

#[tokio::test]
async fn where_the_tables_are_lost_those_of_before_are_read_and_all_goes_on_above() {
    let stopped = Stopped::new(0).await;
    // The page that names the tables. When the origin stops properly that of before is the same one.
    let mut file = stopped.killed.clone();
    let slot = 64 + 128 * usize::from(file[9] & 1);
    let page = u64::from_le_bytes(*file[slot + 8..].first_chunk().unwrap()) & 0xf_ffff;
    noise(&mut file[PAGE * (page as usize + 1)..][..PAGE], 0);
    fs::write(stopped.state(), file).unwrap();
    let (_, found) = stopped.mend();
    assert!(found.remark.as_ref().unwrap().contains("before the last write"), "{found:?}");
    let node = stopped.start().await;
    let again = node.published(|_| true).await;
    assert!(again.publication().generation > stopped.pinned.publication().generation, "{again:?}");
    node.tarball(&again).await;
    node.stop().await;
}

#[tokio::test]
async fn a_bit_of_the_database_s_version_is_damage() {
    let stopped = Stopped::new(0).await;
    let whole = fs::read(stopped.state()).unwrap();
    for slot in [64, 192] {
        let mut file = whole.clone();
        file[slot] ^= 1;
        fs::write(stopped.state(), file).unwrap();
        let looked = fsck::run(&stopped.config, Options { mend: false, threads: 1 }, &|_| ()).unwrap();
        assert_eq!(looked.exit_code(), 4, "{looked:?}");
        let (report, _) = stopped.mend();
        assert_eq!(report.exit_code(), 1, "{report:?}");
        let node = stopped.start().await;
        assert_eq!(node.descriptor().await.bytes(), stopped.pinned.bytes());
        node.stop().await;
    }
}
