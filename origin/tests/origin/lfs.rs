//! Files of Git LFS: fetched from a server that speaks the batch API, or a clear word why not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_origin::lfs::{LfsFile, LfsObjects, Pointer};
use weir_origin::mirror::{Hosts, LfsError, LfsFetch, Reach, Redirects, Upstream};

use crate::lfs_server::{LfsServer, Manner};
use crate::node::Home;

pub(crate) fn file(path: &str, pointer: &str) -> LfsFile {
    LfsFile { path: path.to_owned(), pointer: Pointer::parse(pointer.as_bytes()).unwrap() }
}

/// Fetches without a budget; how many objects came.
pub(crate) fn fetch_from(upstream: &Upstream, mirror: &Path, files: &[LfsFile]) -> Result<u64, LfsError> {
    let count = AtomicU64::new(0);
    let fetch = LfsFetch {
        upstream,
        objects: &LfsObjects::of_mirror(mirror),
        budget: &|| None,
        fetched: &|_| _ = count.fetch_add(1, Ordering::Relaxed),
        interrupt: &AtomicBool::new(false),
    };
    fetch.run(files).map(|()| count.into_inner())
}

fn fetch(server: &LfsServer, mirror: &Path, files: &[LfsFile]) -> Result<u64, String> {
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.stall_timeout = Duration::from_secs(2);
    fetch_from(&upstream, mirror, files).map_err(|error| error.to_string())
}

fn batches(server: &LfsServer) -> usize {
    server.take_requests().iter().filter(|head| head.starts_with("POST ")).count()
}

#[test]
fn objects_are_fetched_once_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let contents: Vec<Vec<u8>> = (0..250u32).map(|number| vec![number as u8; 1000 + number as usize]).collect();
    let mut files: Vec<_> = contents.iter().map(|contents| file("some.bin", &server.hold(contents))).collect();
    // One that two services share, and one that is empty.
    files.push(files[0].clone());
    files.push(file("empty.bin", &server.hold(b"")));
    assert_eq!(fetch(&server, dir.path(), &files), Ok(252));
    let objects = LfsObjects::of_mirror(dir.path());
    let mut read = Vec::new();
    for (file, contents) in files.iter().zip(&contents) {
        objects.read(&file.pointer, &mut read).unwrap();
        assert_eq!(read, *contents);
    }
    assert_eq!(batches(&server), 3, "a hundred at a time");
    assert_eq!(fetch(&server, dir.path(), &files), Ok(0));
    assert!(server.take_requests().is_empty(), "what is here is not asked for");
}

#[test]
fn what_is_not_the_object_is_not_kept_and_its_path_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let wanted = vec![file("media/a.bin", &server.hold(b"the file itself"))];
    let absent = |name: &str| file(name, &server.hold(name.as_bytes()).replace("size 1", "size 2"));
    let absent: Vec<_> = ["media/b.bin", "media/c.bin"].map(absent).into();
    let instead = |bytes: &[u8]| Manner { instead: Some(bytes.to_vec()), ..Manner::default() };
    let answer = |body: &str| Manner { answer: Some(body.to_owned()), ..Manner::default() };
    let api_says = |status| Manner { api_says: Some((status, "")), ..Manner::default() };
    let storage_says = |status| Manner { storage_says: Some((status, "")), ..Manner::default() };
    for (manner, files, expected) in [
        (instead(b"the file itsElf"), &wanted, "`media/a.bin` is not kept: its bytes are not those of its pointer"),
        (instead(b"the file"), &wanted, "`media/a.bin` is not kept: it has 8 bytes and not the 15"),
        (instead(&[b'x'; 100_000]), &wanted, "`media/a.bin` is not kept: it has"),
        (
            Manner::default(),
            &absent,
            "does not give the LFS object of `media/b.bin`: Object does not exist (code 404) (and 1 more)",
        ),
        (answer("<html>log in</html>"), &wanted, "not that of an LFS server"),
        (answer("{\"objects\":[]}"), &wanted, "says nothing of the object"),
        (answer("{\"transfer\":\"tus\",\"objects\":[]}"), &wanted, "`tus`"),
        (answer(&" ".repeat(5 << 20)), &wanted, "more than"),
        (api_says("404 Not Found"), &wanted, "has no LFS API for this repository"),
        (api_says("401 Unauthorized"), &wanted, "asks for credentials"),
        (api_says("500 Oh"), &wanted, "answered 500"),
        (storage_says("404 Not Found"), &wanted, "`media/a.bin` is not where the upstream's API says that it is"),
        (storage_says("401 Unauthorized"), &wanted, "the answer there was 401"),
        (storage_says("503 Busy"), &wanted, "`media/a.bin` cannot be fetched: the upstream answered 503"),
        (storage_says("206 Partial Content"), &wanted, "answered 206"),
    ] {
        server.behave(manner);
        let error = fetch(&server, dir.path(), files).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!LfsObjects::of_mirror(dir.path()).holds(&files[0].pointer));
    }
    server.behave(Manner::default());
    assert_eq!(fetch(&server, dir.path(), &wanted), Ok(1));
}

