//! Piece lists, and the pieces that they verify.

use std::path::PathBuf;
use std::sync::Arc;

use http::Method;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::BlobDigest;
use weir_shared::piece::{ENTRY_BYTES, PIECE_BYTES, PieceError, PieceList};

use crate::node::{Home, Node, blob_of, blob_path, flip_a_bit};
use crate::upstream::Upstream;

fn pieces_path(digest: &BlobDigest) -> String {
    format!("/v1/blobs/{digest}/pieces")
}

/// Where a list is on the disk.
fn pieces_file(home: &Home, digest: &BlobDigest) -> PathBuf {
    home.blob(digest).with_extension("pieces")
}

/// An origin that published something of a bit more than five pieces, which nothing compresses.
async fn publish_pieces(home: &Home, upstream: &Upstream) -> (Node, Arc<Descriptor>) {
    let mut noise = vec![0; 5 * PIECE_BYTES as usize];
    blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut noise);
    upstream.push("deploy/image.bin", &noise);
    home.start_published(upstream).await
}

async fn fetch_list(node: &Node, digest: &BlobDigest, size: u64) -> PieceList {
    let answer = node.get(&pieces_path(digest)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    PieceList::parse(digest, size, &answer.body).unwrap()
}

#[tokio::test]
async fn every_piece_is_verified_alone() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = publish_pieces(&home, &upstream).await;
    let stored = &descriptor.representations()[0];
    let list = fetch_list(&node, &stored.digest, stored.size).await;
    assert_eq!(list.count(), 6);
    for index in (0..list.count()).rev() {
        let part = list.bytes_of(index).unwrap();
        let range = format!("bytes={}-{}", part.start, part.end - 1);
        let answer = node.request(Method::GET, &blob_path(&stored.digest), &[("range", &range)]).await;
        assert_eq!(answer.status, 206);
        assert_eq!(list.verify(index, &answer.body), Ok(()));
        let mut wrong = answer.body.to_vec();
        wrong[0] ^= 1;
        assert_eq!(list.verify(index, &wrong), Err(PieceError::OtherBytes(index)));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_list_is_immutable_and_answers_as_a_blob_does() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = publish_pieces(&home, &upstream).await;
    let stored = &descriptor.representations()[0];
    let path = pieces_path(&stored.digest);
    let got = node.get(&path).await;
    let head = node.request(Method::HEAD, &path, &[]).await;
    for answer in [&got, &head] {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), "application/octet-stream");
        assert_eq!(answer.header("cache-control"), "max-age=31536000, immutable");
        assert_eq!(answer.header("content-length"), (6 * ENTRY_BYTES).to_string());
    }
    assert!(head.body.is_empty());
    let etag = got.header("etag");
    assert!(etag.starts_with('"') && etag != format!("\"{}\"", stored.digest), "it is not the blob's");
    assert_eq!(head.header("etag"), etag);
    assert_eq!(node.request(Method::GET, &path, &[("if-none-match", etag)]).await.status, 304);
    let second = node.request(Method::GET, &path, &[("range", "bytes=32-63")]).await;
    assert_eq!((second.status.as_u16(), &second.body[..]), (206, &got.body[32..64]));
    assert_eq!(second.header("content-range"), "bytes 32-63/192");
    let beyond = node.request(Method::GET, &path, &[("range", "bytes=192-")]).await;
    assert_eq!((beyond.status.as_u16(), beyond.header("content-range")), (416, "bytes */192"));
    let post = node.request(Method::POST, &path, &[]).await;
    assert_eq!((post.status.as_u16(), post.header("allow")), (405, "GET, HEAD"));
    assert_eq!(node.metric("weir_origin_piece_list_requests_total{status=\"200\"}").await, 2.0);
    node.stop().await;
}

#[tokio::test]
async fn a_blob_of_one_piece_has_no_list_and_neither_has_an_unknown_one() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    for (digest, kind) in [(blob_of(&descriptor), "no-piece-list"), (BlobDigest::of(b"unknown"), "no-such-blob")] {
        let answer = node.get(&pieces_path(&digest)).await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (404, kind));
        assert_eq!(node.request(Method::HEAD, &pieces_path(&digest), &[]).await.status, 404);
    }
    node.stop().await;
}

