//! `fsck` on the data directory of a stopped origin, with each kind of damage; what it mends is served afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use http::Method;
use redb::{Database, Key, TableDefinition, Value};
use weir_origin::config::Config;
use weir_origin::fsck::{self, Fault, Options, Outcome, Report};
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::BlobDigest;
use weir_shared::encoding::Encoding;
use weir_shared::process::key_pair;

use crate::node::{Home, SERVICE, blob_of, flip_a_bit};
use crate::operator::{self, Operator};
use crate::upstream::Upstream;

const CURRENT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("current_v1");
const GENERATION: TableDefinition<'_, &str, u64> = TableDefinition::new("generation_v1");
type Version = (&'static str, &'static [u8; 32]);
const SUPERSEDED: TableDefinition<'_, Version, (u64, &[u8])> = TableDefinition::new("history_v1");
const HISTORY: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("publications_v1");
const CONTENT: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("content_v1");
const NAMES: TableDefinition<'_, (&[u8; 32], &str, &[u8; 32]), u64> = TableDefinition::new("names_v1");
const DOCUMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("service_v1");

/// A stopped origin that published twice, the first version also as gzip.
struct Stopped {
    home: Home,
    upstream: Upstream,
    config: Config,
    old: Descriptor,
    new: Descriptor,
}

/// Bytes that do not compress, of more than one piece.
fn noise() -> Vec<u8> {
    let mut noise = vec![0; 1_500_000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    noise
}

impl Stopped {
    async fn new() -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let config = home.config(&upstream.url());
        Self::of(home, upstream, config).await
    }

    async fn of(home: Home, upstream: Upstream, config: Config) -> Self {
        let node = home.start(config.clone()).await;
        let digest = node.published(|_| true).await.publication().digest;
        let path = format!("/v1/services/{SERVICE}/versions/{digest}/gzip");
        assert_eq!(node.request(Method::POST, &path, &[]).await.status, 200);
        let old = node.descriptor().await;
        upstream.push("deploy/noise", &noise());
        node.poll().await;
        let new = node.descriptor().await;
        node.stop().await;
        Self { home, upstream, config, old, new }
    }

    fn fsck(&self, mend: bool) -> Report {
        fsck::run(&self.config, Options { mend, threads: 2 }, &|_| ()).unwrap()
    }

    /// What is found, which a look does not change; how mending it ends; and that a second look finds no damage.
    fn mended(&self, exit_code: u8) -> Report {
        let (before, looked) = (self.files(), self.fsck(false));
        assert_eq!(looked.exit_code(), 4, "{looked:?}");
        assert!(self.files() == before, "a look has changed something");
        let mended = self.fsck(true);
        assert_eq!(mended.exit_code(), exit_code, "{mended:?}");
        assert_eq!(faults(&looked), faults(&mended));
        let after = self.fsck(false);
        assert_eq!(after.exit_code(), 0, "{after:?}");
        mended
    }

    /// Every file but the mirror's, with its bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        fn collect(folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    files.push((path.clone(), fs::read(&path).unwrap()));
                } else if path.file_name().unwrap() != "mirrors" {
                    collect(&path, files);
                }
            }
        }
        let mut files = Vec::new();
        collect(&self.home.data_dir(), &mut files);
        files.sort();
        files
    }

    fn gzip(&self) -> BlobDigest {
        self.old.representation(Encoding::Gzip).unwrap().digest
    }

    fn beside(&self, blob: &BlobDigest, suffix: &str) -> PathBuf {
        let mut path = self.home.blob(blob).into_os_string();
        path.push(suffix);
        path.into()
    }

    /// Writes a row of one of the databases.
    fn put<'a, K: Key, V: Value>(
        &self,
        database: &str,
        table: TableDefinition<'_, K, V>,
        key: K::SelfType<'a>,
        value: V::SelfType<'a>,
    ) {
        let database = Database::open(self.home.data_dir().join(database)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(table).unwrap().insert(key, value).unwrap();
        transaction.commit().unwrap();
    }

    /// All that was published is served, as it was stated.
    async fn serves_all(&self) {
        let node = self.home.start(self.config.clone()).await;
        let current = node.descriptor().await;
        assert_eq!(current.publication(), self.new.publication());
        for version in [&current, &self.old] {
            node.tarball(version).await;
        }
        let gzip = node.get(&format!("/v1/blobs/{}", self.gzip())).await;
        assert_eq!(BlobDigest::of(&gzip.body), self.gzip());
        assert_eq!(node.metric("weir_origin_blob_heals_total{result=\"healed\"}").await, 0.0);
        node.stop().await;
    }

    /// The service is published anew, under a higher generation and with the same content.
    async fn publishes_anew(&self) {
        let node = self.home.start(self.config.clone()).await;
        let again = node.published(|_| true).await;
        assert_eq!(again.publication().digest, self.new.publication().digest);
        assert!(again.publication().generation > self.new.publication().generation);
        node.tarball(&again).await;
        node.stop().await;
    }
}

