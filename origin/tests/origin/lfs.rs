//! Fetches of LFS objects with the batch API, and their errors.

use std::cell::{Cell, RefCell};

use weir_git::lfs::{LfsFile, LfsObjects, LfsOid, Pointer};
use weir_git::mirror::{LfsError, LfsFetch};
use weir_upstream::Upstream;

use crate::lfs_server::LfsBehavior;
use crate::prelude::*;

pub(crate) fn file(path: &str, pointer: &str) -> LfsFile {
    LfsFile { path: path.to_owned(), pointer: Pointer::parse(pointer.as_bytes()).unwrap() }
}

/// The reported result of each object, by its path.
pub(crate) type Reported = Vec<(String, Result<(), String>)>;

/// Fetches objects without a budget. Returns the reported results and the result of the fetch.
pub(crate) fn fetch_wanted(
    upstream: &Upstream,
    mirror: &Path,
    files: &[LfsFile],
    is_needed: &dyn Fn(&LfsOid) -> bool,
) -> (Reported, Result<(), LfsError>) {
    let reported = RefCell::new(Vec::new());
    let fetch = LfsFetch {
        upstream,
        objects: &LfsObjects::of_mirror(mirror),
        budget: &|| None,
        is_needed,
        on_result: &|file, ended| reported.borrow_mut().push((file.path.clone(), ended.map_err(ToString::to_string))),
        interrupt: &AtomicBool::new(false),
    };
    let ended = fetch.run(files);
    (reported.into_inner(), ended)
}

/// The number of fetched objects, or the first error.
pub(crate) fn fetch_from(upstream: &Upstream, mirror: &Path, files: &[LfsFile]) -> Result<usize, String> {
    let (reported, ended) = fetch_wanted(upstream, mirror, files, &|_| true);
    let came = reported.iter().filter(|(_, ended)| ended.is_ok()).count();
    match reported.into_iter().find_map(|(_, ended)| ended.err()) {
        Some(error) => Err(error),
        None => ended.map(|()| came).map_err(|error| error.to_string()),
    }
}

fn fetch(server: &LfsServer, mirror: &Path, files: &[LfsFile]) -> Result<usize, String> {
    fetch_from(&Upstream::new(server.url("shop.git")), mirror, files)
}

/// A folder for a mirror, and a server.
fn served() -> (tempfile::TempDir, LfsServer) {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    (dir, server)
}

/// An upstream with a short stall timeout that still suffices under load.
fn impatient(server: &LfsServer) -> Upstream {
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.config.stall_timeout = Duration::from_secs(6);
    upstream
}

fn batches(server: &LfsServer) -> usize {
    server.take_requests().iter().filter(|head| head.starts_with("POST ")).count()
}

#[test]
fn objects_are_fetched_once_and_verified() {
    let (dir, server) = served();
    let contents: Vec<Vec<u8>> = (0..250u32).map(|number| vec![number as u8; 1000 + number as usize]).collect();
    let mut files: Vec<_> = contents.iter().map(|contents| file("some.bin", &server.store(contents))).collect();
    // An object of two services, and an empty one.
    files.push(files[0].clone());
    files.push(file("empty.bin", &server.store(b"")));
    assert_eq!(fetch(&server, dir.path(), &files), Ok(252));
    let objects = LfsObjects::of_mirror(dir.path());
    let mut read = Vec::new();
    for (file, contents) in files.iter().zip(&contents) {
        objects.read(&file.pointer, &mut read).unwrap();
        assert_eq!(read, *contents);
    }
    assert_eq!(batches(&server), 3, "a hundred at a time");
    assert_eq!(fetch(&server, dir.path(), &files), Ok(0));
    assert!(server.take_requests().is_empty(), "stored objects are not requested");
}

