//! The bodies of tarballs, whole or in part, good or bad.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::StreamBody;
use weir_protocol::conditional::{if_none_match, if_range, tarball_etag};
use weir_protocol::dcz::available_dictionary;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{Frame as ManifestFrame, Manifest};
use weir_protocol::range::{RequestedRange, content_range, parse_range};
use weir_runtime::serve::{Body, BoxError, RequestBody};

use super::{Fault, FramesFault, Published, State};

pub(super) fn tarball(
    request: &Request<RequestBody>,
    published: &Published,
    state: &State,
    fault: Option<&Fault>,
) -> Response<Body> {
    let text = |name: header::HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let mut response = Response::builder()
        .header("weir-generation", published.generation)
        .header("weir-revision", published.revision_id());
    if let Some(commit) = published.commit() {
        response = response.header("weir-commit", commit);
    }
    if let Some(version) = published.version {
        response = response.header("weir-version", version);
    }
    let digest = if fault == Some(&Fault::WrongDigest) { TarballDigest::of(b"another") } else { published.digest };
    if fault != Some(&Fault::NoDigest) {
        response = response.header("weir-digest", digest.to_string());
    }
    let is_zstd = text(header::ACCEPT_ENCODING).is_some_and(|value| value.ends_with("zstd"));
    let good = if is_zstd { encoded(&published.tar, state) } else { published.tar.to_vec() };
    let object = match (&state.frames_fault, state.frame_bytes) {
        // An edge that lies does so throughout.
        (Some(FramesFault::Manifest(bytes)), _) => ObjectDigest::of(bytes),
        (_, Some(_)) => ObjectDigest::of(&manifest(&published.tar, state).to_bytes().expect("a small manifest")),
        (_, None) => ObjectDigest::of(&good),
    };
    let etag = tarball_etag(&published.digest, is_zstd.then_some((Encoding::Zstd, &object)));
    let asked = text(header::IF_NONE_MATCH);
    if asked.is_some_and(|asked| if_none_match(asked, &published.digest, &etag).is_some()) {
        return response.status(304).header("etag", etag).body(Body::Empty).expect("a response");
    }
    let offered = text("available-dictionary".parse().expect("a name"));
    if let Some((_, body)) = state.delta.as_ref().filter(|(sha256, _)| offered == Some(&available_dictionary(sha256))) {
        let response = response.header("content-encoding", "dcz").header("content-length", body.len());
        let response = response.header("content-type", "application/x-tar");
        return response.body(in_parts(body, Tail::End)).expect("a response");
    }
    let length = good.len() as u64;
    let part = match parse_range(text(header::RANGE), length) {
        RequestedRange::Partial(part) if text(header::IF_RANGE).is_none_or(|tag| if_range(tag, &etag)) => Some(part),
        _ => None,
    };
    let mut body = match fault {
        Some(Fault::FlipBit) => {
            let mut tar = published.tar.to_vec();
            let middle = tar.len() / 2;
            tar[middle] ^= 4;
            if is_zstd { encoded(&tar, state) } else { tar }
        }
        _ => good,
    };
    if let Some(part) = &part {
        let claimed = if fault == Some(&Fault::OtherPart) { part.start - 1..part.end } else { part.clone() };
        response = response.status(206).header("content-range", content_range(&claimed, length));
        body.truncate(usize::try_from(claimed.end).expect("it fits"));
        body.drain(..usize::try_from(claimed.start).expect("it fits"));
        if fault == Some(&Fault::WrongPart) {
            let middle = body.len() / 2;
            body[middle] ^= 4;
        }
    }
    let half = body.len() / 2;
    let (sent, tail) = match fault {
        Some(Fault::Trickle) => (half, Tail::Slow(Bytes::copy_from_slice(&body[half..]))),
        Some(Fault::Truncate) => (half, Tail::End),
        Some(Fault::BreakOff) => (half, Tail::Error),
        Some(Fault::Stall) => (half, Tail::Nothing),
        Some(Fault::Endless) => (half, Tail::Endless),
        _ => (body.len(), Tail::End),
    };
    if !matches!(fault, Some(Fault::Truncate | Fault::Endless)) {
        response = response.header("content-length", body.len());
    }
    body.truncate(sent);
    if is_zstd {
        response = response.header("content-encoding", "zstd");
    }
    let response = response.header("content-type", "application/x-tar").header("etag", etag);
    response.body(in_parts(&body, tail)).expect("a response")
}

/// Several frames: every reader decodes them all.
pub(super) fn encoded(tar: &[u8], state: &State) -> Vec<u8> {
    frames(tar, state).into_iter().flat_map(|(_, bytes)| bytes).collect()
}

pub(super) fn manifest(tar: &[u8], state: &State) -> Manifest {
    Manifest::new(frames(tar, state).into_iter().map(|(frame, _)| frame).collect()).expect("several frames")
}

fn frames(tar: &[u8], state: &State) -> Vec<(ManifestFrame, Vec<u8>)> {
    let parts: Vec<&[u8]> = match state.frame_bytes {
        Some(bytes) => tar.chunks(bytes).collect(),
        None => <[_; 2]>::from(tar.split_at(if state.recoded { tar.len() / 2 } else { tar.len() / 3 })).into(),
    };
    let frame = |part: &[u8]| {
        let bytes = zstd::encode_all(part, 3).expect("memory takes all");
        let (digest, size) = (ObjectDigest::of(&bytes), bytes.len() as u64);
        (ManifestFrame { digest, size, tar_size: part.len() as u64 }, bytes)
    };
    parts.into_iter().map(frame).collect()
}

pub(super) fn manifest_response(tar: &[u8], state: &State, fault: Option<&FramesFault>) -> Response<Body> {
    let good = manifest(tar, state).to_bytes().expect("a small manifest");
    let half = &good[..good.len() / 2];
    Response::new(match fault {
        Some(FramesFault::Manifest(bytes)) => in_parts(bytes, Tail::End),
        Some(FramesFault::InManifest(Fault::Stall)) => in_parts(half, Tail::Nothing),
        Some(FramesFault::InManifest(Fault::BreakOff)) => in_parts(half, Tail::Error),
        Some(FramesFault::InManifest(Fault::Endless)) => in_parts(b"{", Tail::Endless),
        Some(FramesFault::InManifest(_)) => in_parts(half, Tail::End),
        Some(FramesFault::InRange(_)) | None => Body::from(good.to_vec()),
    })
}

/// How a body ends.
pub(super) enum Tail {
    End,
    Error,
    Nothing,
    /// The rest, a KiB each second.
    Slow(Bytes),
    Endless,
}

/// A body in small parts, with one end or another.
pub(super) fn in_parts(body: &[u8], tail: Tail) -> Body {
    let parts: Vec<_> = body.chunks(16 << 10).map(|part| Ok(Frame::data(Bytes::copy_from_slice(part)))).collect();
    let end = match tail {
        Tail::End => stream::empty().boxed(),
        Tail::Error => stream::iter([Err(BoxError::from("broken off"))]).boxed(),
        Tail::Nothing => stream::pending().boxed(),
        Tail::Slow(rest) => stream::unfold(rest, async |mut rest| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let part = rest.split_to(rest.len().min(1 << 10));
            (!part.is_empty()).then(|| (Ok(Frame::data(part)), rest))
        })
        .boxed(),
        Tail::Endless => stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[b' '; 64 << 10])))).boxed(),
    };
    Body::stream(StreamBody::new(stream::iter(parts).chain(end)))
}