fn faults(report: &Report) -> Vec<Fault> {
    let mut faults: Vec<Fault> = report.found.iter().map(|found| found.fault).collect();
    faults.sort();
    faults
}

fn outcomes(report: &Report, fault: Fault) -> Vec<Outcome> {
    report.found.iter().filter(|found| found.fault == fault).map(|found| found.outcome).collect()
}

#[tokio::test]
async fn a_sound_directory_is_said_to_be_sound_and_left_as_it_is() {
    let stopped = Stopped::new().await;
    let before = stopped.files();
    for mend in [false, true] {
        let report = stopped.fsck(mend);
        assert_eq!((report.exit_code(), report.versions, report.blobs), (0, 2, 3), "{report:?}");
        assert!(report.bytes > 1_500_000 && report.found.is_empty(), "{report:?}");
        assert!(stopped.files() == before);
    }
    stopped.serves_all().await;
}

#[tokio::test]
async fn damaged_missing_and_cut_blobs_are_made_again_without_the_upstream() {
    let stopped = Stopped::new().await;
    stopped.upstream.take_away();
    flip_a_bit(&stopped.home.blob(&blob_of(&stopped.new)));
    fs::remove_file(stopped.home.blob(&blob_of(&stopped.old))).unwrap();
    fs::OpenOptions::new().write(true).open(stopped.home.blob(&stopped.gzip())).unwrap().set_len(20).unwrap();
    let mended = stopped.mended(1);
    let expected = [
        Fault::DamagedBlob,
        Fault::DamagedBlob,
        Fault::MissingForm,
        Fault::MissingForm,
        Fault::MissingForm,
        // The piece list and the list of fragments of the blob that was removed by hand.
        Fault::LeftOver,
    ];
    assert_eq!(faults(&mended), expected);
    stopped.serves_all().await;
}

#[tokio::test]
async fn what_is_beside_a_blob_is_made_again_and_what_is_not_the_origin_s_stays() {
    let stopped = Stopped::new().await;
    let unnamed = BlobDigest::of(b"unnamed");
    let path = stopped.home.blob(&unnamed);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, b"unnamed").unwrap();
    let blobs = stopped.home.data_dir().join("blobs");
    let half = blobs.join("tmp/half");
    fs::write(&half, b"half").unwrap();
    let foreign = [path.with_file_name("notes.txt"), blobs.join("README"), blobs.join("zz")];
    foreign.iter().for_each(|file| fs::write(file, b"").unwrap());
    // In a folder that is another's it would never be found.
    let elsewhere = blobs.join(if unnamed.hex().starts_with("00") { "01" } else { "00" });
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join(unnamed.hex()), b"unnamed").unwrap();
    let (pieces, fragments) =
        (stopped.beside(&blob_of(&stopped.new), ".pieces"), stopped.beside(&blob_of(&stopped.new), ".fragments"));
    let right = fs::read(&pieces).unwrap();
    flip_a_bit(&pieces);
    flip_a_bit(&fragments);
    let list_of_one_piece = stopped.beside(&blob_of(&stopped.old), ".pieces");
    fs::write(&list_of_one_piece, [7; 64]).unwrap();

    let mended = stopped.mended(1);
    let mut expected =
        vec![Fault::WrongPieces, Fault::WrongPieces, Fault::WrongFragments, Fault::Unnamed, Fault::LeftOver];
    expected.extend([Fault::Foreign; 4]);
    assert_eq!(faults(&mended), expected);
    assert_eq!(outcomes(&mended, Fault::Foreign), [Outcome::Left; 4]);
    assert!(foreign.iter().all(|file| file.exists()) && path.exists() && !half.exists());
    assert!(!pieces.exists() && !fragments.exists() && !list_of_one_piece.exists());
    let told: String = mended.found.iter().map(|found| found.object.clone()).collect();
    assert!(!told.contains(&stopped.home.data_dir().display().to_string()), "{told}");
    stopped.serves_all().await;
    assert_eq!(fs::read(&pieces).unwrap(), right, "made again by the first who asked");
}