#[test]
fn a_server_that_wants_to_be_left_alone_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let wanted = [file("a.bin", &server.hold(b"x"))];
    let upstream = Upstream::new(server.url("shop.git"));
    let asks = Some(("429 Slow down", "Retry-After: 120\r\n"));
    for manner in [
        Manner { api_says: asks, ..Manner::default() },
        Manner { storage_says: asks, ..Manner::default() },
        Manner { storage_says: Some(("403 Forbidden", "Retry-After: 120\r\n")), ..Manner::default() },
    ] {
        server.behave(manner);
        let error = fetch_from(&upstream, dir.path(), &wanted).unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(120)), "{error}");
    }
}

#[test]
fn addresses_that_ended_are_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let files: Vec<_> =
        (0..6u8).map(|number| file(&format!("{number}.bin"), &server.hold(&[number, 1, 2, 3]))).collect();
    server.behave(Manner { addresses_hold: Some(2), ..Manner::default() });
    assert_eq!(fetch(&server, dir.path(), &files), Ok(6));
    assert_eq!(batches(&server), 3);
    // Where none ever holds it ends.
    let other = tempfile::tempdir().unwrap();
    server.behave(Manner { addresses_hold: Some(0), ..Manner::default() });
    assert!(fetch(&server, other.path(), &files).unwrap_err().contains("`0.bin` is not where"));
    assert_eq!(batches(&server), 1);
}

#[test]
fn a_server_that_falls_silent_is_given_up_and_so_is_who_is_told_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let wanted = [file("a.bin", &server.hold(&[7; 500_000]))];
    server.behave(Manner { silent_after: Some(100_000), ..Manner::default() });
    let error = fetch(&server, dir.path(), &wanted).unwrap_err();
    assert!(error.contains("`a.bin`") && error.contains("brought nothing"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count(), 0);

    // He waits for the budget of the host, for ever.
    let stop = AtomicBool::new(false);
    let fetch = LfsFetch {
        upstream: &Upstream::new(server.url("shop.git")),
        objects: &LfsObjects::of_mirror(dir.path()),
        budget: &|| {
            stop.store(true, Ordering::Relaxed);
            Some(Duration::from_secs(3600))
        },
        fetched: &|_| (),
        interrupt: &stop,
    };
    assert!(fetch.run(&wanted).unwrap_err().to_string().contains("interrupted"));
}

