//! Deltas: served to clients that have the dictionary and say so, and the whole tarball to all others.

use weir_protocol::dcz::available_dictionary;
use weir_protocol::digest::ObjectDigest;

use crate::client::Reply;
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::{FRAME, Tarball};

const DCZ: (&str, &str) = ("accept-encoding", "dcz, zstd");

/// Two versions that differ a little, the newer one with a delta against the older.
fn versions() -> (Tarball, Tarball) {
    let old = Tarball::random(1, 3 * FRAME);
    let mut tar = old.tar.to_vec();
    tar.splice(FRAME..FRAME + 10, *b"something else");
    let new = Tarball::in_frames(tar, FRAME).and_delta(&old);
    assert!(new.delta().len() < 1000);
    (old, new)
}

fn offered(dictionary: &str) -> (&str, &str) {
    ("available-dictionary", dictionary)
}

fn coding(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.header("content-encoding"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_dictionary_gets_the_delta() {
    let site = Site::start().await;
    let (old, new) = versions();
    site.origin.publish("shop", 7, 2, &new);
    let offer = available_dictionary(&old.sha256());
    let offer = offered(&offer);
    let (delta, digest) = (new.delta(), new.digest());
    let tag = format!("\"{digest}+dcz.{}\"", &ObjectDigest::of(&delta).hex()[..16]);
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let head = client.head(TARBALL, &[DCZ, offer]).await;
        let reply = client.get(TARBALL, &[DCZ, offer]).await;
        assert_eq!(reply.bytes(), &delta, "{version}");
        for reply in [&head, &reply] {
            assert_eq!(coding(reply), (200, "dcz"), "{version}");
            assert_eq!((reply.header("etag"), reply.header("accept-ranges")), (tag.as_str(), "bytes"));
            assert_eq!(reply.header("content-length"), delta.len().to_string());
            assert_eq!(reply.header("vary"), "Accept-Encoding, Available-Dictionary");
            assert_eq!(reply.header("weir-digest"), digest.to_string());
            assert!(!reply.headers.contains_key("use-as-dictionary"), "it changes");
        }
        let part = client.get(TARBALL, &[DCZ, offer, ("range", "bytes=10-19"), ("if-range", &tag)]).await;
        assert_eq!((part.status, part.bytes()), (206, &delta.slice(10..20)), "{version}");
        let known = client.get(TARBALL, &[DCZ, offer, ("if-none-match", &format!("\"{digest}\""))]).await;
        assert_eq!(known.status, 304);
    }
    assert_eq!(site.metric("weir_edge_sent_bytes_total", &[("encoding", "dcz")]), (3 * (delta.len() + 10)) as f64);
    assert_eq!(site.origin.requests("object").len(), 1, "nothing else is fetched");
}

#[tokio::test]
async fn all_others_get_the_whole_tarball() {
    let site = Site::start().await;
    let (old, new) = versions();
    site.origin.publish("shop", 7, 1, &new);
    let mut client = site.client("h2").await;
    let [offer, other] = [&old, &new].map(|tarball| available_dictionary(&tarball.sha256()));
    let twice = format!("{offer}, {offer}");
    let (offer, other, twice) = (offered(&offer), offered(&other), offered(&twice));
    for headers in [
        vec![DCZ],
        vec![DCZ, other],
        vec![DCZ, offered("nonsense")],
        vec![DCZ, twice],
        vec![ZSTD, offer],
        vec![("accept-encoding", "*"), offer],
        vec![("accept-encoding", "zstd, dcz;q=0"), offer],
    ] {
        let reply = client.get(TARBALL, &headers).await;
        assert_eq!((coding(&reply), reply.bytes() == &new.zstd), ((200, "zstd"), true), "{headers:?}");
    }
    let path = format!("/v1/services/shop/tarballs/{}", new.digest());
    let immutable = client.get(&path, &[DCZ, offer]).await;
    assert_eq!(
        (coding(&immutable), immutable.header("use-as-dictionary")),
        ((200, "dcz"), format!("match=\"{TARBALL}\"").as_str())
    );
}

#[tokio::test]
async fn a_delta_that_cannot_be_had_costs_nobody_the_tarball() {
    let site = Site::start().await;
    let (old, new) = versions();
    site.origin.publish("shop", 7, 1, &new);
    let mut client = site.client("h2").await;
    assert_eq!(coding(&client.get(TARBALL, &[ZSTD]).await), (200, "zstd"));
    site.settled().await;
    site.origin.go_down().await;
    let offer = available_dictionary(&old.sha256());
    let reply = client.get(TARBALL, &[DCZ, offered(&offer)]).await;
    assert_eq!((coding(&reply), reply.bytes() == &new.zstd), ((200, "zstd"), true));
}