#[tokio::test]
async fn rows_that_cannot_be_read_go_and_their_service_is_published_anew() {
    let stopped = Stopped::new().await;
    let (generation, old) = (stopped.new.publication().generation, stopped.old.publication().digest);
    stopped.put("state.redb", CURRENT, SERVICE, b"{");
    // Another version under the name of this one.
    stopped.put("state.redb", SUPERSEDED, (SERVICE, old.as_bytes()), (7, stopped.new.bytes().as_ref()));
    stopped.put("state.redb", HISTORY, (SERVICE, generation), b"\xff");
    stopped.put("state.redb", CONTENT, &[7; 32], b"[]");
    let mended = stopped.mended(4);
    assert_eq!(
        outcomes(&mended, Fault::UnreadableRow),
        [Outcome::Lost, Outcome::Lost, Outcome::Lost, Outcome::Mended],
        "{mended:?}"
    );
    assert_eq!(outcomes(&mended, Fault::WrongIndex), [Outcome::Mended]);
    stopped.publishes_anew().await;
}

#[tokio::test]
async fn a_generation_that_could_be_given_out_again_is_lifted() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    // The clock was ahead once, and would not save it now.
    config.generation_floor = 9_000_000_000_000;
    let mut stopped = Stopped::of(home, upstream, config).await;
    stopped.config.generation_floor = 0;
    stopped.put("state.redb", GENERATION, SERVICE, 7);
    assert_eq!(faults(&stopped.mended(1)), [Fault::GenerationBehind]);
    let mut config = stopped.config.clone();
    config.services.clear();
    stopped.home.start(config).await.stop().await;
    stopped.publishes_anew().await;
}

#[tokio::test]
async fn names_that_are_wrong_are_written_anew() {
    let stopped = Stopped::new().await;
    let new = &stopped.new;
    stopped.put("state.redb", NAMES, (&[7; 32], SERVICE, new.publication().digest.as_bytes()), 7);
    assert_eq!(faults(&stopped.mended(1)), [Fault::WrongIndex]);
    stopped.serves_all().await;
}

#[tokio::test]
async fn a_version_that_is_not_signed_as_it_should_be_is_signed_anew() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    let key = home.file("signing.key");
    let (signing, _) = key_pair::write(&key).unwrap();
    config.signing.keys = vec![key];
    let stopped = Stopped::of(home, upstream, config).await;
    assert_eq!(stopped.fsck(false).exit_code(), 0);
    let text = String::from_utf8(stopped.new.bytes().to_vec()).unwrap();
    let at = text.find("\"sig\":\"").unwrap() + 10;
    let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
    let forged = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    stopped.put("state.redb", CURRENT, SERVICE, forged.as_bytes());
    assert_eq!(faults(&stopped.mended(1)), [Fault::WrongSignature]);
    let node = stopped.home.start(stopped.config.clone()).await;
    let again = node.descriptor().await;
    assert_eq!(
        again.verified_publication(&SERVICE.parse().unwrap(), &[signing.public().clone()]).unwrap(),
        *stopped.new.publication()
    );
    assert!(again.revision() > stopped.new.revision());
    node.stop().await;
}