#[test]
fn a_wrong_object_is_not_stored_and_its_path_is_in_the_error() {
    let (dir, server) = served();
    let wanted = vec![file("media/a.bin", &server.store(b"the file itself"))];
    let absent = |name: &str| file(name, &server.store(name.as_bytes()).replace("size 1", "size 2"));
    let absent: Vec<_> = ["media/b.bin", "media/c.bin"].map(absent).into();
    let contents = |bytes: &[u8]| LfsBehavior { contents: Some(bytes.to_vec()), ..LfsBehavior::default() };
    let answer = |body: &str| LfsBehavior { batch_body: Some(body.to_owned()), ..LfsBehavior::default() };
    let api_status = |status| LfsBehavior { api_response: Some((status, "")), ..LfsBehavior::default() };
    let storage_status = |status| LfsBehavior { storage_response: Some((status, "")), ..LfsBehavior::default() };
    for (behavior, files, expected) in [
        (contents(b"the file itsElf"), &wanted, "`media/a.bin` is not stored: its SHA-256 differs"),
        (contents(b"the file"), &wanted, "`media/a.bin` is not stored: it has 8 bytes, but its pointer says 15"),
        (contents(&[b'x'; 100_000]), &wanted, "`media/a.bin` is not stored: it has"),
        (
            LfsBehavior::default(),
            &absent,
            "does not provide the LFS object of `media/b.bin`: Object does not exist (code 404)",
        ),
        (answer("<html>log in</html>"), &wanted, "not one of the LFS batch API"),
        (answer("{\"objects\":[]}"), &wanted, "does not contain the object"),
        (answer("{\"transfer\":\"tus\",\"objects\":[]}"), &wanted, "`tus`"),
        (answer(&" ".repeat(5 << 20)), &wanted, "more than"),
        (api_status("404 Not Found"), &wanted, "has no LFS API for this repository"),
        (api_status("401 Unauthorized"), &wanted, "requires credentials"),
        (api_status("500 Oh"), &wanted, "answered 500"),
        (storage_status("404 Not Found"), &wanted, "`media/a.bin` is not at the URL from the LFS API"),
        (storage_status("401 Unauthorized"), &wanted, "the response there was 401"),
        (storage_status("503 Busy"), &wanted, "`media/a.bin` cannot be fetched: the upstream answered 503"),
        (storage_status("206 Partial Content"), &wanted, "answered 206"),
    ] {
        server.set_behavior(behavior);
        let error = fetch(&server, dir.path(), files).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!LfsObjects::of_mirror(dir.path()).contains(&files[0].pointer));
    }
    server.set_behavior(LfsBehavior::default());
    assert_eq!(fetch(&server, dir.path(), &wanted), Ok(1));
}

#[test]
fn retry_after_is_respected() {
    let (dir, server) = served();
    let wanted = [file("a.bin", &server.store(b"x"))];
    let upstream = Upstream::new(server.url("shop.git"));
    let asks = Some(("429 Slow down", "Retry-After: 120\r\n"));
    for behavior in [
        LfsBehavior { api_response: asks, ..LfsBehavior::default() },
        LfsBehavior { storage_response: asks, ..LfsBehavior::default() },
        LfsBehavior { storage_response: Some(("403 Forbidden", "Retry-After: 120\r\n")), ..LfsBehavior::default() },
    ] {
        server.set_behavior(behavior);
        let error = fetch_wanted(&upstream, dir.path(), &wanted, &|_| true).1.unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(120)), "{error}");
    }
}

#[test]
fn expired_urls_are_requested_again() {
    let (dir, server) = served();
    let files: Vec<_> =
        (0..6u8).map(|number| file(&format!("{number}.bin"), &server.store(&[number, 1, 2, 3]))).collect();
    server.set_behavior(LfsBehavior { downloads_until_expiry: Some(2), ..LfsBehavior::default() });
    assert_eq!(fetch(&server, dir.path(), &files), Ok(6));
    assert_eq!(batches(&server), 3);
    // If every URL is expired, the fetch ends.
    let other = tempfile::tempdir().unwrap();
    server.set_behavior(LfsBehavior { downloads_until_expiry: Some(0), ..LfsBehavior::default() });
    assert!(fetch(&server, other.path(), &files).unwrap_err().contains("`0.bin` is not at"));
    assert_eq!(batches(&server), 1);
}