#[tokio::test]
async fn a_list_that_is_gone_or_wrong_is_made_again_also_after_a_restart() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = publish_pieces(&home, &upstream).await;
    let (digest, size) = (descriptor.representations()[0].digest, descriptor.representations()[0].size);
    let list = fetch_list(&node, &digest, size).await;
    let file = pieces_file(&home, &digest);
    assert_eq!(std::fs::read(&file).unwrap(), list.to_bytes());
    flip_a_bit(&file);
    assert_eq!(fetch_list(&node, &digest, size).await, list);
    assert_eq!(std::fs::read(&file).unwrap(), list.to_bytes());
    std::fs::remove_file(&file).unwrap();
    node.stop().await;

    let node = home.start(home.config(&upstream.url())).await;
    assert_eq!(fetch_list(&node, &digest, size).await, list);
    assert_eq!(std::fs::read(&file).unwrap(), list.to_bytes());
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_list_is_had_of_a_blob_that_is_gone_or_wrong() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = publish_pieces(&home, &upstream).await;
    let (digest, size) = (descriptor.representations()[0].digest, descriptor.representations()[0].size);
    let list = fetch_list(&node, &digest, size).await;
    flip_a_bit(&home.blob(&digest));
    assert_eq!(fetch_list(&node, &digest, size).await, list, "it is right whatever became of the blob");
    std::fs::remove_file(pieces_file(&home, &digest)).unwrap();
    assert_eq!(fetch_list(&node, &digest, size).await, list);
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    assert_eq!(node.metric("weir_origin_blob_heals_total{result=\"healed\"}").await, 1.0);
    std::fs::remove_file(home.blob(&digest)).unwrap();
    assert_eq!(fetch_list(&node, &digest, size).await, list);
    node.tarball(&descriptor).await;
    node.stop().await;
}

#[tokio::test]
async fn damage_in_mid_body_resets_the_answer_and_is_healed_for_the_next_one() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = publish_pieces(&home, &upstream).await;
    let (digest, size) = (descriptor.representations()[0].digest, descriptor.representations()[0].size);
    assert!(pieces_file(&home, &digest).exists(), "a list is there from the start");
    let whole = node.get(&blob_path(&digest)).await.body;
    // In the middle: in the third piece of six.
    flip_a_bit(&home.blob(&digest));
    // What is not wrong is served, and nothing else of the blob looked at.
    for part in [0..PIECE_BYTES, PIECE_BYTES + 5..2 * PIECE_BYTES, 4 * PIECE_BYTES..size] {
        let range = format!("bytes={}-{}", part.start, part.end - 1);
        let answer = node.request(Method::GET, &blob_path(&digest), &[("range", &range)]).await;
        let part = usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap();
        assert_eq!((answer.status.as_u16(), answer.body == whole.slice(part)), (206, true), "{range}");
    }
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 0.0);
    let (sent, end) = node.read_to_whatever_end(&blob_path(&digest)).await;
    assert!(end.is_err(), "it is reset, and never ends cleanly");
    assert!(sent.len() as u64 <= 2 * PIECE_BYTES && sent == whole.slice(..sent.len()), "nothing wrong has left");
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 1.0);
    assert!(node.get(&blob_path(&digest)).await.body == whole);
    assert_eq!(node.metric("weir_origin_blob_heals_total{result=\"healed\"}").await, 1.0);
    // Where an answer begins it is healed before.
    flip_a_bit(&home.blob(&digest));
    let range = format!("bytes={}-", 2 * PIECE_BYTES + 9);
    let answer = node.request(Method::GET, &blob_path(&digest), &[("range", &range)]).await;
    assert!(answer.status == 206 && answer.body == whole.slice(2 * PIECE_BYTES as usize + 9..));
    assert_eq!(node.metric("weir_origin_blob_corruptions_total").await, 2.0);
    node.stop().await;
}