#[tokio::test]
async fn what_can_be_had_from_nowhere_is_said_and_what_never_will_be_is_dropped() {
    let stopped = Stopped::new().await;
    stopped.upstream.take_away();
    let mirrors = stopped.home.data_dir().join("mirrors");
    fs::rename(&mirrors, stopped.home.file("aside")).unwrap();
    fs::remove_file(stopped.home.blob(&blob_of(&stopped.old))).unwrap();
    fs::remove_file(stopped.home.blob(&stopped.gzip())).unwrap();
    flip_a_bit(&stopped.home.blob(&blob_of(&stopped.new)));
    // Without the mirror there may be one again.
    let report = stopped.fsck(true);
    assert_eq!(report.exit_code(), 4, "{report:?}");
    assert_eq!(outcomes(&report, Fault::MissingForm), [Outcome::Left; 3]);
    assert_eq!(outcomes(&report, Fault::DamagedBlob), [Outcome::Mended], "it is never served again");
    assert!(!stopped.home.blob(&blob_of(&stopped.new)).exists());
    let zstd = report.found.iter().filter(|found| found.object.ends_with(" zstd"));
    let remarks: Vec<_> = zstd.filter_map(|found| found.remark.clone()).collect();
    assert!(remarks.len() == 2 && remarks.iter().all(|remark| remark.contains("no mirror of shop")), "{remarks:?}");
    assert_eq!(stopped.fsck(false).versions, 2);

    // With the mirror, but of a service that is another now.
    fs::rename(stopped.home.file("aside"), &mirrors).unwrap();
    let mut config = stopped.config.clone();
    config.services[0].folder = "docs".parse().unwrap();
    let report = fsck::run(&config, Options { mend: true, threads: 1 }, &|_| ()).unwrap();
    assert_eq!(outcomes(&report, Fault::MissingForm), [Outcome::Left, Outcome::Lost, Outcome::Lost], "{report:?}");
    assert_eq!(report.exit_code(), 4);
    assert_eq!(stopped.fsck(false).versions, 1, "the one that is current stays");

    // And as it was.
    stopped.mended(1);
    let node = stopped.home.start(stopped.config.clone()).await;
    node.tarball(&stopped.new).await;
    node.stop().await;
}

#[tokio::test]
async fn a_version_that_git_cannot_make_again_is_made_from_its_gzip_form() {
    let stopped = Stopped::new().await;
    stopped.upstream.take_away();
    let mut config = stopped.config.clone();
    // What the mirror holds gives another tarball.
    config.services[0].folder = "docs".parse().unwrap();
    fs::remove_file(stopped.home.blob(&blob_of(&stopped.old))).unwrap();
    let report = fsck::run(&config, Options { mend: true, threads: 1 }, &|_| ()).unwrap();
    assert_eq!(outcomes(&report, Fault::MissingForm), [Outcome::Mended], "{report:?}");
    let form = report.found.iter().find(|found| found.fault == Fault::MissingForm).unwrap();
    assert!(form.remark.as_ref().unwrap().contains("its gzip form") && report.exit_code() == 1, "{report:?}");
    assert_eq!(stopped.fsck(false).exit_code(), 0);

    let node = stopped.home.start(stopped.config.clone()).await;
    let digest = stopped.old.publication().digest;
    let answer = node.get(&format!("/v1/services/{SERVICE}/versions/{digest}")).await;
    let old = Descriptor::parse(answer.body).unwrap();
    assert_eq!(old.publication(), stopped.old.publication());
    node.tarball(&old).await;
    node.stop().await;
}

#[tokio::test]
async fn one_form_for_which_there_is_no_room_holds_up_no_other_mending() {
    let stopped = Stopped::new().await;
    fs::remove_file(stopped.home.blob(&stopped.gzip())).unwrap();
    flip_a_bit(&stopped.beside(&blob_of(&stopped.new), ".pieces"));
    stopped.put("state.redb", CONTENT, &[7; 32], b"[]");
    let mut config = stopped.config.clone();
    config.limits.min_free = bytesize::ByteSize::pib(1);
    let report = fsck::run(&config, Options { mend: true, threads: 1 }, &|_| ()).unwrap();
    assert_eq!(outcomes(&report, Fault::MissingForm), [Outcome::Left]);
    for mended in [Fault::WrongPieces, Fault::UnreadableRow] {
        assert_eq!(outcomes(&report, mended), [Outcome::Mended], "{report:?}");
    }
    let left = report.found.iter().find(|found| found.fault == Fault::MissingForm).unwrap();
    assert!(left.remark.as_ref().unwrap().contains("min_free") && report.exit_code() == 4, "{report:?}");
    assert_eq!(faults(&stopped.mended(1)), [Fault::MissingForm]);
    stopped.serves_all().await;
}