#[test]
fn a_silent_server_or_an_interrupt_ends_a_fetch() {
    let (dir, server) = served();
    let wanted = [file("a.bin", &server.store(&[7; 500_000]))];
    server.set_behavior(LfsBehavior { silent_after: Some(100_000), ..LfsBehavior::default() });
    let error = fetch_from(&impatient(&server), dir.path(), &wanted).unwrap_err();
    assert!(error.contains("`a.bin`") && error.contains("sent nothing"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count(), 0);

    // A fetch that waits for the budget forever.
    let stop = AtomicBool::new(false);
    let fetch = LfsFetch {
        upstream: &Upstream::new(server.url("shop.git")),
        objects: &LfsObjects::of_mirror(dir.path()),
        budget: &|| {
            stop.store(true, Ordering::Relaxed);
            Some(Duration::from_secs(3600))
        },
        is_needed: &|_| true,
        on_result: &|_, _| (),
        interrupt: &stop,
    };
    assert!(fetch.run(&wanted).unwrap_err().to_string().contains("interrupted"));
}

#[test]
fn an_upstream_without_http_and_an_object_over_the_limit_cause_no_request() {
    let (dir, server) = served();
    let wanted = [file("a.bin", &server.store(&[1; 1000]))];
    for url in ["/srv/git/a.git", "git@git.example:a.git", "ssh://git@git.example/a.git", "git://git.example/a.git"] {
        let error = fetch_from(&Upstream::new(url), dir.path(), &wanted).unwrap_err();
        assert!(error.contains("needs https://") && error.contains("`git-lfs-authenticate`"), "{error}");
    }
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.limits.max_lfs_object = ByteSize(999);
    let error = fetch_from(&upstream, dir.path(), &wanted).unwrap_err();
    assert!(error.contains("`a.bin` has 1000 bytes") && error.contains("max_lfs_object"), "{error}");
    assert!(server.take_requests().is_empty());
}

#[test]
fn the_error_of_one_object_does_not_stop_the_others() {
    let (_dir, server) = served();
    let wrong = server.store(b"the file itself");
    let absent = server.store(b"x").replace("size 1", "size 2");
    let files = [file("absent", &absent), file("wrong", &wrong), file("right", &server.store(b"another"))];
    let upstream = impatient(&server);
    let only = Some(wrong);
    for (behavior, expected) in [
        (LfsBehavior { contents: Some(b"the file itsElf".to_vec()), ..LfsBehavior::default() }, "SHA-256 differs"),
        (
            LfsBehavior { storage_response: Some(("403 Forbidden", "")), ..LfsBehavior::default() },
            "response there was 403",
        ),
        (LfsBehavior { silent_after: Some(3), ..LfsBehavior::default() }, "sent nothing"),
    ] {
        let mirror = tempfile::tempdir().unwrap();
        server.set_behavior(LfsBehavior { only_object: only.clone(), ..behavior });
        let (reported, ended) = fetch_wanted(&upstream, mirror.path(), &files, &|_| true);
        let [(_, Err(absent)), (_, Err(wrong)), (_, Ok(()))] = &reported[..] else { panic!("{reported:?}") };
        assert!(absent.contains("`absent`") && wrong.contains(expected), "{reported:?}");
        ended.unwrap();
    }
}

#[test]
fn a_storage_is_given_up_after_three_failures() {
    let (dir, server) = served();
    let files: Vec<_> = (0..9u8).map(|number| file(&format!("{number}"), &server.store(&[number, 7]))).collect();
    server.set_behavior(LfsBehavior { storage_response: Some(("503 Busy", "")), ..LfsBehavior::default() });
    let (reported, ended) = fetch_wanted(&Upstream::new(server.url("shop.git")), dir.path(), &files, &|_| true);
    assert!(ended.unwrap_err().to_string().contains("`2` cannot be fetched"));
    assert_eq!((reported.len(), server.take_requests().len()), (3, 4));
}

#[test]
fn unneeded_objects_are_skipped_even_during_their_download() {
    let (dir, server) = served();
    let drips = server.store(&[7; 100_000]);
    let files = [file("drips", &drips), file("unwanted", &server.store(b"y")), file("wanted", &server.store(b"z"))];
    server.set_behavior(LfsBehavior { slow: true, only_object: Some(drips), ..LfsBehavior::default() });
    let upstream = Upstream::new(server.url("shop.git"));
    let looks = Cell::new(0);
    let wanted = |oid: &LfsOid| {
        looks.set(looks.get() + usize::from(*oid == files[0].pointer.oid));
        *oid == files[2].pointer.oid || (*oid == files[0].pointer.oid && looks.get() < 10)
    };
    let (reported, ended) = fetch_wanted(&upstream, dir.path(), &files, &wanted);
    ended.unwrap();
    assert_eq!(reported, [("wanted".to_owned(), Ok(()))]);
    assert_eq!(std::fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count(), 0);
}