#[test]
fn an_upstream_without_http_has_no_api_and_a_large_object_is_not_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = LfsServer::start(dir.path(), None);
    let wanted = [file("a.bin", &server.hold(&[1; 1000]))];
    for url in ["/srv/git/a.git", "git@git.example:a.git", "ssh://git@git.example/a.git", "git://git.example/a.git"] {
        let error = fetch_from(&Upstream::new(url), dir.path(), &wanted).unwrap_err().to_string();
        assert!(error.contains("over https://") && error.contains("`git-lfs-authenticate`"), "{error}");
    }
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.max_lfs_object = 999;
    let error = fetch_from(&upstream, dir.path(), &wanted).unwrap_err().to_string();
    assert!(error.contains("`a.bin` has 1000 bytes") && error.contains("max_lfs_object"), "{error}");
    assert!(server.take_requests().is_empty());
}

/// A key for an object goes to where it is for, and credentials go nowhere else at all.
#[test]
fn a_storage_elsewhere_is_public_or_listed_and_gets_no_credentials() {
    let home = Home::new();
    let root = home.file("git");
    let server = LfsServer::start(&root, Some(&home.file("")));
    let storage = LfsServer::start(&root, Some(&home.file("")));
    let wanted = [file("a.bin", &server.hold(b"the file itself"))];
    storage.hold(b"the file itself");
    storage.behave(Manner { storage: Some(storage.base()), ..Manner::default() });
    std::fs::write(home.file("password"), "s3cret\n").unwrap();
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.ca = Some(home.file("ca.pem"));
    upstream.username = Some("ci".to_owned());
    upstream.password_file = Some(home.file("password"));
    // What the server would be shown; another one never is.
    upstream.client_certificate = Some(home.file("edge-client.pem"));
    upstream.client_key = Some(home.file("edge-client.key"));
    let fetch = |mirror: &str, upstream: &Upstream| {
        fetch_from(upstream, &home.file(mirror), &wanted).map_err(|error| error.to_string())
    };
    let mut allowed = upstream.clone();
    allowed.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    let manners = [
        Manner { storage: Some(storage.base()), ..Manner::default() },
        Manner { redirect: Some(storage.base()), ..Manner::default() },
    ];
    for (number, manner) in manners.into_iter().enumerate() {
        server.behave(manner);
        let error = fetch("refused", &upstream).unwrap_err();
        assert!(error.contains("`a.bin`") && error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        assert_eq!(fetch(&format!("allowed-{number}"), &allowed), Ok(1));
        let asked = storage.take_requests().concat().to_ascii_lowercase();
        assert!(!asked.contains("authorization"), "{asked}");
        let given = asked.contains("x-storage-key");
        assert_eq!(given, number == 0, "the key is for where the API says that the object is");

        // A list in the document of somebody who may not reach private addresses changes nothing.
        let mut of_operators = allowed.clone();
        let hosts = Hosts::new(["127.0.0.1".to_owned()]).unwrap();
        of_operators.reach = Reach { hosts: Hosts::default(), public_only: true, excepted: hosts }.into();
        let error = fetch("operators", &of_operators).unwrap_err();
        assert!(error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        // And `hosts` holds for storages too.
        let mut few = upstream.clone();
        few.reach = Reach { hosts: Hosts::new(["localhost".to_owned()]).unwrap(), ..Reach::default() }.into();
        few.url = few.url.replace("127.0.0.1", "localhost");
        let error = fetch("few", &few).unwrap_err();
        assert!(error.contains("`127.0.0.1` may not be asked"), "{error}");
    }
    // No redirects at all: what the API names is none.
    let mut none = allowed.clone();
    none.redirects = Redirects::None;
    assert!(fetch("none", &none).unwrap_err().contains("`redirects` is `none`"));
    server.behave(Manner::default());
    assert_eq!(fetch("none", &none), Ok(1));
    // Never from https to http, whoever is allowed.
    let plain = LfsServer::start(&root, None);
    server.behave(Manner { storage: Some(plain.base()), ..Manner::default() });
    let error = fetch("plain", &allowed).unwrap_err();
    assert!(error.contains("from https to http"), "{error}");
}