#[tokio::test]
async fn a_database_of_noise_is_set_aside_and_that_of_operators_never_is() {
    let stopped = Stopped::new().await;
    let (state, catalog) = (stopped.home.data_dir().join("state.redb"), stopped.home.data_dir().join("catalog.redb"));
    let (whole, documents) = (fs::read(&state).unwrap(), fs::read(&catalog).unwrap());
    let noises = [vec![0x5a; whole.len()], whole[..512].to_vec(), Vec::new(), b"no database".repeat(500)];
    for (damaged, aside) in noises.into_iter().zip(["", "-2", "-3", "-4"]) {
        fs::write(&state, &damaged).unwrap();
        let mended = stopped.mended(4);
        assert_eq!(outcomes(&mended, Fault::Database), [Outcome::Lost]);
        assert_eq!(outcomes(&mended, Fault::Unnamed), [], "nobody knows what the noise named");
        let aside = format!("state.redb.damaged{aside}");
        assert!(mended.found[0].remark.as_ref().unwrap().contains(&format!("set aside as {aside};")), "{mended:?}");
        assert_eq!(fs::read(state.with_file_name(aside)).unwrap(), damaged, "none is written over");
        stopped.publishes_anew().await;
        fs::write(&state, &whole).unwrap();
    }
    fs::write(&catalog, b"no database").unwrap();
    for mend in [false, true] {
        let report = stopped.fsck(mend);
        assert_eq!((outcomes(&report, Fault::Database), report.exit_code()), (vec![Outcome::Left], 4));
        assert_eq!(fs::read(&catalog).unwrap(), b"no database");
    }
    fs::write(&catalog, documents).unwrap();
    assert_eq!(stopped.fsck(true).exit_code(), 0);
    stopped.serves_all().await;
}

#[tokio::test]
async fn whatever_bit_of_the_database_flips_no_generation_goes_back_and_the_origin_starts() {
    let stopped = Stopped::new().await;
    let state = stopped.home.data_dir().join("state.redb");
    let whole = fs::read(&state).unwrap();
    let mut told = std::collections::BTreeMap::<_, usize>::new();
    for number in 0..24 {
        let mut damaged = whole.clone();
        // The beginning, and places that are spread over all of it.
        let at = if number < 12 { number * 21 } else { number * 7919 * 41 % whole.len() };
        damaged[at] ^= 1 << (number % 8);
        fs::write(&state, damaged).unwrap();
        let report = stopped.fsck(true);
        *told.entry(report.exit_code()).or_default() += 1;
        let _ = fs::remove_file(state.with_extension("redb.damaged"));
        let node = stopped.home.start(stopped.config.clone()).await;
        let current = node.published(|_| true).await;
        assert!(current.publication().generation >= stopped.new.publication().generation, "{at}: {report:?}");
        node.tarball(&current).await;
        node.stop().await;
    }
    assert!(told[&4] > 0, "no flip was noticed: {told:?}");
}

#[tokio::test]
async fn a_blob_that_cannot_be_opened_holds_up_no_other() {
    let stopped = Stopped::new().await;
    let blob = stopped.home.blob(&blob_of(&stopped.old));
    fs::rename(&blob, stopped.home.file("aside")).unwrap();
    // Whoever opens it goes in circles, whatever rights they have.
    std::os::unix::fs::symlink(&blob, &blob).unwrap();
    flip_a_bit(&stopped.home.blob(&blob_of(&stopped.new)));
    let report = stopped.fsck(true);
    assert_eq!(outcomes(&report, Fault::UnreadableBlob), [Outcome::Left], "{report:?}");
    assert_eq!(outcomes(&report, Fault::DamagedBlob), [Outcome::Mended], "{report:?}");
    assert_eq!(report.exit_code(), 4);
    fs::remove_file(&blob).unwrap();
    fs::rename(stopped.home.file("aside"), &blob).unwrap();
    assert_eq!(stopped.fsck(false).exit_code(), 0);
    stopped.serves_all().await;
}

