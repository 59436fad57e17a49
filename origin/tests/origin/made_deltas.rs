//! Deltas of versions, decoded by programs that others wrote.

use std::process::Command;

use weir_protocol::dcz;
use weir_protocol::descriptor::Representation;
use weir_protocol::digest::Sha256;

use crate::prelude::*;

const FILES: usize = 200;

/// Text of 4 kB, another for each number.
fn text(number: usize) -> String {
    let line = |line| format!("{}\n", &ObjectDigest::of(format!("{number} {line}").as_bytes()).hex()[..40]);
    (0..100).map(line).collect()
}

fn write_files(upstream: &Upstream) {
    for number in 0..FILES {
        let folder = upstream.work().join(format!("deploy/dir-{}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("file-{number}")), text(number)).unwrap();
    }
}

fn deltas(descriptor: &Descriptor) -> Vec<Representation> {
    descriptor.representations().iter().filter(|one| one.encoding == Encoding::Dcz).cloned().collect()
}

/// Decodes with the program `zstd` and with Python, as far as they are here.
fn decode_elsewhere(home: &Home, old: &[u8], body: &[u8]) -> Vec<Vec<u8>> {
    let [old_file, delta, body_file] = ["old.tar", "delta.zst", "delta.dcz"].map(|name| home.file(name));
    fs::write(&old_file, old).unwrap();
    fs::write(&delta, &body[dcz::HEADER_BYTES..]).unwrap();
    fs::write(&body_file, body).unwrap();
    let mut patch_from = std::ffi::OsString::from("--patch-from=");
    patch_from.push(&old_file);
    let by_zstd = run(Command::new("zstd").args(["-d", "-q", "-c"]).arg(patch_from).arg(&delta));
    let by_python = run(Command::new("python3-with-zstd").arg("-c").arg(PYTHON).arg(&old_file).arg(&body_file));
    by_zstd.into_iter().chain(by_python).collect()
}

/// What a program prints. `None`: it is not installed.
fn run(command: &mut Command) -> Option<Vec<u8>> {
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            Some(output.stdout)
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{command:?} cannot be started: {error}");
            eprintln!("SKIPPED: {command:?} cannot be started ({error})");
            None
        }
    }
}

/// Another binding of the library. `zstd` is part of Python since 3.14.
const PYTHON: &str = "
import sys
try:
    from compression import zstd
except ImportError:
    from backports import zstd
old, body = (open(path, 'rb').read() for path in sys.argv[1:])
dictionary = zstd.ZstdDict(old, is_raw=True)
assert body[:8] == bytes.fromhex('5e2a4d1820000000')
sys.stdout.buffer.write(zstd.decompress(body[40:], zstd_dict=dictionary.as_prefix))
";

#[tokio::test]
async fn other_decoders_read_deltas_against_each_of_the_last_three_versions() {
    let (home, upstream) = (Home::new(), Upstream::small());
    write_files(&upstream);
    upstream.push("deploy/changes", b"0");
    let (node, first) = home.start_published(&upstream).await;
    assert_eq!(deltas(&first), [], "there is nothing before it");
    let mut tars = vec![node.tarball(&first).await];
    for number in 1..=4 {
        upstream.push("deploy/dir-3/file-3", text(1000 + number).as_bytes());
        node.poll().await;
        let made = node.published(|descriptor| deltas(descriptor).len() == number.min(3)).await;
        assert_eq!(made.revision(), 2, "all of them in one revision");
        let tar = node.tarball(&made).await;
        let whole = made.representation(Encoding::Zstd).unwrap().size;
        for delta in deltas(&made) {
            let body = node.object(&repository(), &delta.digest).await;
            assert_eq!((delta.frames, delta.size), (1, body.len() as u64));
            assert!(delta.size * 20 <= whole, "{} of {whole} bytes: more than 5 %", delta.size);
            let old = tars.iter().find(|old| Some(Sha256::of(old)) == delta.dictionary).expect("one of the last three");
            assert!(decode_elsewhere(&home, old, &body).iter().all(|decoded| *decoded == tar));
        }
        tars.insert(0, tar);
        tars.truncate(3);
    }
    let made = "weir_origin_deltas_total{result=\"made\"}";
    until(async || node.metric(made).await == f64::from(1 + 2 + 3 + 3)).await;
    node.stop().await;
}

#[tokio::test]
async fn a_delta_that_saves_too_little_is_not_made() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.push("deploy/text", text(1).as_bytes());
    let (node, _) = home.start_published(&upstream).await;
    for (reason, contents) in [("small", text(2)), ("delta_too_large", (3..30).map(text).collect())] {
        upstream.push("deploy/text", contents.as_bytes());
        node.poll().await;
        let skipped = format!("weir_origin_deltas_total{{result=\"{reason}\"}}");
        until(async || node.metric(&skipped).await > 0.0).await;
        assert_eq!(node.descriptor().await.revision(), 1, "{reason}");
    }
    node.stop().await;
}

#[tokio::test]
async fn large_tars_have_no_deltas_and_none_have_when_they_are_off() {
    for (limit, counted) in [(bytesize::ByteSize::kib(4), 1.0), (bytesize::ByteSize(0), 0.0)] {
        let (home, upstream) = (Home::new(), Upstream::small());
        write_files(&upstream);
        upstream.push("deploy/other", b"first");
        let mut config = home.config(&upstream.url());
        config.limits.max_delta_tarball = limit;
        let node = home.start(config).await;
        let first = node.published(|_| true).await;
        upstream.push("deploy/other", b"changed");
        node.poll().await;
        let second = node.published(|descriptor| descriptor.publication().digest != first.publication().digest).await;
        let counter = "weir_origin_deltas_total{result=\"tar_too_large\"}";
        until(async || node.metric(counter).await == counted && node.metric("weir_origin_deltas_waiting").await == 0.0)
            .await;
        assert_eq!(node.descriptor().await.bytes(), second.bytes());
        node.stop().await;
    }
}

#[tokio::test]
async fn a_lost_delta_is_taken_back() {
    let (home, upstream) = (Home::new(), Upstream::small());
    write_files(&upstream);
    upstream.push("deploy/changes", b"0");
    let (node, _) = home.start_published(&upstream).await;
    upstream.push("deploy/changes", b"1");
    node.poll().await;
    let made = node.published(|descriptor| !deltas(descriptor).is_empty()).await;
    let delta = deltas(&made).remove(0).digest;
    fs::remove_file(home.object(&delta)).unwrap();
    assert_eq!(node.get(&object_path(&delta)).await.status, 503, "the rebuild of the version has no deltas");
    let after = node.published(|descriptor| deltas(descriptor).is_empty()).await;
    assert_eq!(node.get(&object_path(&delta)).await.status, 404);
    assert_eq!((after.publication(), after.revision()), (made.publication(), made.revision() + 1));
    node.tarball(&after).await;
    node.stop().await;
}
