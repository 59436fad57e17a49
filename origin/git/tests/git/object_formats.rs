//! Repositories with SHA-256 ids.

use crate::prelude::*;

/// Creates the upstream of a pair again, in this format.
fn remake(pair: &Pair, format: &str) {
    if pair.git.dir.exists() {
        fs::remove_dir_all(&pair.git.dir).unwrap();
    }
    fs::create_dir_all(&pair.git.dir).unwrap();
    let init = ["init", "-q", "-b", "main", &format!("--object-format={format}"), "."].map(str::to_owned);
    assert!(git_command(&pair.git.dir).args(init).status().unwrap().success());
}

#[test]
fn a_sha_256_repository_is_mirrored_like_any_other() {
    let mut pair = Pair::new();
    remake(&pair, "sha256");
    let first = pair.git.commit_file("deploy/app.yaml", "replicas: 1\n");
    pair.git.run(["tag", "-a", "-m", "annotated", "v1.0.0"]);
    assert_eq!(first.as_str().len(), 64);
    pair.follow();
    for revision in ["main", "HEAD", "v1.0.0", "semver:^1", first.as_str()] {
        assert_eq!(pair.resolve(revision).as_ref(), Ok(&first), "{revision}");
    }
    build_tar(&pair.mirror_dir(), &first, &Selection::default(), 2).unwrap();

    // Over HTTP too, with a mirror that was reopened and checked.
    let root = pair.git.dir.parent().unwrap();
    let server = SmartHttp::start(root, None);
    pair.upstream = weir_upstream::Upstream::new(server.url("up%20stream"));
    let second = pair.git.commit_file("deploy/app.yaml", "replicas: 2\n");
    pair.mirror = Mirror::open(&pair.mirror_dir(), DEFAULT_MAX_OBJECT).unwrap();
    pair.mirror.full_check().unwrap();
    pair.follow();
    assert_eq!(pair.resolve("main").unwrap(), second);
    let forty = "a".repeat(40);
    assert!(pair.resolve(&forty).unwrap_err().to_string().contains("sha1"));
    // Damage is detected in this format as well.
    let packs = fs::read_dir(pair.mirror_dir().join("objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let pack = packs.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "pack")).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let writable = || fs::remove_file(&pack).and_then(|()| fs::write(&pack, &bytes));
    writable().unwrap();
    assert!(matches!(pair.mirror.full_check(), Err(MirrorError::Damaged { .. })));
}

#[test]
fn a_changed_object_format_is_an_error() {
    let (pair, first) = Pair::of_a_commit();
    pair.follow();
    remake(&pair, "sha256");
    pair.git.commit_file("a", "1");
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::OtherObjectFormat { mirrored: 2, .. }), "{error}");
    assert!(error.to_string().contains("sha256"), "{error}");
    assert_eq!(pair.resolve("main").unwrap(), first, "what is mirrored stays until it is replaced");
}