#[tokio::test]
async fn what_operators_defined_is_read_and_what_cannot_be_is_named_and_stays() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let config = operator::config(&home, &upstream);
    let node = home.start(config.clone()).await;
    let operator = Operator::of(&home, &node);
    let document = serde_json::json!({ "repository": "shop", "folder": "docs" });
    assert_eq!(operator.put("/v1/services/docs", document).await.status, 201);
    let docs = "docs".parse().unwrap();
    let mut current = node.running.service(&docs).unwrap();
    let published = crate::node::in_time(current.wait_for(Option::is_some)).await.unwrap().clone().unwrap();
    drop(current);
    node.published(|_| true).await;
    node.stop().await;

    // What operators defined says what is to be built again.
    fs::remove_file(home.blob(&blob_of(&published))).unwrap();
    let run = |mend| fsck::run(&config, Options { mend, threads: 1 }, &|_| ()).unwrap();
    let report = run(true);
    assert_eq!((report.exit_code(), report.definitions), (1, 1), "{report:?}");
    assert!(home.blob(&blob_of(&published)).exists());

    let database = Database::open(home.data_dir().join("catalog.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(DOCUMENTS).unwrap().insert("odd", b"{\"name\":\"even\"}".as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    for mend in [false, true, false] {
        let report = run(mend);
        assert_eq!(outcomes(&report, Fault::RefusedDefinition), [Outcome::Left]);
        assert!(report.found[0].object == "service odd" && report.exit_code() == 4, "{report:?}");
    }
}

fn program(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
    command.arg("fsck").arg("--config").arg(config).args(arguments).output().unwrap()
}

#[tokio::test]
async fn the_program_says_it_in_words_or_as_json_and_by_its_exit_code() {
    let stopped = Stopped::new().await;
    let config = stopped.home.file("origin.toml");
    let text = format!(
        "name = \"origin-1\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\n\
         [tls]\ncertificate = \"origin.pem\"\nkey = \"origin.key\"\nclient_ca = \"ca.pem\"\n\
         [[repository]]\nname = \"shop\"\nurl = \"{}\"\n\
         [[service]]\nname = \"{SERVICE}\"\nrepository = \"shop\"\nref = \"main\"\nfolder = \"deploy\"\n",
        stopped.upstream.url()
    );
    fs::write(&config, text).unwrap();
    let said = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let sound = program(&config, &[]);
    assert_eq!(sound.status.code(), Some(0), "{sound:?}");
    assert!(said(&sound).starts_with("2 versions, 3 blobs of 1.4 MiB,"), "{sound:?}");
    assert!(sound.stderr.is_empty(), "progress is for terminals: {sound:?}");

    flip_a_bit(&stopped.home.blob(&blob_of(&stopped.new)));
    let looked = program(&config, &["--json"]);
    assert_eq!(looked.status.code(), Some(4));
    let json: serde_json::Value = serde_json::from_slice(&looked.stdout).unwrap();
    assert_eq!((&json["found"][0]["fault"], &json["found"][0]["outcome"]), (&"damaged-blob".into(), &"left".into()));
    let mended = program(&config, &["--mend"]);
    assert_eq!(mended.status.code(), Some(1));
    let text = said(&mended);
    assert!(text.contains(&format!("mended: {SERVICE} {} zstd", stopped.new.publication().digest)), "{text}");
    assert!(text.contains("2 mended, 0 lost, 0 left damaged"), "{text}");

    let node = stopped.home.start(stopped.config.clone()).await;
    let refused = program(&config, &["--mend"]);
    assert_eq!(refused.status.code(), Some(8));
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert!(reason.contains("in use by another process") && reason.contains("data_dir"), "{reason}");
    node.stop().await;
    fs::remove_dir_all(stopped.home.data_dir()).unwrap();
    let refused = program(&config, &[]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("is not there"));
    assert_eq!(refused.status.code(), Some(8));
    assert!(!stopped.home.data_dir().exists(), "a look makes nothing");
}
